"""What is reported on: one run, several runs, or a comparison, in one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sps.algo.passk import Counts, paired_rows
from sps.diagnose.alike import other_questions
from sps.diagnose.questions import pass_curve, seeds_diversity
from sps.diagnose.read import Evaluation, RunFolder, read_run
from sps.diagnose.recorded import (
    Means,
    Recorded,
    compared_counts,
    compared_means,
    compared_runs,
    listed_runs,
    read_results,
)
from sps.errors import UserError
from sps.reporting.style import spelled
from sps.run.folder import RECIPE, RESULT, RESULTS, find_runs
from sps.run.reading import read_json


@dataclass
class Subject:
    """One method: its runs (none when it is another use of a trained run) and its test scores."""

    name: str
    runs: list[RunFolder] = field(default_factory=list)
    curve: dict[int, list[float]] = field(default_factory=dict)  # k -> mean, low, high
    counts: list[Counts] = field(default_factory=list)  # one a seed
    facts: dict[str, Any] = field(default_factory=dict)  # seeds, diversity, log-probabilities
    means: Means = field(default_factory=dict)  # of validations whose counts were not kept

    def is_base(self) -> bool:
        """Whether it is the untrained policy of a comparison."""
        return self.name.lower() == "base"


@dataclass
class Study:
    """Everything a report is made from."""

    title: str
    subjects: list[Subject]
    paired: list[dict[str, Any]]
    missing: list[tuple[str, str]]  # where, what; of the whole, beside what each run says
    comparison: bool  # several methods side by side
    wall_seconds: float | None = None

    def trained(self) -> list[Subject]:
        """The subjects that have runs of their own, with training records or validations."""
        return [
            s
            for s in self.subjects
            if any(r.of_kind("rl") or r.split("validation") for r in s.runs)
        ]

    def scored(self) -> list[Subject]:
        """The subjects that have a Pass@k curve."""
        return [s for s in self.subjects if s.curve]

    def all_missing(self) -> list[tuple[str, str]]:
        """Where and what, the whole first and then each run."""
        out = list(self.missing)
        for s in self.subjects:
            for run in s.runs:
                place = f"{s.name} {run.folder.name}" if self.comparison else ""
                out += [(place, text) for text in run.missing]
        return out

    def top_k(self) -> int | None:
        """The largest k that every scored subject has."""
        shared = [set(s.curve) for s in self.scored()]
        both = set.intersection(*shared) if shared else set()
        return max(both) if both else None


def load_study(places: Sequence[Path]) -> Study:
    """Read folders of runs and comparisons, and files of results; only a path that is not there at
    all, or a file that holds no results, is an error."""
    if not places:
        raise UserError("give at least one run folder or comparison folder to report on")
    for place in places:
        if not Path(place).exists():
            raise UserError(
                f"{place}: there is no such folder or file; give the folder of a run (--out of "
                "train), or a file of results"
            )
    parts = [_load(Path(place)) for place in places]
    return spell(parts[0] if len(parts) == 1 else _join(parts))


def spell(study: Study) -> Study:
    """The methods' names as people write them, unless two would then be the same."""
    names = {s.name: spelled(s.name) for s in study.subjects}
    if len(set(names.values())) == len(names):
        for s in study.subjects:
            s.name = names[s.name]
        study.paired = [
            p | {end: names.get(p[end], p[end]) for end in ("a", "b")} for p in study.paired
        ]
    if not study.comparison:
        study.title = spelled(study.title)
    return study


def _load(folder: Path) -> Study:
    if folder.suffix == ".jsonl":
        runs = listed_runs(folder)
        return Study(folder.stem, [Subject(*one) for one in runs.items()], [], [], comparison=True)
    if not folder.is_dir():
        results = read_results(folder)
        return _comparison(folder.parent / folder.stem, results, compared_runs(folder, results))
    path = folder / RESULTS
    if path.is_file():
        try:
            results = read_json(path)
            if isinstance(results.get("methods"), dict):
                return _comparison(folder, results)
        except (OSError, ValueError, AttributeError) as error:
            study = _unfinished(folder)
            study.missing[0] = ("", f"results.json cannot be read ({type(error).__name__})")
            return study
    return _unfinished(folder) if find_runs(folder) else _single(folder)


def _single(folder: Path) -> Study:
    run = read_run(folder)
    subject = Subject(run.name, [run])
    _score(subject)
    return Study(run.name, [subject], [], [], comparison=False)


