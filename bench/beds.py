"""Who keeps Pass@k: every method on a bed of its own, many seeds, one line of results a run.

python -m bench.beds BED [--methods A,B] [--seeds 0-7] [--jobs N] [--minutes M] [--set key=value]
                         [--results FILE] [--runs FOLDER]

Runs side by side, the first seed of every method before the second of any. A run that is in the
results file is not run again; one that the time limit cut short, or that went with the machine, is
there with the steps that it was validated at, and is run again next time. A line holds, for each
validated step, how many of the samples of each held-out problem were right: all that a frontier
needs (algo/frontier.py).
A method may be given with settings of its own, `grpo_kl:rl.algorithm.beta=0.15`; `memory_mixed` is
memory's last weights mixed with the base's, `memory_tempered` goes on from them at other sampling
temperatures, `memory_mixed_tempered` does both (one run makes all its lines), and `base_tempered`
is the base. `--trials`
runs those of TRIALS, as many for each method, `--best` says which had the largest area on
validation problems, and `--tuned FILE` runs those.
`python -m bench.beds BED --show [A,B]` prints Pass@k by step, `--by-k A,B` for every k, `--frontier
METHOD` every method's frontier against that of one, `--markdown A,B` a table of docs/, against the
frontiers of A and B (`python -m bench.tables` writes it there); `--seeds` of these three leaves the
others out. `--lines` prints the stored lines of some methods and seeds: a file
for `sps report`.
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
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, product
from pathlib import Path
from threading import Lock
from typing import Any

from bench.bed_tables import (
    by_k,
    known,
    markdown,
    shown,
    tempered_file,
    trials_table,
    tuned_file,
    verdict,
    winners,
)
from bench.methods import BASE, BEDS, METHODS, settings_of, trained, trials_of, way
from sps.build import settle_dtype
from sps.config.load import load_recipe
from sps.config.recipe import Recipe
from sps.run.folder import checkpoint_path

ROOT = Path(__file__).parents[1]
_EVERY = 10.0  # seconds between looks at a run


def settings(bed: str, names: list[str], seed: int, more: list[str]) -> list[str]:
    """What the run sets in the bed's recipe; the names are a method, its mixes, or both."""
    _, lr, own = BEDS[bed]
    method = trained(names[0])
    sets = [f"seed={seed}", f"name={method.split(':')[0]}", f"rl.lr={lr}", *own]
    if method not in names:  # no step but the last is of a mix's path
        sets += ["evaluation.every=100000"]
    sets += ["checkpoint.every=0" if names == [method] else "checkpoint.every=100000"]  # the last
    return [*sets, "evaluation.final=false", *settings_of(bed, method), *more]


def command(bed: str, folder: Path, sets: list[str]) -> list[str]:
    """The run as its users would type it."""
    given = [part for item in sets for part in ("--set", item)]
    recipe = str(ROOT / BEDS[bed][0])
    return [sys.executable, "-m", "sps", "train", recipe, "--out", str(folder), *given]


def one(
    bed: str,
    names: list[str],
    seed: int,
    told: argparse.Namespace,
    deadline: float,
    note: Callable[[list[dict[str, Any]]], None] = lambda lines: None,
) -> list[dict[str, Any]]:
    """Run it, and read what was validated: a line for each name. The folder is kept in `told.runs`,
    if that is given; one that is there, with its last checkpoint, is not trained again. `note` is
    given what there is after each validation, for a machine that may go."""
    with tempfile.TemporaryDirectory() as place:
        method = trained(names[0])
        name = f"{bed}_{method.replace(':', '_')}_{seed}"
        folder, began = (told.runs or Path(place)) / name, time.time()
        log, code, sets = Path(place) / "log", 0, settings(bed, names, seed, told.more)
        places, seen = ("model.path=", "task.data="), 0  # of one machine
        given = [item for item in told.more if not item.startswith(places)]

        def read(how: str) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
            line = {"bed": bed, "method": method, "seed": seed, "ended": how == "ended"}
            line |= {"how": how, "seconds": round(time.time() - began, 1), "set": given}
            memory = any(item.startswith("irl.memory.") for item in settings_of(bed, method))
            if memory and how != "going on":  # its record may be half written
                line["memory_share"] = _memory_share(folder)
            found = {int(p.stem[-6:]): json.loads(p.read_text()) for p in _validations(folder)}
            return line, found

        def tick() -> None:
            nonlocal seen
            if method in names and len(_validations(folder)) > seen:
                line, steps = read("going on")
                seen = len(steps)
                note([line | _right(steps, told.skip)])

        if not _kept(folder, load_recipe(ROOT / BEDS[bed][0], sets)):
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was cut short
            code = _run(command(bed, folder, sets), log, deadline, tick)
        line, steps = read(_how(code))
        lines = [line | _right(steps, told.skip)] if method in names else []
        if others := [name for name in names if name != method]:
            found = Path(place) / "ends.json"
            asked = sorted({way(name) for name in others} - {""})
            ask = [sys.executable, "-m", "bench.bed_ends", str(folder), str(found), *asked]
            code = code or _run(ask, log, deadline)
            ends = json.loads(found.read_text()) if code == 0 else {}
            line |= {"ended": code == 0, "how": _how(code)}
            line["seconds"] = round(time.time() - began, 1)
            lines += [line | {"method": name} | _used(name, steps, ends, told) for name in others]
        return lines


