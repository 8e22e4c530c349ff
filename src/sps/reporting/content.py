"""The sections of a report, in reading order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sps.diagnose.run import diagnose_run
from sps.reporting import figures_frontier as frontier
from sps.reporting import figures_questions as questions
from sps.reporting import figures_results as results
from sps.reporting import figures_squeeze as squeeze
from sps.reporting import figures_training as training
from sps.reporting.blocks import Figure, Section, Table
from sps.reporting.study import Study

Block = Figure | Table | None


def diagnose_study(study: Study) -> squeeze.Diagnoses:
    """The first run of each method, looked at closely."""
    return {s.name: diagnose_run(s.runs[0]) for s in study.subjects if s.runs}


def sections(study: Study, diagnoses: squeeze.Diagnoses) -> list[Section]:
    """Every section with something in it. A part that cannot be drawn is said to be missing."""

    def attempt(part: Callable[..., Any], *arguments: Any) -> list[Block]:
        try:
            drawn = part(*arguments)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            what = f"cannot be drawn ({type(error).__name__}: {error})"
            study.missing.append((part.__name__.replace("_", " "), what))
            return []
        return drawn if isinstance(drawn, list) else [drawn]

    def gather(*parts: tuple) -> list[Block]:
        return [block for part in parts for block in attempt(*part)]

    found = [
        Section("results", "Results", "", gather(
            (frontier.frontier_blocks, study),
            (results.pass_curves, study),
            (results.pass_table, study),
            (results.paired_forests, study),
            (results.paired_table, study),
            (results.diversity_table, study),
        )),
        Section("training", "Training", "What each step recorded.", gather(
            (training.training_curves, study),
            (training.memory_figure, study),
            (training.meter_figure, study),
            (training.verdict_figures, study),
        )),
        Section("squeeze", "Squeeze", "How concentrated the policy became.", gather(
            (squeeze.moved_figure, study, diagnoses),
            (squeeze.greedy_figure, study, diagnoses),
            (questions.diversity_over_steps, study),
            (squeeze.likelihood_figures, study, diagnoses),
        )),
        Section("questions", "Questions", "Which are solved, and how often.", gather(
            (questions.bucket_figure, study),
            (questions.passk_over_steps, study),
            (questions.gained_table, study, diagnoses),
        )),
        Section("cost", "Cost", "Where the time went.", gather((training.cost_table, study))),
    ]  # fmt: skip
    return [s for s in found if s.present()]
