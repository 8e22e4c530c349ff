"""Who keeps Pass@k: every method on a bed of its own, many seeds, one line of results a run.

python -m bench.beds BED [--methods A,B] [--seeds 0-7] [--jobs N] [--minutes M] [--set key=value]
                         [--results FILE] [--runs FOLDER]

Runs side by side, the first seed of every method before the second of any. A run that is in the
results file is not run again, and one that the time limit cut short is there with the steps that
it was validated at, and is run again next time. A line holds, for each validated step, how many of
the samples of each held-out problem were right: all that a frontier needs (algo/frontier.py).
A method may be given with settings of its own, `grpo_kl:rl.algorithm.beta=0.15`; `--trials` runs
those of TRIALS, as many for each method, `--best` says which had the largest area on validation
problems, and `--tuned FILE` runs those.
`python -m bench.beds BED --show` prints Pass@k by step, `--frontier METHOD` every method's frontier
against that of one, `--markdown A,B` the table of docs/results.md, against the frontiers of A and B
(`python -m bench.tables` writes it there).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from sps.algo.frontier import Gap, areas, frontier
from sps.algo.passk import mean_interval, pass_at_k

ROOT = Path(__file__).parents[1]
SPS = ["irl.steps=4", "irl.batch=512", "irl.keep=3"]
MEMORY = ["irl.memory.weight=1"]
BASE = ["irl.memory.source=base", "irl.memory.distinct=false"]
REPLAY = ["irl.memory.weight=0.109375", "irl.memory.per_problem=16", "irl.memory.reduce=sequence"]

# What sets a method apart, as `--set` says it; the rest is the bed's.
METHODS: dict[str, list[str]] = {
    "grpo": [],
    "grpo_half": ["rl.lr=HALF"],
    "grpo_1e-5": ["rl.lr=1e-5"],
    "grpo_kl": ["rl.algorithm.beta=0.05"],
    "sps": SPS,
    "memory": MEMORY,
    "memory_sps": [*MEMORY, *SPS],
    "memory_no_rl": [*MEMORY, "rl.algorithm.type=none"],
    "memory_sps_quarter": [*MEMORY, *SPS, "irl.memory.share=0.25"],
    "memory_sps_tenth": [*MEMORY, *SPS, "irl.memory.share=0.1"],
    "memory_0.3": ["irl.memory.weight=0.3"],
    "memory_last": [*MEMORY, "irl.memory.distinct=false"],
    "memory_all": [*MEMORY, "irl.memory.problems=all", "irl.memory.per_problem=1"],
    "memory_unlikely": [*MEMORY, "irl.memory.quantile=0.5"],
    "dapo": ["rl.algorithm.type=dapo"],
    "gspo": ["rl.algorithm.type=gspo"],
    # The rivals, with their authors' settings (recipes/rivals).
    "maxrl": ["rl.algorithm.type=maxrl"],
    "differential_smoothing": ["rl.algorithm.type=differential_smoothing"],
    "ucpo": ["rl.algorithm.type=ucpo"],
    "bbg": ["rl.algorithm.type=bbg"],
    "rs_grpo": ["rl.algorithm.type=rs_grpo"],
    "unlikeliness": ["rl.algorithm.type=unlikeliness"],
    "kl_cov": ["rl.algorithm.type=kl_cov", "rl.algorithm.steps_per_generation=2"],
    "clip_cov": ["rl.algorithm.type=clip_cov"],
    "cispo": ["rl.algorithm.type=cispo", "rl.algorithm.steps_per_generation=2"],
    "raft": ["rl.algorithm.type=raft"],
    "pass_at_k": ["rl.algorithm.type=pass_at_k", "rl.algorithm.k=4"],
    "dph_forward": ["irl.memory.weight=0.05", *BASE],
    "dph_js": ["irl.memory.weight=0.2", "irl.memory.divergence=js", *BASE],
    "mode_replay_dr": ["rl.algorithm.type=dr_grpo", *REPLAY],
    "mode_replay_max": ["rl.algorithm.type=maxrl", *REPLAY],
}

# What is tried of each method, its authors' or the bed's setting first: of what is its own, or of
# the learning rate, in shares of the bed's.
RATES = {"rl.lr": [1.0, 0.5, 2.0]}
TRIALS: dict[str, dict[str, list[float]]] = {
    "grpo": RATES,
    "grpo_kl": {"rl.algorithm.beta": [0.05, 0.02, 0.15]},
    "sps": {"irl.reach": [0.35, 0.2, 0.5]},
    "memory": {"irl.memory.weight": [1.0, 0.3, 3.0]},
    "memory_sps": {"irl.memory.weight": [1.0, 0.3, 3.0]},
    "memory_no_rl": RATES,
    "dapo": RATES,
    "gspo": RATES,
    "maxrl": RATES,
    "differential_smoothing": {"rl.algorithm.gamma": [0.01, 0.003, 0.03]},
    "ucpo": {"rl.algorithm.mix": [0.2, 0.5, 1.0]},
    "bbg": {"rl.algorithm.k": [16, 8, 64]},
    "rs_grpo": {"rl.algorithm.risk": [2.0, 1.0, 6.0]},
    "unlikeliness": {"rl.algorithm.penalty": [0.25, 0.1, 0.6]},
    "kl_cov": {"rl.algorithm.share": [0.0002, 0.002, 0.02]},
    "clip_cov": {"rl.algorithm.share": [0.0002, 0.002, 0.02]},
    "cispo": RATES,
    "raft": RATES,
    "pass_at_k": {"rl.algorithm.k": [4, 2, 6]},
    "dph_forward": {"irl.memory.weight": [0.05, 0.2, 0.6]},
    "dph_js": {"irl.memory.weight": [0.2, 0.05, 0.6]},
    "mode_replay_dr": {"irl.memory.weight": [0.109375, 0.33, 1.0]},
    "mode_replay_max": {"irl.memory.weight": [0.109375, 0.33, 1.0]},
}

# recipe, and what the bed sets: rates, lengths, validation.
BEDS: dict[str, tuple[str, float, list[str]]] = {
    "embedded": (
        "recipes/demo/countdown_grpo.yaml",
        1e-4,
        [
            "threads=1",
            "rl.steps=1000",
            "irl.every=50",
            "evaluation.every=200",
            "evaluation.validation_n=128",
        ],
    ),
    "smollm2": (
        "recipes/countdown/smollm2_grpo.yaml",
        1e-5,
        ["rl.steps=500", "irl.every=25", "evaluation.every=100", "evaluation.validation_n=128"],
    ),
    # Say where model and data are: --set model.path=... --set task.data=...
    "gsm8k": (
        "recipes/gsm8k/qwen_grpo.yaml",
        3e-6,
        ["irl.memory.per_problem=4", "irl.memory.share=0.25"],
    ),
}


def command(bed: str, method: str, seed: int, folder: Path, more: list[str]) -> list[str]:
    """The run as its users would type it."""
    recipe, lr, own = BEDS[bed]
    name, *settings = method.split(":")
    sets = [f"seed={seed}", f"name={name}", f"rl.lr={lr}", *own, "evaluation.final=false"]
    sets += ["checkpoint.every=0", *METHODS[name], *settings, *more]
    sets = [item.replace("HALF", str(lr / 2)) for item in sets]
    given = [part for item in sets for part in ("--set", item)]
    return [sys.executable, "-m", "sps", "train", str(ROOT / recipe), "--out", str(folder), *given]


def trials_of(bed: str) -> dict[str, list[str]]:
    """Every method with every setting that is tried of it; the first is the method's own."""
    lr = BEDS[bed][1]
    return {
        method: [f"{method}:{key}={v * (lr if key == 'rl.lr' else 1):g}" for v in values]
        for method, tried in TRIALS.items()
        for key, values in tried.items()
    }