def _comparison(folder: Path, results: dict[str, Any], recorded: Recorded | None = None) -> Study:
    """A finished comparison; of one whose folder is not at hand, what its results recorded."""
    missing: list[tuple[str, str]] = []
    told = results.get("folders")
    only = {str(name) for name in told} if isinstance(told, list) else None  # a call may have fewer
    counts = _all_counts(folder, only) if recorded is None else {}
    subjects = []
    for name, scores in results["methods"].items():
        runs = _runs(folder, name, only) if recorded is None else recorded.get(name, [])
        own = counts.get(name) or compared_counts(scores)
        subject = Subject(name, runs, counts=own, facts=scores)
        subject.means = compared_means(results, name) if recorded is not None else {}
        try:
            subject.curve = _curve(scores["pass_at_k"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            missing.append((name, "results.json has no Pass@k"))
            subject.facts = {}
        subjects.append(subject)
    told = results.get("paired")
    pairs = [p for p in told if _whole_pair(p)] if isinstance(told, list) else []
    took = results.get("wall_seconds")
    wall = took if isinstance(took, int | float) else None
    return Study(folder.name, subjects, pairs, missing, comparison=True, wall_seconds=wall)


def _curve(told: dict[str, Any]) -> dict[int, list[float]]:
    curve = {int(k): [float(x) for x in v] for k, v in told.items()}
    if not all(len(v) == 3 and all(0 <= x <= 1 for x in v) for v in curve.values()):
        raise ValueError("no mean with its interval")
    return curve


def _unfinished(folder: Path) -> Study:
    """A comparison whose results are not written yet: its runs, as far as they are."""
    subjects = []
    missing = [("", "results.json is not there: the comparison has not finished")]
    for name in sorted({path.parent.name for path in find_runs(folder)}):
        subjects.append(Subject(name, _runs(folder, name)))
        _score(subjects[-1])
    return _paired(Study(folder.name, subjects, [], missing, comparison=True))


def _join(parts: list[Study]) -> Study:
    """Several folders side by side, each run a subject with a name of its own."""
    subjects: list[Subject] = []
    for part in parts:
        for subject in part.subjects:
            seen = {s.name for s in subjects}
            if subject.name in seen:
                places = [r.folder.name for r in subject.runs] or [part.title]
                subject.name = next(
                    name
                    for i in range(1, len(subjects) + 3)
                    if (name := f"{subject.name} ({places[0]}{'' if i == 1 else f' {i}'})")
                    not in seen
                )
            subjects.append(subject)
    missing = [(where or p.title, text) for p in parts for where, text in p.missing]
    title = " / ".join(dict.fromkeys(p.title for p in parts))
    return _paired(Study(title, subjects, [], missing, comparison=True))


def _score(subject: Subject) -> None:
    """Test scores from the evaluations of its runs, as far as they have ended."""
    tests = [e for run in subject.runs if (e := final_test(run)) and e.correct]
    if not tests:
        return
    subject.counts = [(e.correct, e.n) for e in tests]
    subject.curve = pass_curve(subject.counts)
    subject.facts = seeds_diversity(tests)
    for name, written in (("greedy_logprob", "greedy_logprob"), ("token_logprob", "mean_logprob")):
        found = [e.summary.get(written) for e in tests]
        values = [value for value in found if isinstance(value, int | float)]
        if values:
            subject.facts[name] = sum(values) / len(values)


def _paired(study: Study) -> Study:
    """With its pairs; of a subject with other questions there is a sentence instead."""
    alike: list[Subject] = []
    for subject in study.scored():
        if alike and (why := _other_questions(subject, alike[0])):
            study.missing.append((subject.name, f"not compared with {alike[0].name}: {why}"))
        else:
            alike.append(subject)
    study.paired = pairs_against_first(alike)
    return study


def _other_questions(subject: Subject, first: Subject) -> str:
    ids = first.counts[0][0] if first.counts else ()
    found = (other_questions(run, of, ids) for run in subject.runs for of in first.runs[:1])
    return next(filter(None, found), "")


def pairs_against_first(subjects: Sequence[Subject]) -> list[dict[str, Any]]:
    """Every subject against the first, paired by question, and by seed where the numbers agree."""
    rows = []
    for other in subjects[1:]:
        a, b = subjects[0].counts, other.counts
        names = {"a": subjects[0].name, "b": other.name}
        rows += [names | row for row in paired_rows(a, b)] if a and b else []
    return rows


def final_test(run: RunFolder) -> Evaluation | None:
    """The evaluation a run is reported by."""
    tests = run.split("test")
    named = [e for e in tests if e.name == "test"]
    return (named or tests or [None])[-1]


def _runs(folder: Path, method: str, only: set[str] | None = None) -> list[RunFolder]:
    """Those of a method, or what there is of a list of `method/seed-N`."""
    own = folder / method
    if Path(method).name != method or not own.is_dir():
        return []
    asked = [p for p in sorted(own.iterdir()) if only is None or f"{method}/{p.name}" in only]
    return [read_run(p) for p in asked if (p / RECIPE).exists()]


def _all_counts(folder: Path, only: set[str] | None) -> dict[str, list[Counts]]:
    """Correct samples of each question, by method and seed, from the result.json of each run."""
    found: dict[str, list[Counts]] = {}
    for path in sorted(folder.glob(f"*/*/{RESULT}")):
        if only is not None and f"{path.parent.parent.name}/{path.parent.name}" not in only:
            continue
        try:
            for name, summary in read_json(path).items():
                correct = {str(q): int(c) for q, c in summary["per_question"].items()}
                found.setdefault(name, []).append((correct, int(summary["n"])))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def _whole_pair(row: Any) -> bool:
    try:
        words = all(isinstance(row[name], str) and row[name] for name in ("a", "b", "verdict"))
        numbers = len(row["delta"]) == 3 and all(isinstance(v, int | float) for v in row["delta"])
        return words and numbers and isinstance(row["k"], int) and row["k"] > 0
    except (KeyError, TypeError, ValueError):
        return False
