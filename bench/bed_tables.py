"""What `bench.beds` measured, as tables: Pass@k by step, frontiers, trials."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from bench.methods import BASE, METHODS, TRIALS, place_of, settings_of, trained, trials_of
from sps.algo.frontier import NO_RANGE, Gap, areas, frontier
from sps.algo.passk import mean_interval, pass_at_k
from sps.config.recipe import SHARES


def tuned_file(results: Path) -> Path:
    """Where runs of methods with other settings than their own are: not in a bed's figure."""
    return results.with_stem(f"{results.stem}_tuned")


def tempered_file(results: Path) -> Path:
    """Where the base and methods at other temperatures are: rivals of another kind."""
    return results.with_stem(f"{results.stem}_tempered")


def known(results: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The longest line of each run."""
    files = [path for path in (results, tuned_file(results)) if path.exists()]
    lines = (json.loads(line) for path in files for line in path.read_text().splitlines())
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for line in lines:
        key = line["bed"], line["method"], line["seed"]
        if key not in found or len(line["right"]) >= len(found[key]["right"]):
            found[key] = line
    return found


def counted(seeds: int) -> str:
    """In words."""
    return f"{seeds} seed{'s' * (seeds != 1)}"


def shown(results: Path, bed: str, methods: list[str] | None = None) -> list[str]:
    """Pass@1 / Pass@32 / Pass@n of each method by step, means over seeds, as a table; of methods at
    other temperatures, by these, at the last step."""
    if methods and all("_tempered" in name for name in methods):
        return by_temperature(results, bed, methods)
    means: dict[str, dict[int, list[list[float]]]] = {}
    ks: list[int] = []
    for (of, method, _), line in known(results).items():
        asked = of == bed and (methods is None or method in methods)
        for step, right in line["right"].items() if asked else ():
            ks = sorted({1, min(32, line["n"]), line["n"]})
            scores = [100 * float(pass_at_k(np.array(right), line["n"], k).mean()) for k in ks]
            means.setdefault(method, {}).setdefault(int(step), []).append(scores)
    steps = sorted({step for own in means.values() for step in own})
    heads = [f"step {step}" for step in steps]
    if steps[-1:] > [0] and all("_mixed" in name for name in means):  # where its share is
        heads = [f"{1 - step / steps[-1]:g} of the base" for step in steps]
    rows = [["Pass@" + " / ".join(map(str, ks)), *heads]]
    rows.append(["---"] * len(rows[0]))
    for method in sorted(means, key=lambda name: (place_of(name), name)):
        own = means[method]
        rows.append([f"`{method}`", *(_means(own.get(step, [])) for step in steps)])
    return [f"| {' | '.join(row)} |" for row in rows]


def by_temperature(results: Path, bed: str, methods: list[str]) -> list[str]:
    """The same at the last step, by sampling temperature, the run's own being 1."""
    found: dict[str, dict[float, list[list[float]]]] = {}
    ks: list[int] = []
    for (of, method, _), line in known(results).items():
        if of != bed or method not in methods or not line["ended"]:
            continue
        last = max(line["right"], key=int)
        heats = {"1": line["right"][last], **line["tempered"][last]}
        ks = sorted({1, min(32, line["n"]), line["n"]})
        for heat, right in heats.items():
            scores = [100 * float(pass_at_k(np.array(right), line["n"], k).mean()) for k in ks]
            found.setdefault(method, {}).setdefault(float(heat), []).append(scores)
    heats = sorted({heat for own in found.values() for heat in own}, reverse=True)
    rows = [["Pass@" + " / ".join(map(str, ks)), *(f"T = {heat:g}" for heat in heats)]]
    rows.append(["---"] * len(rows[0]))
    for method in methods:
        cells = (_means(found.get(method, {}).get(heat, [])) for heat in heats)
        rows.append([f"`{method}`", *cells])
    return [f"| {' | '.join(row)} |" for row in rows]


def ends(folder: Path, beds: dict[str, str], names: dict[str, str]) -> list[str]:
    """Pass@1 / Pass@n of the base and of methods at their last step, one column a bed: means over
    all seeds, in brackets how many. `METHOD@0.7`: a mix with so much of what was trained;
    `base_tempered~0.4`: the base at another sampling temperature, of bed_BED_tempered.jsonl."""
    rows = [["Pass@1 / Pass@128", *beds.values()], ["---"] * (len(beds) + 1)]
    rows += [[shown] for shown in ["base", *names.values()]]
    for bed in beds:
        lines = known(folder / f"bed_{bed}.jsonl").values()
        runs = [line for line in lines if line["bed"] == bed and line["ended"]]
        rows[2].append(_base(runs, {name.partition("@")[0] for name in names}))
        for row, name in zip(rows[3:], names, strict=True):
            if "~" in name:
                row.append(_heated(tempered_file(folder / f"bed_{bed}.jsonl"), *name.split("~")))
                continue
            method, _, share = name.partition("@")
            own = [run for run in runs if run["method"] == method]
            row.append(f"{_mean(own, float(share or 1))} ({len(own)})" if own else "")
    return [f"| {' | '.join(row)} |" for row in rows]


def _heated(results: Path, method: str, heat: str) -> str:
    """Pass@1 / Pass@n of what a method's runs end with at a sampling temperature, and how many."""
    runs = [line for line in known(results).values() if line["method"] == method and line["ended"]]
    scores = []
    for run in runs:
        right_Q = np.array(run["tempered"][max(run["right"], key=int)][heat])
        scores.append([100 * pass_at_k(right_Q, run["n"], k).mean() for k in (1, run["n"])])
    means = " / ".join(f"{value:.1f}" for value in np.mean(scores, axis=0)) if scores else ""
    return f"{means} ({len(runs)})" if scores else ""


def _base(runs: list[dict[str, Any]], methods: Collection[str]) -> str:
    """Pass@1 / Pass@n of the base, as the runs of these methods sampled it."""
    return _mean([run for run in runs if run["method"] in methods], 0.0)


def _mean(runs: list[dict[str, Any]], share: float) -> str:
    """Pass@1 / Pass@n where a share of the steps is done."""
    scores = []
    for run in runs:
        right_Q = np.array(run["right"][str(round(share * max(map(int, run["right"]))))])
        scores.append([100 * pass_at_k(right_Q, run["n"], k).mean() for k in (1, run["n"])])
    return " / ".join(f"{value:.1f}" for value in np.mean(scores, axis=0))


def kept(folder: Path, beds: dict[str, str], names: dict[str, str]) -> list[str]:
    """Pass@1 / Pass@n of mixes whose share of the base is chosen as `checkpoint.mix: auto` does, on
    every other problem, and scored on those between; each half chooses once. Means over runs and
    halves, the base's mean share, how often none was enough, and how many runs."""
    rows = [["Pass@1 / Pass@128", *beds.values()], ["---"] * (len(beds) + 1)]
    rows += [[shown] for shown in ["base", *names.values()]]
    for bed in beds:
        lines = known(folder / f"bed_{bed}.jsonl").values()
        runs = [line for line in lines if line["bed"] == bed and line["ended"]]
        rows[2].append(_base(runs, names))
        for row, name in zip(rows[3:], names, strict=True):
            own = [run for run in runs if run["method"] == name]
            found = np.array([_chosen(run, half) for run in own for half in (0, 1)])
            if not len(own):
                row.append("")
                continue
            first, last, share, lost = found.mean(0)
            none = f", none enough {len(found) * lost:.0f}" if lost else ""
            row.append(f"{first:.1f} / {last:.1f}, share {share:.2f}{none} ({len(own)})")
    return [f"| {' | '.join(row)} |" for row in rows]


def _chosen(run: dict[str, Any], half: int) -> tuple[float, float, float, bool]:
    """Pass@1 and Pass@n on one half of the problems of the mix that the other half chose, the
    base's share in it, and whether none was enough."""
    right, n = {int(step): np.array(own) for step, own in run["right"].items()}, run["n"]
    share_of = {share: right[round((1 - share) * max(right))] for share in (0.0, *SHARES)}
    wanted = pass_at_k(right[0][half::2], n, n).mean()
    enough = [s for s, own in share_of.items() if pass_at_k(own[half::2], n, n).mean() >= wanted]
    share = min(enough, default=SHARES[-1])
    scored = share_of[share][1 - half :: 2]
    first, last = (100 * float(pass_at_k(scored, n, k).mean()) for k in (1, n))
    return first, last, share, not enough


def by_k(
    results: Path, bed: str, methods: list[str], seeds: Collection[int] | None = None
) -> list[str]:
    """Pass@k of the base and of methods at their last step, means over seeds, for every k."""
    paths = paths_of(results, bed, seeds)
    ks = [2**i for i in range(paths.n.bit_length()) if 2**i <= paths.n]
    ends = {"base": paths.base} | {f"`{name}`": paths.right[name][-1] for name in methods}
    rows = [["", *(f"k = {k}" for k in ks)], ["---", *["---:"] * len(ks)]]
    for name, right_SQ in ends.items():
        scores = (100 * pass_at_k(right_SQ, paths.n, k).mean() for k in ks)
        rows.append([name, *(f"{score:.1f}" for score in scores)])
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
    base: np.ndarray  # right ones [seeds, problems] before the first step
    right: dict[str, np.ndarray]  # of each method [steps, seeds, problems]
    steps: dict[str, int]  # the last one
    seconds: dict[str, float]  # of a run, mean over seeds
    fewer: dict[str, int]  # methods with fewer seeds, which are left out

    @property
    def seeds(self) -> int:
        """As many as each method has."""
        return len(self.base)


def paths_of(
    results: Path, bed: str, seeds: Collection[int] | None = None, colder: bool = False
) -> Paths:
    """What the frontier compares; with `seeds`, these alone, of the methods that have them all;
    with `colder` the base at other temperatures, too, if it is in the file beside the results.

    The base is as it was sampled in the runs of the first method: drawn once for all seeds, or
    anew for some where the engine draws otherwise by then. At other temperatures it was drawn for
    some seeds, and is the same policy for all: these draws count in turn."""
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    bases: dict[str, list[dict[str, Any]]] = {}
    beside = known(tempered_file(results)) if colder else {}
    own_base = {key: line for key, line in beside.items() if trained(key[1]) == BASE}
    for (of, method, seed), line in (known(results) | own_base).items():
        if of == bed and line["ended"] and trained(method) == BASE:
            bases.setdefault(method, []).append(line)
        elif of == bed and line["ended"] and (seeds is None or seed in seeds):
            runs.setdefault(method, {})[seed] = line
    if not runs:
        raise SystemExit(f"{results}: no run of {bed} has ended")
    count = max(map(len, runs.values()))
    most = next(own for own in runs.values() if len(own) == count)
    runs |= {method: dict(zip(most, cycle(own), strict=False)) for method, own in bases.items()}
    fewer = {method: len(own) for method, own in runs.items() if len(own) < count}
    whole = {method: own for method, own in runs.items() if method not in fewer}
    first = next(iter(whole.values()))
    base_SQ = np.array([first[seed]["right"]["0"] for seed in sorted(first)])
    right, last = {}, {}
    for method, own in whole.items():
        of_seeds = [points(own[seed]) for seed in sorted(own)]
        right[method] = np.array(of_seeds).swapaxes(0, 1)
        last[method] = max(map(int, next(iter(own.values()))["right"]))
    seconds = {m: float(np.mean([r["seconds"] for r in own.values()])) for m, own in whole.items()}
    n = next(iter(first.values()))["n"]
    return Paths(n, base_SQ, right, last, seconds, fewer)


def points(line: dict[str, Any]) -> list[list[int]]:
    """A run's counts in the order of its path, the base left out. Temperatures of a point are a way
    from it and back: from the run's own down, and up."""
    found = []
    for step in sorted(line["right"], key=int):
        own, heats = line["right"][step], line.get("tempered", {}).get(step, {})
        cold = [heats[heat] for heat in sorted(heats, key=float, reverse=True) if float(heat) < 1]
        hot = [heats[heat] for heat in sorted(heats, key=float) if float(heat) > 1]
        back = [own] if heats and (step != "0" or hot) else []
        found += [*([own] if step != "0" else []), *cold, *cold[-2::-1], *back]
        found += [*hot, *hot[-2::-1], *back] if hot else []
    return found


def markdown(
    results: Path, bed: str, references: list[str], seeds: Collection[int] | None = None
) -> list[str]:
    """One row a method: Pass@1 and Pass@n at the end, Pass@n at equal Pass@1 minus that of each
    reference, of the last also at three quarters of the range, seconds. The best against the last
    reference first."""
    paths = paths_of(results, bed, seeds, colder=BASE in map(trained, references))
    found = [frontier(paths.base, paths.right, paths.n, name) for name in references]
    gaps = [{gap.name: gap for gap in one.gaps} for one in found]
    order = {gap.name: gap.mean[0] for gap in found[-1].gaps}
    reach = {standing.name: standing.reach for standing in found[-1].standings}
    base = " / ".join(f"{100 * value:.1f}" for value in found[0].base)
    steps = " or ".join(map(str, sorted(set(paths.steps.values()) - {0})))
    said = (
        f"{counted(paths.seeds)}, {paths.base.shape[1]} problems x {paths.n} samples, after "
        f"{steps} steps; base: {base} (Pass@1 / Pass@{paths.n})."
    )
    if paths.fewer:
        left = ", ".join(f"`{name}` ({count})" for name, count in sorted(paths.fewer.items()))
        said += f" Left out, with fewer seeds: {left}."
    minus = [f"at equal Pass@1, minus `{name}`" for name in references]
    minus.append(f"at 3/4 of the range, minus `{references[-1]}`")
    heads = ["method", "Pass@1", f"Pass@{paths.n}", "highest Pass@1", *minus, "s a run"]
    rows = []
    for name in sorted(paths.right, key=lambda name: -order.get(name, 0.0)):
        at_end_SQ = paths.right[name][-1]
        ends = [mean_interval(pass_at_k(at_end_SQ, paths.n, k)) for k in (1, paths.n)]
        against = [gap_cell(own[name]) if name in own else "" for own in gaps]
        last = gaps[-1].get(name)
        known = last is not None and last.verdict != NO_RANGE
        against.append(_signed(last.at[-1]) if known else against[-1])
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
    known_as = {tuple(settings_of(bed, method)): method for method in METHODS}  # grpo_half
    named = {m: known_as.get(tuple(settings_of(bed, best[m])), best[m]) for m in best}
    return [m if best[m] == tried[m][0] else named[m] for m in TRIALS if m in best]


def trials_table(results: Path, bed: str) -> list[str]:
    """The area of every trial, one row a method, the largest in bold."""
    paths, (low, high), found = trial_areas(results, bed)
    said = (
        f"{paths.seeds} seed, {paths.base.shape[1]} problems x {paths.n} samples, "
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
    return NO_RANGE if gap.verdict == NO_RANGE else f"{_signed(gap.mean)} {gap.verdict}"


def _signed(value: tuple[float, float, float]) -> str:
    return "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * v for v in value))


def verdict(results: Path, bed: str, reference: str, seeds: Collection[int] | None = None) -> None:
    """The frontier of the methods that have all seeds, against one of them (algo/frontier.py)."""
    paths = paths_of(results, bed, seeds, colder=trained(reference) == BASE)
    found = frontier(paths.base, paths.right, paths.n, reference)
    low, high = (100 * x for x in found.range)
    print(
        f"{counted(paths.seeds)}, {paths.base.shape[1]} problems; base {100 * found.base[0]:.1f} / "
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