def one(
    bed: str,
    method: str,
    seed: int,
    more: list[str],
    skip: int,
    deadline: float,
    runs: Path | None,
) -> dict[str, Any]:
    """Run it, and read what was validated; the folder is kept in `runs`, if that is given."""
    with tempfile.TemporaryDirectory() as place:
        name = f"{bed}_{method.replace(':', '_')}_{seed}"
        folder, began = (runs or Path(place)) / name, time.time()
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was cut short
        typed = command(bed, method, seed, folder, more)
        with (Path(place) / "log").open("w") as log:
            process = subprocess.Popen(typed, stdout=log, stderr=subprocess.STDOUT)
            try:
                code = process.wait(max(1.0, deadline - time.time()))
            except subprocess.TimeoutExpired:
                process.kill()
                code = None
        if code:
            print((Path(place) / "log").read_text()[-2000:], file=sys.stderr, flush=True)
        steps = {int(p.stem[-6:]): json.loads(p.read_text()) for p in _validations(folder)}
        line = {"bed": bed, "method": method, "seed": seed, "ended": code == 0}
        line["how"] = "ended" if code == 0 else "cut short" if code is None else "failed"
        line |= {"seconds": round(time.time() - began, 1), "set": more}
        if any(item.startswith("irl.memory.") for item in METHODS[method.split(":")[0]]):
            line["memory_share"] = _memory_share(folder)
        if steps:
            line["n"] = next(iter(steps.values()))["n"]
        line["right"] = {
            step: [int(count) for _, count in sorted([*told["per_question"].items()][skip:])]
            for step, told in sorted(steps.items())
        }
        return line


