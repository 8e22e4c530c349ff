"""`sps compare`: methods against each other, with one budget, several seeds, paired by question."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.live import Live
from rich.table import Table

from sps.algo.diversity import diversity
from sps.algo.passk import mean_interval, paired_rows
from sps.commands.doctor import refuse_too_large
from sps.commands.frontier import difference_lines, frontier_lines, frontier_record
from sps.commands.jobs import Job, Summaries, plan, run_jobs
from sps.commands.methods import by_name, make_extras, parse_temperatures, sweep_recipe
from sps.commands.terminal import console, say
from sps.commands.train import find_trackers, make_base
from sps.config.load import RecipeLike, load_recipe
from sps.errors import UserError
from sps.evaluation.scores import Scores, other_questions, read_scores
from sps.reporting.style import spelled
from sps.run.disk import write_whole
from sps.run.folder import RESULTS
from sps.run.lock import hold, release
from sps.run.notebook import Place, in_notebook
from sps.run.stop import Stop


def run_compare(
    paths: Sequence[RecipeLike],
    seeds: int,
    out: Path,
    early: str,
    temperatures: str,
    workers: int,
    overrides: list[str],
    sweep: str = "",
    mix: str = "",
) -> None:
    """Run, show, and write results.json and report.html."""
    if temperatures:
        heats = parse_temperatures(temperatures)
        overrides = [*overrides, f"evaluation.temperatures={heats}"]
    swept = sweep_recipe(paths[-1], overrides, sweep) if sweep else []
    fixed = paths[:-1] if sweep else paths
    recipes = by_name([*(load_recipe(path, overrides) for path in fixed), *swept])
    extras = make_extras(next(iter(recipes)), recipes, early, mix)
    jobs, began = plan(recipes, seeds, out, extras, threads=1), time.time()
    found = have_done(jobs, out, "sps compare", workers)
    results = summarise(jobs, found)
    results["frontier"] = frontier_record((job.method, job.folder) for job in jobs if job.train)
    results["folders"] = [job.folder.relative_to(out).as_posix() for job in jobs]
    results["wall_seconds"] = time.time() - began
    write_whole(out / RESULTS, json.dumps(results, indent=1))
    show_results(results)
    if results["frontier"]:
        say("\n".join(["", *frontier_lines(results["frontier"])]))
    from sps.reporting.page import write_report

    page = write_report([out], out / "report.html")
    took = results["wall_seconds"]
    release(out)
    console.print(f"\n{out / RESULTS}\n{page}: open it in a browser\n{took:.0f} s in all")


def have_done(jobs: list[Job], out: Path, doing: str, workers: int = 0) -> dict[str, Summaries]:
    """Have all jobs of a command done, below a folder that it holds until it ends."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(f"{doing} starts its own processes, one a GPU; run it without accelerate")
    recipes = [job.recipe for job in jobs]
    for check in (find_trackers, refuse_too_large, make_base):  # the quickest first
        for recipe in recipes:
            check(recipe)
    take_folder(out, doing)
    stop = Stop()
    with _Progress() as progress, stop.listening(), stop.window():
        return run_jobs(jobs, progress, workers or None)


