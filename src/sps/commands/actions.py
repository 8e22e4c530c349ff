"""What the commands do, said to the terminal as it happens."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.status import Status
from rich.table import Table

from sps.commands.compare import Job, compare, plan
from sps.commands.frontier import frontier_lines
from sps.commands.methods import by_name, make_extras, sweep_recipe
from sps.config.recipe import Recipe, load_recipe
from sps.errors import Stopped, UserError
from sps.progress.trackers import find_tracker, follow
from sps.ranks import Ranks, join_ranks
from sps.run.lock import LOCK, hold, release
from sps.run.stop import Stop
from sps.run.track import Listener

console = Console()

_QUICK = [
    "rl.steps=30",
    "irl.every=10",
    "evaluation.n=32",
    "evaluation.every=0",
    "checkpoint.every=10",
    "task.test=60",
]


def run_demo(out: Path | None, seeds: int, quick: bool, again: bool) -> None:
    """Base, GRPO, SPS, SPS at the paper's IRL learning rate, early-stopped and hotter GRPO."""
    out = out or Path("runs") / ("demo-quick" if quick else "demo")
    if again and (out / "results.json").exists():
        _clear(out)
    names = ["countdown_grpo.yaml", "countdown_sps.yaml", "countdown_sps_paper.yaml"]
    recipes = [recipes_folder() / "demo" / name for name in names]
    early, hot = ("10,20", "1.5") if quick else ("100,200", "1.2")
    console.print(_purpose(quick))
    run_compare(recipes, 1 if quick else seeds, out, early, hot, 0, _QUICK if quick else [])


def _clear(out: Path) -> None:
    """Remove what a folder holds, unless a job is using it."""
    hold(out, "sps demo --again")
    for path in out.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _purpose(quick: bool) -> str:
    """What the demo shows, before it does."""
    if not quick:
        return (
            "Countdown: reach a target from four numbers. A small policy has seen mostly\n"
            "aimless attempts; RL sharpens it. Watch Pass@1 rise and Pass@128 fall, and what\n"
            "SPS does about that.\n"
        )
    small = dict(pair.split("=") for pair in _QUICK)
    return (
        f"A smoke test: {small['rl.steps']} steps, {small['task.test']} test problems, one seed. "
        "It shows that everything\nruns; the effect needs the full demo (about 5 minutes).\n"
    )