def _memory_share(folder: Path) -> float | None:
    """Seconds of memory in a hundred of the RL steps', the first ten left out."""
    path = folder / "metrics.jsonl"
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    steps = [line for line in lines if "seconds/memory" in line and "seconds/update" in line][10:]
    whole = sum(v for line in steps for key, v in line.items() if key.startswith("seconds/"))
    return round(100 * sum(line["seconds/memory"] for line in steps) / whole, 2) if whole else None


def _validations(folder: Path) -> list[Path]:
    return sorted((folder / "evals").glob("validation-*.json"))


def known(results: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The longest line of each run."""
    lines = map(json.loads, results.read_text().splitlines()) if results.exists() else ()
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for line in lines:
        key = line["bed"], line["method"], line["seed"]
        if key not in found or len(line["right"]) >= len(found[key]["right"]):
            found[key] = line
    return found


def shown(results: Path, bed: str) -> list[str]:
    """Pass@1 / Pass@32 / Pass@n of each method by step, means over seeds, as a table."""
    means: dict[str, dict[int, list[list[float]]]] = {}
    ks: list[int] = []
    for (of, method, _), line in known(results).items():
        for step, right in line["right"].items() if of == bed else ():
            ks = sorted({1, min(32, line["n"]), line["n"]})
            scores = [100 * float(pass_at_k(np.array(right), line["n"], k).mean()) for k in ks]
            means.setdefault(method, {}).setdefault(int(step), []).append(scores)
    steps = sorted({step for own in means.values() for step in own})
    rows = [["Pass@" + " / ".join(map(str, ks)), *(f"step {step}" for step in steps)]]
    rows.append(["---"] * len(rows[0]))
    for method in sorted(means, key=lambda name: list(METHODS).index(name.split(":")[0])):
        own = means[method]
        rows.append([f"`{method}`", *(_means(own.get(step, [])) for step in steps)])
    return [f"| {' | '.join(row)} |" for row in rows]


def _means(scores: list[list[float]]) -> str:
    """Of some seeds, and how many they are."""
    if not scores:
        return ""
    return " / ".join(f"{v:.1f}" for v in np.mean(scores, axis=0)) + f" ({len(scores)})"


@dataclass(frozen=True)
class Paths:
    """The ended runs of a bed's methods that have as many seeds as any."""

    n: int  # samples a problem
    base: np.ndarray  # right ones of each problem
    right: dict[str, np.ndarray]  # of each method [steps, seeds, problems]
    steps: dict[str, int]  # the last one
    seconds: dict[str, float]  # of a run, mean over seeds
    fewer: dict[str, int]  # methods with fewer seeds, which are left out

    @property
    def seeds(self) -> int:
        """As many as each method has."""
        return next(iter(self.right.values())).shape[1]


def paths_of(results: Path, bed: str) -> Paths:
    """What the frontier compares."""
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    for (of, method, seed), line in known(results).items():
        if of == bed and line["ended"]:
            runs.setdefault(method, {})[seed] = line
    if not runs:
        raise SystemExit(f"{results}: no run of {bed} has ended")
    count = max(map(len, runs.values()))
    fewer = {method: len(seeds) for method, seeds in runs.items() if len(seeds) < count}
    whole = {method: seeds for method, seeds in runs.items() if method not in fewer}
    first = next(line for seeds in whole.values() for line in seeds.values())
    right, last = {}, {}
    for method, seeds in whole.items():
        steps = sorted((s for s in next(iter(seeds.values()))["right"] if s != "0"), key=int)
        right[method] = np.array([[seeds[s]["right"][at] for s in sorted(seeds)] for at in steps])
        last[method] = int(steps[-1])
    seconds = {m: float(np.mean([r["seconds"] for r in own.values()])) for m, own in whole.items()}
    return Paths(first["n"], np.array(first["right"]["0"]), right, last, seconds, fewer)


def markdown(results: Path, bed: str, references: list[str]) -> list[str]:
    """One row a method: Pass@1 and Pass@n at the end, Pass@n at equal Pass@1 minus that of each
    reference, seconds. The best against the last reference first."""
    paths = paths_of(results, bed)
    found = [frontier(paths.base, paths.right, paths.n, name) for name in references]
    gaps = [{gap.name: gap for gap in one.gaps} for one in found]
    order = {gap.name: gap.mean[0] for gap in found[-1].gaps}
    reach = {standing.name: standing.reach for standing in found[-1].standings}
    base = " / ".join(f"{100 * value:.1f}" for value in found[0].base)
    steps = " or ".join(map(str, sorted(set(paths.steps.values()))))
    said = (
        f"{paths.seeds} seeds, {len(paths.base)} problems x {paths.n} samples, after {steps} "
        f"steps; base: {base} (Pass@1 / Pass@{paths.n})."
    )
    if paths.fewer:
        left = ", ".join(f"`{name}` ({count})" for name, count in sorted(paths.fewer.items()))
        said += f" Left out, with fewer seeds: {left}."
    minus = [f"at equal Pass@1, minus `{name}`" for name in references]
    heads = ["method", "Pass@1", f"Pass@{paths.n}", "highest Pass@1", *minus, "s a run"]
    rows = []
    for name in sorted(paths.right, key=lambda name: -order.get(name, 0.0)):
        at_end_SQ = paths.right[name][-1]
        ends = [mean_interval(pass_at_k(at_end_SQ, paths.n, k)) for k in (1, paths.n)]
        against = [gap_cell(own[name]) if name in own else "" for own in gaps]
        rest = [f"{100 * reach[name]:.1f}", *against, f"{paths.seconds[name]:.0f}"]
        rows.append([f"`{name}`", *map(_cell, ends), *rest])
    lines = [heads, ["---", *["---:"] * 3, *["---"] * len(minus), "---:"], *rows]
    return [said, "", *(f"| {' | '.join(line)} |" for line in lines)]


def trial_areas(results: Path, bed: str) -> tuple[Paths, tuple[float, float], dict[str, Any]]:
    """Of every trial of every method; the largest wins."""
    paths = paths_of(results, bed)
    trials: dict[str, dict[str, np.ndarray]] = {}
    for name, right in paths.right.items():
        trials.setdefault(name.split(":")[0], {})[name] = right
    span, found = areas(paths.base, trials, paths.n)
    return paths, span, {m: {name: a[0] for name, a in own.items()} for m, own in found.items()}


def winners(results: Path, bed: str) -> list[str]:
    """The best trial of each method; by its plain name where that is the method's own setting."""
    tried, (_, _, found) = trials_of(bed), trial_areas(results, bed)
    best = {method: max(own, key=lambda name: own[name]) for method, own in found.items()}
    return [m if best[m] == tried[m][0] else best[m] for m in TRIALS if m in best]


def trials_table(results: Path, bed: str) -> list[str]:
    """The area of every trial, one row a method, the largest in bold."""
    paths, (low, high), found = trial_areas(results, bed)
    said = (
        f"{paths.seeds} seed, {len(paths.base)} problems x {paths.n} samples, "
        f"{min(paths.steps.values())} steps; mean Pass@{paths.n} over Pass@1 from "
        f"{100 * low:.1f} to {100 * high:.1f}."
    )
    rows = [["method", "key", *["value: area"] * 3], ["---"] * 5]
    for method in sorted(found, key=list(TRIALS).index):
        own, cells = found[method], []
        for name in sorted(own, key=lambda name: float(name.rpartition("=")[2])):
            cell = f"{name.rpartition('=')[2]}: {100 * own[name]:.1f}"
            cells.append(f"**{cell}**" if own[name] == max(own.values()) else cell)
        key = next(iter(own)).split(":")[1].partition("=")[0]
        rows.append([f"`{method}`", f"`{key}`", *cells])
    return [said, "", *(f"| {' | '.join(row)} |" for row in rows)]


def gap_cell(gap: Gap) -> str:
    """A difference in points, its interval, the verdict."""
    return "{:+.1f} [{:+.1f}, {:+.1f}] {}".format(*(100 * v for v in gap.mean), gap.verdict)


def verdict(results: Path, bed: str, reference: str) -> None:
    """The frontier of the methods that have all seeds, against one of them (algo/frontier.py)."""
    paths = paths_of(results, bed)
    found = frontier(paths.base, paths.right, paths.n, reference)
    low, high = (100 * x for x in found.range)
    print(
        f"{paths.seeds} seeds, {len(paths.base)} problems; base {100 * found.base[0]:.1f} / "
        f"{100 * found.base[1]:.1f}; area over Pass@1 from {low:.1f} to {high:.1f}"
    )
    for one in sorted(found.standings, key=lambda s: -s.area[0]):
        x, y = one.points[-1]
        print(
            f"{one.name:18s} last {100 * x:4.1f} / {100 * y:4.1f}  area {_cell(one.area)}  "
            f"Pass@1 gained without loss {_cell(one.free_gain)}"
        )
    for gap in sorted(found.gaps, key=lambda g: -g.mean[0]):
        at = ", ".join(_cell(value) for value in gap.at)
        print(
            f"{gap.name:18s} minus {gap.minus}: {_cell(gap.mean)} {gap.verdict}; at quartiles {at}"
        )


def _cell(value: tuple[float, float, float]) -> str:
    return "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * v for v in value))


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bed", choices=BEDS)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0-7")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, default=24 * 60)
    parser.add_argument("--set", dest="more", action="append", default=[])
    parser.add_argument("--skip", type=int, default=0, help="leave out the first so many problems")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--runs", type=Path, help="keep the run folders in this one")
    parser.add_argument("--trials", action="store_true", help="the settings of TRIALS")
    parser.add_argument("--best", action="store_true", help="print which setting had most area")
    parser.add_argument("--tuned", type=Path, help="every method as it was best in this file")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--frontier", metavar="METHOD", help="print the verdict against a method")
    parser.add_argument("--markdown", metavar="A,B", help="print a table against these methods")
    told = parser.parse_args()
    results = told.results or ROOT / "bench" / "results" / f"bed_{told.bed}.jsonl"
    if told.best:
        return print("\n".join(trials_table(results, told.bed)))
    if told.frontier:
        return verdict(results, told.bed, told.frontier)
    if told.markdown:
        return print("\n".join(markdown(results, told.bed, told.markdown.split(","))))
    if told.show:
        return print("\n".join(shown(results, told.bed)))
    first, _, last = told.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    methods = told.methods.split(",")
    if told.tuned:
        methods = winners(told.tuned, told.bed)
    elif told.trials:
        methods = [name for own in trials_of(told.bed).values() for name in own]
    done = {key for key, line in known(results).items() if line["ended"]}
    todo = [(m, s) for s, m in product(seeds, methods) if (told.bed, m, s) not in done]
    deadline, lock = time.time() + 60 * told.minutes, Lock()

    def work(job: tuple[str, int]) -> None:
        if time.time() > deadline - 20:
            return
        line = one(told.bed, *job, told.more, told.skip, deadline, told.runs)
        with lock, results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(*job, line["how"], line["seconds"], flush=True)

    with ThreadPoolExecutor(told.jobs) as pool:
        list(pool.map(work, todo))
    print("\n".join(shown(results, told.bed)))


if __name__ == "__main__":
    main()