def summarise(jobs: list[Job], found: dict[str, Summaries]) -> dict[str, Any]:
    """Every method's Pass@k with intervals over seeds and questions, and paired differences."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        for name, summary in found[str(job.folder)].items():
            runs.setdefault(name, []).append(summary)
    scores = {name: [read_scores(s) for s in summaries] for name, summaries in runs.items()}
    order = ["base", *(name for name in runs if name != "base")]
    for name in order:
        _same_questions("base", scores["base"][0], name, scores[name])
    methods = {name: _method(scores[name], runs[name]) for name in order}
    first = jobs[0].method if len(jobs) > 1 else "base"
    pairs = [("base", b) for b in order[1:]]
    pairs += [(first, b) for b in order[1:] if b != first]
    counts = {name: [s.counts for s in scores[name]] for name in order}
    rows = [{"a": a, "b": b, **row} for a, b in pairs for row in paired_rows(counts[a], counts[b])]
    return {"methods": methods, "paired": rows, "reference": first}


def _same_questions(a: str, known: Scores, b: str, scores: list[Scores]) -> None:
    """Questions are paired by their place."""
    for one in scores:
        if odd := other_questions(known, one):
            raise UserError(f"{a} and {b} were {odd}; give their recipes the same task")


def _method(scores: list[Scores], summaries: list[dict[str, Any]]) -> dict[str, Any]:
    ks = scores[0].report_ks()
    curve = {str(k): list(mean_interval(np.stack([s.per_question(k) for s in scores]))) for k in ks}
    greedy = [s.greedy_logprob for s in scores if s.greedy_logprob is not None]
    details: dict[str, int] = {}
    for s in scores:
        for kind, count in s.details.items():
            details[kind] = details.get(kind, 0) + count
    return {
        "pass_at_k": curve,
        "avg": curve["1"],
        "seeds": len(scores),
        "n": scores[0].n,
        "questions": len(scores[0].ids),
        # Right samples of each question, a line a seed: what any interval can be made of again.
        "correct": [" ".join(map(str, s.correct_Q.tolist())) for s in scores],
        "rl_seconds": float(np.mean([s.get("rl_seconds", 0.0) for s in summaries])),
        "irl_seconds": float(np.mean([s.get("irl_seconds", 0.0) for s in summaries])),
        "greedy_logprob": float(np.mean(greedy)) if greedy else None,
        "token_logprob": float(np.mean([s.mean_logprob for s in scores])),
        "details": details,
        **_diversity(scores),
    }


def _diversity(scores: list[Scores]) -> dict[str, Any]:
    """Distinct right solutions and PCMD over seeds; nothing where they are not told apart."""
    found = [s.solutions_Q for s in scores if s.solutions_Q is not None]
    return diversity(found) if len(found) == len(scores) else {}


def show_results(results: dict[str, Any]) -> None:
    """The table of a comparison, and who beats whom; 80 columns unless names are long."""
    methods = results["methods"]
    ks = list(methods["base"]["pass_at_k"])
    shown = list(dict.fromkeys([k for k in ("1", "8", "32") if k in ks] + [ks[-1]]))
    table = Table(box=None, pad_edge=False)
    table.add_column("per cent")
    for k in shown:
        table.add_column(f"Pass@{k}", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("greedy logp", justify="right")
    for name, row in methods.items():
        curve = row["pass_at_k"]
        squeeze = f"{row['greedy_logprob']:.2f}" if row["greedy_logprob"] is not None else ""
        ends = f"[{100 * curve[ks[-1]][1]:.1f}, {100 * curve[ks[-1]][2]:.1f}]"
        cells = [f"{100 * curve[k][0]:.1f}" for k in shown]
        table.add_row(spelled(name), *cells, ends, squeeze)
    seeds = max(row["seeds"] for row in methods.values())
    longest = max(14, *(len(spelled(name)) for name in methods))
    console.width = max(console.width, 66 + longest)  # a name is worth more than a short line
    console.print(table)
    _show_diversity(methods)
    over = "over questions and seeds" if seeds > 1 else "over questions, of these runs alone"
    console.print(
        f"\nmeans of {seeds} seed{'s' * (seeds > 1)}; intervals (of Pass@{ks[-1]}) are {over}\n"
        "paired by question, in points:",
        highlight=False,
    )
    rows = []
    for row in results["paired"]:
        if str(row["k"]) in ("1", ks[-1]) and (row["a"] == "base") == (
            row["b"] == results["reference"]
        ):
            pair = f"  {spelled(row['b']):>{longest}} against {spelled(row['a']):<6}"
            values = (100 * x for x in row["delta"])
            rows.append((f"{pair} Pass@{row['k']}", *values, row["verdict"]))
    say("\n".join(difference_lines(rows)))


def _show_diversity(methods: dict[str, Any]) -> None:
    told = {name: row for name, row in methods.items() if "distinct" in row}
    if not told:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("right answers")
    for title in ("distinct solutions a question", "PCMD, per cent"):
        table.add_column(title, justify="right")
    for name, row in told.items():
        mean, low, high = row["distinct"]
        pairs = ""
        if row["pcmd"]:
            chance, least, most = (100 * value for value in row["pcmd"])
            pairs = f"{chance:.1f} [{least:.1f}, {most:.1f}]"
        table.add_row(spelled(name), f"{mean:.2f} [{low:.2f}, {high:.2f}]", pairs)
    console.print("", table, sep="\n")


def take_folder(out: Path, doing: str) -> None:
    """Hold a folder that can be written to."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".write"
        probe.touch()
        probe.unlink()
        hold(out, doing)
    except OSError as error:
        raise UserError(f"{out}: cannot write there ({error.strerror}); choose --out") from None


class _Progress:
    """Progress of a comparison: a live table on a terminal or in a notebook, a line now and then
    elsewhere."""

    def __init__(self) -> None:
        self.place = Place() if in_notebook() else None
        live = console.is_terminal and not self.place
        self.live = Live(console=console, refresh_per_second=2) if live else None
        self.said: dict[str, str] = {}
        self.last = time.monotonic()

    def __enter__(self) -> _Progress:
        if self.live:
            self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live:
            self.live.__exit__(*error)

    def __call__(self, jobs: list[Job], states: dict[str, str], seconds: float) -> None:
        show = self.live.update if self.live else self.place.show if self.place else None
        if show:
            show(_jobs_table(jobs, states, seconds))
            return
        due = time.monotonic() - self.last > 15
        for job in jobs:
            state = states[str(job.folder)]
            news = state != self.said.get(str(job.folder))
            if news and state != "waiting" and (due or state.startswith("done")):
                console.print(f"{seconds:5.0f} s  {_title(job):<22} {state}", highlight=False)
                self.said[str(job.folder)] = state
        self.last = time.monotonic() if due else self.last
        sys.stdout.flush()


def _jobs_table(jobs: list[Job], states: dict[str, str], seconds: float) -> Table:
    table = Table(title=f"{seconds:.0f} s", title_justify="left", box=None)
    table.add_column("run")
    table.add_column("state")
    for job in jobs:
        table.add_row(_title(job), states[str(job.folder)])
    return table


def _title(job: Job) -> str:
    name = spelled(job.method)
    if job.tempers_base:
        return f"{name}, other T"
    return f"{name}, seed {job.recipe.seed}" if job.train else name