def _how(code: int | None) -> str:
    return "ended" if code == 0 else "cut short" if code is None else "failed"


def _kept(folder: Path, recipe: Recipe) -> bool:
    """Whether a run of this recipe is here that has ended, with its last weights."""
    if not checkpoint_path(folder, recipe.rl.steps).exists():
        return False
    here = load_recipe(folder / "recipe.yaml")
    same = {"checkpoint": recipe.checkpoint}
    return here.model_copy(update=same) == settle_dtype(recipe, folder)


def _used(
    name: str,
    steps: dict[int, dict[str, Any]],
    ends: dict[str, dict[str, dict[str, Any]]],
    told: argparse.Namespace,
) -> dict[str, Any]:
    """The path of a run's last weights, mixed, at other temperatures, or both."""
    if not steps:
        return {"right": {}}
    mixed, last = way(name).startswith("mixed"), max(steps)
    own = f"{load_recipe(ROOT / BEDS[told.bed][0]).evaluation.temperature:g}"
    path = {step: steps[step] for step in (min(steps), last)} if mixed else dict(steps)
    if trained(name) == BASE:
        path, last = {0: steps[0]}, 0
    heats = {round(float(share) * last): found for share, found in ends.items()}
    if mixed:
        path |= {step: found[own] for step, found in heats.items() if own in found}
    line = _right(path, told.skip)
    if "_tempered" in name:
        line["tempered"] = {
            step: _right({heat: found[heat] for heat in found if heat != own}, told.skip)["right"]
            for step, found in heats.items()
            if (mixed or step == last) and len(found) > 1
        }
    return line


def _run(
    typed: list[str], log: Path, deadline: float, tick: Callable[[], None] = lambda: None
) -> int | None:
    """How it ended: None where its time was up. Every few seconds `tick` is called."""
    with log.open("w") as file:
        process = subprocess.Popen(typed, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT)
        code = None
        while code is None:
            try:
                code = process.wait(min(_EVERY, max(1.0, deadline - time.time())))
            except subprocess.TimeoutExpired:
                tick()
                if time.time() >= deadline:
                    process.kill()
                    process.wait()
                    return None
    if code:
        print(log.read_text()[-2000:], file=sys.stderr, flush=True)
    return code


def _right(steps: Mapping[Any, dict[str, Any]], skip: int) -> dict[str, Any]:
    """How many samples of each problem were right, by step, or by temperature."""
    told: dict[str, Any] = {"n": next(iter(steps.values()))["n"]} if steps else {}
    told["right"] = {
        step: [int(count) for _, count in sorted([*own["per_question"].items()][skip:])]
        for step, own in sorted(steps.items())
    }
    return told


def _memory_share(folder: Path) -> float | None:
    """Seconds of memory in a hundred of the RL steps', the first ten left out."""
    path = folder / "metrics.jsonl"
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    steps = [line for line in lines if "seconds/memory" in line and "seconds/update" in line][10:]
    whole = sum(v for line in steps for key, v in line.items() if key.startswith("seconds/"))
    return round(100 * sum(line["seconds/memory"] for line in steps) / whole, 2) if whole else None


def decisive(settings: list[str]) -> list[str]:
    """Those that make other runs; the rest says where things are, or how many at a time."""
    makes = ("rl.lr", "rl.algorithm.", "irl.", "rollout.n", "rollout.prompts", "rollout.temp")
    return sorted(item for item in settings if item.startswith(makes))


def colder(results: Path, methods: list[str], seeds: Collection[int]) -> list[dict[str, Any]]:
    """Lines of the base at other temperatures: the same policy for all seeds, so its draws, of the
    file beside the results, stand for these in turn."""
    beside = known(tempered_file(results))
    draws = [v for (_, method, _), v in beside.items() if trained(method) == BASE]
    asked = [method for method in methods if trained(method) == BASE]
    pairs = zip(seeds, cycle(draws), strict=False) if asked else ()
    return [line | {"seed": seed} for seed, line in pairs]