def run_compare(
    paths: list[Path],
    seeds: int,
    out: Path,
    early: str,
    hot: str,
    workers: int,
    overrides: list[str],
    sweep: str = "",
    mix: str = "",
) -> None:
    """Run, show, and write results.json and report.html."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "sps compare starts its own processes, one a GPU; run it without accelerate"
        )
    swept = sweep_recipe(paths[-1], overrides, sweep) if sweep else []
    fixed = paths[:-1] if sweep else paths
    recipes = by_name([*(load_recipe(path, overrides) for path in fixed), *swept])
    extras = make_extras(next(iter(recipes)), recipes, early, hot, mix)
    _find_trackers(list(recipes.values()))
    _refuse_too_large(list(recipes.values()))
    _base(recipes)
    jobs = plan(recipes, seeds, out, extras, threads=1)
    _take(out)
    stop = Stop()
    with _Watch() as watch, stop.listening(), stop.window():
        results = compare(jobs, out, watch, workers or None)
    show_results(results)
    if results["frontier"]:
        _say(["", *frontier_lines(results["frontier"])])
    from sps.report.page import write_report

    page = write_report([out], out / "report.html")
    took = results["wall_seconds"]
    release(out)
    console.print(f"\n{out / 'results.json'}\n{page}: open it in a browser\n{took:.0f} s in all")


def run_train(
    path: Path, out: Path | None, resume: bool, overrides: list[str], stop_after: str = ""
) -> None:
    """One run, its progress, and its test scores."""
    recipe = load_recipe(path, overrides)
    _refuse_too_large([recipe])
    ranks, stop = join_ranks(recipe.model.place), Stop()
    try:
        with stop.listening(stop_after):
            _train(recipe, out or Path("runs") / recipe.name, resume, ranks, stop)
    except Stopped as stopped:
        if ranks.main:
            sys.stderr.write(f"{stopped}\n")
        ranks.leave()
        raise Stopped from None  # said
    ranks.leave()


def _train(recipe: Recipe, folder: Path, resume: bool, ranks: Ranks, stop: Stop) -> None:
    alone = ranks.size == 1
    if ranks.main:
        _find_trackers([recipe])
        with stop.window(alone):
            _base({recipe.name: recipe})
    else:
        console.quiet = True
    from sps.build import open_run
    from sps.loop import train
    from sps.progress.live import Progress

    if ranks.accelerator:
        how = "DeepSpeed" if ranks.deepspeed else "FSDP2"
        kind = f"weights sharded ({how})" if ranks.sharded else "weights on every rank"
        console.print(f"{ranks.size} rank{'s' * (ranks.size > 1)}, {kind}", highlight=False)
    show = Progress(recipe.rl.steps, recipe.name) if ranks.main else nullcontext()
    with show as progress:
        listeners: list[Listener] = [progress] if progress else []
        with stop.window(alone):
            run = open_run(recipe, folder, resume, listeners, ranks)
        run.stop = stop
        follow(run.track, recipe, recipe.name)
        if run.start:
            console.print(f"resumed after step {run.start}")
        try:
            scores = train(run)
        except Stopped:
            run.close()
            raise
        run.close()
    if scores is not None:
        for k in scores.report_ks():
            mean, low, high = scores.pass_at_k(k)
            console.print(f"Pass@{k:<4} {mean:6.1%}  [{low:.1%}, {high:.1%}]")
    console.print(f"run folder: {folder}")


def run_eval(
    settings: dict[str, Any],
    machinery: dict[str, Any],
    bench: str,
    out: Path | None,
    regrade: bool,
    pair: tuple[Path, Path] | None,
) -> None:
    """Evaluate a model on benchmarks, or compare two evaluations that are there."""
    from sps.evaluate.command import EvalSettings, Machinery, compare_command, eval_command

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    if pair is not None:
        compare_command(str(pair[0]), str(pair[1]), say=say)
        return
    if not settings["model"] or not bench:
        raise UserError("give a model and --bench, for example: sps eval runs/sps --bench gsm8k")

    def engine(policy: Any, rows: int) -> Any:
        from sps.build import make_engine

        return make_engine(policy, rows)

    ranks = join_ranks(machinery["device"])
    eval_command(
        EvalSettings(**settings),
        bench,
        out=out,
        regrade_only=regrade,
        say=say,
        machinery=Machinery(**machinery, engine=engine, ranks=ranks),
    )
    ranks.leave()


def run_doctor(
    path: Path | None,
    overrides: list[str],
    gpus: int | None,
    memory: float | None,
    sharding: str,
    engine: str | None,
    table: bool,
) -> None:
    """The machine, and the recipe if there is one; an error where it cannot fit."""
    from sps.commands import doctor

    if path is None:
        if table:
            raise UserError("--table: give a recipe, for example recipes/paper/sps.yaml")
        _say(doctor.environment())
        return
    recipe = load_recipe(path, overrides)
    if table:
        _say(doctor.table(recipe))
        return
    machine = doctor.this_machine(gpus, memory)
    changes = [*overrides]
    if engine and engine != recipe.rollout.engine:
        changes.append(f"rollout.engine={engine}")
    asked = shlex.join([str(path), *(word for item in changes for word in ("--set", item))])
    _say([*doctor.environment(), *doctor.examine(recipe, machine, sharding, engine, asked)])
    doctor.verdict(recipe, machine, sharding, engine)


def _say(lines: list[str]) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def recipes_folder() -> Path:
    """The recipes that come with the program: in its source tree, or where it was installed."""
    here = Path(__file__).parents[3] / "recipes"
    return here if here.is_dir() else Path(sysconfig.get_path("data")) / "share" / "sps" / "recipes"


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
        table.add_row(name, *cells, ends, squeeze)
    seeds = max(row["seeds"] for row in methods.values())
    longest = max(14, *map(len, methods))
    console.width = max(console.width, 66 + longest)  # a name is worth more than a short line
    console.print(table)
    over = "over questions and seeds" if seeds > 1 else "over questions, of these runs alone"
    console.print(
        f"\nmeans of {seeds} seed{'s' * (seeds > 1)}; intervals (of Pass@{ks[-1]}) are {over}\n"
        "paired by question, in points:",
        highlight=False,
    )
    for row in results["paired"]:
        if str(row["k"]) in ("1", ks[-1]) and (row["a"] == "base") == (
            row["b"] == results["reference"]
        ):
            mean, low, high = (100 * x for x in row["delta"])
            console.print(
                f"  {row['b']:>{longest}} against {row['a']:<6} Pass@{row['k']:<4}"
                f"{mean:+6.1f} [{low:+.1f}, {high:+.1f}]  {row['verdict']}",
                highlight=False,
                soft_wrap=True,
            )


def _base(recipes: dict[str, Recipe]) -> None:
    """Make the embedded policies that are not there yet, once, before runs ask for them."""
    for recipe in recipes.values():
        if recipe.model.path is not None:
            continue
        from sps.build import ensure_base

        with console.status("making the base policy") as status:

            def progress(step: int, of: int, loss: float, show: Status = status) -> None:
                if step == 1:  # also where no terminal shows the status
                    console.print(
                        "this recipe's embedded policy is not there yet: it is made first, in "
                        f"{of} steps, and kept; that takes minutes",
                        soft_wrap=True,
                    )
                show.update(f"making the base policy: step {step}/{of}, loss {loss:.3f}")

            ensure_base(recipe, progress)


def _find_trackers(recipes: list[Recipe]) -> None:
    """Before any work: one that is not installed is said at once."""
    for recipe in recipes:
        if recipe.track:
            find_tracker(recipe.track)


def _refuse_too_large(recipes: list[Recipe]) -> None:
    """Before anything is downloaded."""
    for recipe in recipes:
        if recipe.model.path is not None:
            from sps.commands.doctor import refuse_too_large

            refuse_too_large(recipe)


def _take(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".write"
        probe.touch()
        probe.unlink()
        hold(out, "sps compare")
    except OSError as error:
        raise UserError(f"{out}: cannot write there ({error.strerror}); choose --out") from None


class _Watch:
    """Progress of a comparison: a live table on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self.live = Live(console=console, refresh_per_second=2) if console.is_terminal else None
        self.said: dict[str, str] = {}
        self.last = time.monotonic()

    def __enter__(self) -> _Watch:
        if self.live:
            self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live:
            self.live.__exit__(*error)

    def __call__(self, jobs: list[Job], states: dict[str, str], seconds: float) -> None:
        if self.live:
            self.live.update(_jobs_table(jobs, states, seconds))
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
    return f"{job.method}, seed {job.recipe.seed}" if job.train else job.method
