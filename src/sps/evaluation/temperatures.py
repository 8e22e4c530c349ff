"""A model at several sampling temperatures: what sharpening gives without training."""

from __future__ import annotations

from collections.abc import Mapping

from sps.algo.passk import Interval, paired_rows
from sps.evaluation.scores import Scores
from sps.evaluation.tables import cell, shown_ks

Heats = Mapping[float, Mapping[str, Scores]]  # temperature -> benchmark -> scores; the usual first


def temperature_table(title: str, found: Heats) -> str:
    """For each benchmark a row a temperature, less the first one paired by question, and what
    training has to beat."""
    first, *others = found
    lines = [f"# {title} at other temperatures"]
    for name, usual in found[first].items():
        ks = (1, *shown_ks(usual.n)) if usual.n > 1 else (1,)
        ends = sorted({1, usual.n})
        head = [name, *(f"Pass@{k}" for k in ks), *(f"Pass@{k} - T = {first:g}" for k in ends)]
        lines += ["", f"| {' | '.join(head)} |", f"| --- {'| ---: ' * (len(head) - 1)}|"]
        rows = {heat: _less(usual, found[heat][name]) for heat in others}
        for heat in found:
            cells = [cell(found[heat][name].pass_at_k(k)) for k in ks]
            cells += [_points(rows[heat][k]) if heat in rows else "" for k in ends]
            lines.append(f"| T = {heat:g} | {' | '.join(cells)} |")
        lines += ["", _advice(name, first, usual, {heat: found[heat][name] for heat in others})]
    lines += ["", "Differences are in points, paired by question, with 95 % intervals for each."]
    return "\n".join(lines) + "\n"


def _less(usual: Scores, other: Scores) -> dict[int, tuple[Interval, str]]:
    """Differences of Pass@1 and Pass@n, each with its verdict."""
    rows = paired_rows([usual.counts], [other.counts], sorted({1, usual.n}))
    return {row["k"]: (tuple(row["delta"]), row["verdict"]) for row in rows}


def _advice(name: str, first: float, usual: Scores, others: Mapping[float, Scores]) -> str:
    """The temperature with the highest Pass@1 of those whose Pass@n is not measurably lower."""
    rows = {heat: _less(usual, scores) for heat, scores in others.items()}
    kept = {heat: row for heat, row in rows.items() if row[usual.n][1] != "worse"}
    best = max(kept, key=lambda heat: kept[heat][1][0][0], default=None)
    if best is None or kept[best][1][1] != "better":
        return (
            f"{name}: none of these has measurably more Pass@1 than T = {first:g} without "
            f"measurably less Pass@{usual.n}."
        )
    gained, top = kept[best][1][0], others[best].pass_at_k(1)[0]
    lost = f", with Pass@{usual.n} {kept[best][usual.n][1]}" if usual.n > 1 else ""
    return (
        f"{name}: T = {best:g} has a Pass@1 of {100 * top:.1f}, {_points((gained, ''))} over "
        f"T = {first:g}{lost}, and no training. A trained model is worth what it adds to this."
    )


def _points(found: tuple[Interval, str]) -> str:
    (delta, low, high), _ = found
    return f"{100 * delta:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