def drop_shorter(path: Path) -> None:
    """Of a run that is there several times, as while it went on, the longest line stays."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    longest = {(v["bed"], v["method"], v["seed"]): v for v in sorted(lines, key=_length)}
    draft = path.with_name(f"{path.name}.draft")  # whole or not at all
    draft.write_text("".join(json.dumps(v) + "\n" for v in lines if v in longest.values()))
    draft.replace(path)


def _length(line: dict[str, Any]) -> int:
    return len(line["right"])


def _validations(folder: Path) -> list[Path]:
    return sorted((folder / "evals").glob("validation-*.json"))


def seeds_of(text: str) -> list[int]:
    """`2-4`, one alone, or several of these: `0-3,5`."""
    parts = (part.partition("-") for part in text.split(","))
    return [seed for first, _, last in parts for seed in range(int(first), int(last or first) + 1)]


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bed", choices=BEDS)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", help="0-7 by default; of tables, all that are there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, default=24 * 60)
    parser.add_argument("--set", dest="more", action="append", default=[])
    parser.add_argument("--skip", type=int, default=0, help="leave out the first so many problems")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--runs", type=Path, help="keep the run folders in this one")
    parser.add_argument("--trials", action="store_true", help="the settings of TRIALS")
    parser.add_argument("--best", action="store_true", help="print which setting had most area")
    parser.add_argument("--tuned", type=Path, help="every method as it was best in this file")
    parser.add_argument("--show", nargs="?", const="", metavar="A,B", help="Pass@k by step")
    parser.add_argument("--frontier", metavar="METHOD", help="print the verdict against a method")
    parser.add_argument("--markdown", metavar="A,B", help="print a table against these methods")
    parser.add_argument("--by-k", metavar="A,B", help="print Pass@k at the last step for every k")
    parser.add_argument("--lines", action="store_true", help="print the stored lines")
    told = parser.parse_args()
    only = seeds_of(told.seeds) if told.seeds else None
    results = told.results or ROOT / "bench" / "results" / f"bed_{told.bed}.jsonl"
    if told.lines:
        of, seeds = told.methods.split(","), only or range(8)
        kept = [v for (_, m, s), v in known(results).items() if m in of and s in seeds]
        return print("\n".join(map(json.dumps, kept + colder(results, of, seeds))))
    if told.best:
        return print("\n".join(trials_table(results, told.bed)))
    if told.frontier:
        return verdict(results, told.bed, told.frontier, only)
    if told.markdown:
        return print("\n".join(markdown(results, told.bed, told.markdown.split(","), only)))
    if told.by_k:
        return print("\n".join(by_k(results, told.bed, told.by_k.split(","), only)))
    if told.show is not None:
        return print(
            "\n".join(shown(results, told.bed, told.show.split(",") if told.show else None))
        )
    seeds = only or range(8)
    methods = told.methods.split(",")
    if told.tuned:
        methods = winners(told.tuned, told.bed)
    elif told.trials:
        methods = [name for own in trials_of(told.bed).values() for name in own]
    there = {key: line for key, line in known(results).items() if key[0] == told.bed}
    if any(decisive(line["set"]) != decisive(told.more) for line in there.values()):
        raise SystemExit(f"{results}: has runs with another --set; give another --results")
    done = {key for key, line in there.items() if line["ended"]}
    todo: dict[tuple[str, int], list[str]] = {}
    for seed, method in product(seeds, methods):
        if (told.bed, method, seed) not in done:
            todo.setdefault((trained(method), seed), []).append(method)
    deadline, lock = time.time() + 60 * told.minutes, Lock()

    def work(job: tuple[tuple[str, int], list[str]]) -> None:
        if time.time() > deadline - 20:
            return
        (method, seed), names = job
        file = tuned_file(results) if ":" in method and not told.results else results

        def note(lines: list[dict[str, Any]]) -> None:
            with lock, file.open("a") as out:
                out.writelines(json.dumps(line) + "\n" for line in lines)

        lines = one(told.bed, names, seed, told, deadline, note)
        note(lines)
        for line in lines:
            print(line["method"], seed, line["how"], line["seconds"], flush=True)

    with ThreadPoolExecutor(told.jobs) as pool:
        list(pool.map(work, todo.items()))
    for path in {results, tuned_file(results)}:
        if path.exists():
            drop_shorter(path)
    print("\n".join(shown(results, told.bed)))


if __name__ == "__main__":
    main()
