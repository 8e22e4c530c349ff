"""Tables in README.md and docs/ that are made from stored results, so that they cannot drift.

python -m bench.tables            writes them
python -m bench.tables --check    exit code 1 where one is stale

Such a table stands between two comments. The first says what it is made of, the second is
`<!-- end -->`:

<!-- bench.beds BED --markdown A,B -->       what that command prints
                                             (also with --seeds A-B, then --results FILE)
<!-- bench.beds BED --show -->               the same (also with names, A,B, and --results FILE)
<!-- bench.beds BED --by-k A,B -->           the same (also with --seeds A-B)
<!-- bench.beds BED --best --results FILE --> the same
<!-- ends: BED name; BED name | METHOD name; METHOD name -->
                                             where methods end on some beds, with names to print
<!-- kept: BED name; BED name | METHOD name -->
                                             the same of mixes whose share chooses itself
<!-- FILE.json: A 1, A 2, A | B | C -->      paths of methods in docs/results/FILE.json, in the
                                             order of training; the first path is the reference
<!-- FILE.json means: A, B | C, D -->        the same rule on stored means, C and D against A and B:
                                             no counts, so no intervals and no verdict
<!-- bench.long_floor WORK WORK -->         what that command prints
<!-- sps doctor: ARGUMENTS | ARGUMENTS -->   memory and hours that `sps doctor` says
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from bench import long_floor
from bench.bed_tables import by_k, ends, gap_cell, kept, markdown, shown, trials_table
from bench.beds import ROOT, seeds_of
from sps.algo.frontier import envelope, frontier
from sps.cli import app

_TABLE = re.compile(r"<!-- ([^>]+) -->\n.*?<!-- end -->", re.DOTALL)
_FILE = r"(?: --results (\S+))?"
_BED = re.compile(r"bench\.beds (\w+) --markdown (\S+)(?: --seeds (\S+))?" + _FILE)
_TRIALS = re.compile(r"bench\.beds (\w+) --best --results (\S+)")
_BY_K = re.compile(r"bench\.beds (\w+) --by-k (\S+)(?: --seeds (\S+))?")
_SHOWN = re.compile(r"bench\.beds (\w+) --show(?: ([^-\s]\S*))?" + _FILE)
_ENDS = re.compile(r"ends: ([^|]+) \| (.+)")
_KEPT = re.compile(r"kept: ([^|]+) \| (.+)")
_STORED = re.compile(r"(\w+\.json): (.+)")
_MEANS = re.compile(r"(\w+\.json) means: (.+) \| (.+)")
_FLOOR = re.compile(r"bench\.long_floor (.+)")
_DOCTOR = re.compile(r"sps doctor: (.+)")
_SAID = r"([\d.]+) GiB  in all: .*?full length: ([\d.]+) s .*?; (\d+) steps: ([\d.]+) h"


def filled(text: str, root: Path = ROOT) -> str:
    """A page with its tables as the results have them."""

    def table(found: re.Match[str]) -> str:
        if bed := _BED.fullmatch(found[1]):
            seeds = seeds_of(bed[3]) if bed[3] else None
            lines = markdown(_results(root, bed[1], bed[4]), bed[1], bed[2].split(","), seeds)
        elif bed := _BY_K.fullmatch(found[1]):
            results = _results(root, bed[1], None)
            lines = by_k(results, bed[1], bed[2].split(","), seeds_of(bed[3]) if bed[3] else None)
        elif bed := _TRIALS.fullmatch(found[1]):
            lines = trials_table(root / bed[2], bed[1])
        elif bed := _SHOWN.fullmatch(found[1]):
            asked = bed[2].split(",") if bed[2] else None
            lines = shown(_results(root, bed[1], bed[3]), bed[1], asked)
        elif asked := _ENDS.fullmatch(found[1]):
            lines = ends(root / "bench" / "results", *named(asked))
        elif asked := _KEPT.fullmatch(found[1]):
            lines = kept(root / "bench" / "results", *named(asked))
        elif stored := _STORED.fullmatch(found[1]):
            paths = [[name.strip() for name in path.split(",")] for path in stored[2].split("|")]
            lines = compared(root / "docs" / "results" / stored[1], paths)
        elif means := _MEANS.fullmatch(found[1]):
            names = [[name.strip() for name in part.split(",")] for part in means.groups()[1:]]
            lines = estimated(root / "docs" / "results" / means[1], *names)
        elif asked := _FLOOR.fullmatch(found[1]):
            lines = long_floor.table(asked[1].split())
        elif asked := _DOCTOR.fullmatch(found[1]):
            lines = costs([line.strip() for line in asked[1].split("|")])
        else:
            raise SystemExit(f"<!-- {found[1]} -->: not a table that bench.tables can make")
        return f"<!-- {found[1]} -->\n\n" + "\n".join(lines) + "\n\n<!-- end -->"

    return _TABLE.sub(table, text)


def _results(root: Path, bed: str, file: str | None) -> Path:
    return root / (file or f"bench/results/bed_{bed}.jsonl")


def named(asked: re.Match[str]) -> Iterator[dict[str, str]]:
    """Names to print of some beds, and of some methods."""
    for part in asked.groups():
        yield dict(one.strip().split(" ", 1) for one in part.split(";"))


def compared(file: Path, paths: list[list[str]]) -> list[str]:
    """The frontier of some methods of a comparison, from their right samples by question; a path is
    named by its last point."""
    methods = json.loads(file.read_text())["methods"]

    def right(name: str) -> np.ndarray:
        return np.array([[int(c) for c in seed.split()] for seed in methods[name]["correct"]])

    n, reference = methods["base"]["n"], paths[0][-1]
    counts = {path[-1]: np.array([right(name) for name in path]) for path in paths}
    found = frontier(right("base"), counts, n, reference)
    gaps = {gap.name: gap_cell(gap) for gap in found.gaps}
    rows = [
        f"| path | Pass@1 / Pass@{n} | at equal Pass@1, minus {reference} |",
        "| --- | --- | --- |",
    ]
    for standing, path in zip(found.standings, paths, strict=True):
        points = ", ".join(f"{100 * x:.1f} / {100 * y:.1f}" for x, y in standing.points)
        rows.append(f"| {', '.join(path)} | {points} | {gaps.get(standing.name, '')} |")
    return rows


def estimated(file: Path, references: list[str], methods: list[str]) -> list[str]:
    """Gaps of paths that were stored as means over seeds, their first point the base's."""
    stored = json.loads(file.read_text())["validation"]
    paths, k = {}, 0
    for name, steps in stored.items():
        k = max(map(int, steps["0"]))
        points = [
            [scores["1"][0], scores[str(k)][0]] for _, scores in sorted(steps.items(), key=_at)
        ]
        paths[name] = np.array(points)
    heads = ["path", *(f"Pass@{k} at equal Pass@1, minus {name}" for name in references)]
    rows = [heads, ["---"] * len(heads)]
    for name in methods:
        pairs = [(paths[name], paths[other]) if other != name else None for other in references]
        rows.append([name, *(_mean_gap(*pair) if pair else "" for pair in pairs)])
    return [f"| {' | '.join(row)} |" for row in rows]


