"""Two evaluations against each other, paired by question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sps.algo.passk import paired_rows
from sps.errors import UserError
from sps.evaluation.claim import held
from sps.evaluation.scores import Scores, other_questions, read_scores
from sps.evaluation.tables import shown_ks, title_of
from sps.run.folder import RESULTS
from sps.run.reading import read_json


def read_results(path: str | Path) -> tuple[str, dict[str, Scores]]:
    """What was evaluated, and scores by benchmark, from an evaluation's folder or results.json."""
    file = Path(path).expanduser()
    file = file / RESULTS if file.is_dir() else file
    try:
        found = read_json(file)
        scores = {name: read_scores(summary) for name, summary in found["benchmarks"].items()}
        return title_of(found), scores
    except FileNotFoundError:
        raise UserError(
            f"--compare {path}: there is no results.json; give the folder that a finished "
            "`sps eval` wrote"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"--compare {path}: {file} is not a result of `sps eval` ({error})"
        ) from None


def compare(a: str | Path, b: str | Path) -> dict[str, Any]:
    """B less A on the questions they share, for Avg@n and for Pass@k."""
    (name_a, scores_a), (name_b, scores_b) = read_results(a), read_results(b)
    shared = [name for name in scores_a if name in scores_b]
    if not shared:
        raise UserError(
            f"--compare: {a} has {', '.join(scores_a)} and {b} has {', '.join(scores_b)}: no "
            "benchmark in common"
        )
    rows = {name: _rows(name, scores_a[name], scores_b[name]) for name in shared}
    for name in shared:
        asked = [_asked(path, name) for path in (a, b)]
        if all(asked) and asked[0] != asked[1]:
            raise UserError(
                f"--compare: the questions of {name} are not those of the other evaluation, by "
                "their texts; evaluate both on the same"
            )
    return {"a": name_a, "b": name_b, "benchmarks": rows}


def _asked(path: str | Path, name: str) -> str:
    """A digest of the questions of a benchmark; empty where it is not known."""
    file = Path(path).expanduser()
    folder = file.parent if file.name == RESULTS else file
    return str(held(folder).get("questions", {}).get(name) or "")


def _rows(name: str, a: Scores, b: Scores) -> list[dict[str, Any]]:
    if odd := other_questions(a, b):
        raise UserError(f"--compare: {name} was {odd}; evaluate both on the same")
    return [
        {
            "measure": "Avg" if row["k"] == 1 else f"Pass@{row['k']}",
            "a": list(a.pass_at_k(row["k"])),
            "b": list(b.pass_at_k(row["k"])),
            **row,
        }
        for row in paired_rows([a.counts], [b.counts], (1, *shown_ks(min(a.n, b.n))))
    ]


def compare_markdown(found: dict[str, Any]) -> str:
    """The comparison as a table; differences are in points, with their 95 % intervals."""
    lines = [
        f"A: {found['a']}  ",
        f"B: {found['b']}",
        "",
        "| benchmark | measure | A | B | B - A | p | B is |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for name, rows in found["benchmarks"].items():
        for row in rows:
            delta, low, high = (100 * v for v in row["delta"])
            before, after = 100 * row["a"][0], 100 * row["b"][0]
            lines.append(
                f"| {name} | {row['measure']} | {before:.1f} | {after:.1f} | "
                f"{delta:+.1f} [{low:+.1f}, {high:+.1f}] | {row['p']:.3f} | {row['verdict']} |"
            )
    lines += ["", "Intervals are over questions, of these two models; another training may differ."]
    return "\n".join(lines) + "\n"