def _at(item: tuple[str, Any]) -> int:
    return int(item[0])


def _mean_gap(ours_P2: np.ndarray, other_P2: np.ndarray) -> str:
    low, high = other_P2[0, 0], min(ours_P2[:, 0].max(), other_P2[:, 0].max())
    at_G = np.minimum(np.linspace(low, high, 33), high)
    gap_G = envelope(ours_P2[None], at_G[None])[0] - envelope(other_P2[None], at_G[None])[0]
    mean = float(np.trapezoid(gap_G, dx=1 / 32))
    return f"{100 * mean:+.1f}, from Pass@1 {100 * low:.1f} to {100 * high:.1f}"


def costs(asked: list[str]) -> list[str]:
    """What `sps doctor` says of some recipes, each on GPUs that its arguments name."""
    rows = [
        "| `sps doctor` | GiB of each GPU | s a step | steps | GPU hours |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for line in asked:
        said = CliRunner().invoke(app, ["doctor", *line.split()]).output
        (found,) = re.findall(_SAID, said, re.DOTALL)
        gib, seconds, steps, hours = found
        gpus = int(line.split()[line.split().index("--gpus") + 1])
        cells = [f"`{line}`", gib, seconds, steps, f"{gpus * float(hours):.0f}"]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def main() -> None:
    """Write the tables, or say whether one is stale."""
    stale = []
    os.chdir(ROOT)  # where recipes are
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        if (now := filled(text)) != text:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(now, encoding="utf-8")
                print(page)
    if "--check" in sys.argv:
        sys.exit(", ".join(stale) or 0)


if __name__ == "__main__":
    main()
