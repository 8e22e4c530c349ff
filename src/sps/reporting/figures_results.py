"""On the test questions: Pass@k, paired differences, and how different the right answers are."""

from __future__ import annotations

from typing import Any

from sps.reporting.blocks import (
    Cell,
    Figure,
    Table,
    axis,
    band,
    escape,
    line,
    percent,
    percent_axis,
    triple,
)
from sps.reporting.study import Study
from sps.reporting.style import marks

VERDICTS = {"better": "green", "worse": "red", "tied": "grey"}


def pass_curves(study: Study) -> Figure | None:
    """Pass@k against k with bands."""
    subjects = study.scored()
    if not subjects:
        return None
    style = marks(s.name for s in study.subjects)
    data: list[dict[str, Any]] = []
    ticks: set[int] = set()
    for s in subjects:
        ks, mark = sorted(s.curve), style[s.name]
        ticks.update(ks)
        mean, low, high = ([s.curve[k][i] for k in ks] for i in range(3))
        data.append(band(ks, low, high, mark.colour, s.name, 0.10 if len(subjects) > 3 else 0.16))
        dots = {"mode": "lines+markers", "marker": {"symbol": mark.symbol, "size": 7}}
        hover = {"hovertemplate": "%{y:.1%}", "legendgroup": s.name}
        data.append(line(ks, mean, s.name, mark.colour, mark.dash, **dots, **hover))
    shown = sorted(ticks)
    layout = {
        "xaxis": axis("k, samples a question", type="log", tickvals=shown, ticktext=shown),
        "yaxis": percent_axis("questions solved at least once"),
    }
    return Figure(
        "passk",
        "Pass@k",
        "Chance that at least one of k samples is right: the unbiased estimator, averaged over "
        "questions. Bands are 95 % intervals clustered by question (and by seed, where there are "
        "several). A curve that is higher at k = 1 but lower at large k has been squeezed."
        + _of_two_seeds(study),
        data,
        layout,
        height=430,
        wide=True,
    )


def pass_table(study: Study) -> Table | None:
    """The same numbers, to copy."""
    subjects = study.scored()
    if not subjects:
        return None
    ks = sorted({k for s in subjects for k in s.curve})
    rows: list[list] = []
    for s in subjects:
        cells = [percent(s.curve[k]) if k in s.curve else None for k in ks]
        seeds = s.facts.get("seeds") or max(len(s.counts), 1)
        rows.append([s.name, seeds, *cells])
    return Table(
        "passk-table",
        "Pass@k on the test questions, per cent",
        "Pass@1 is also Avg@n, the mean share of right samples. 95 % intervals under each value."
        + _of_two_seeds(study),
        ["method", "seeds", *(f"Pass@{k}" for k in ks)],
        rows,
    )


def _of_two_seeds(study: Study) -> str:
    """Why intervals of two seeds jump from one k to the next, where there are any."""
    if all(len(s.counts) != 2 for s in study.scored()):
        return ""
    return (
        " With two seeds an interval rests on a single difference (Student's t is 12.7): it is "
        "wide at a k where they differ, and narrow at one where they happen to agree. Three seeds "
        "and more are steadier."
    )


def paired_forests(study: Study) -> list[Figure]:
    """Differences with intervals, one figure for each method that others are compared with."""
    out = []
    for i, a in enumerate(dict.fromkeys(p["a"] for p in study.paired)):
        rows = [p for p in study.paired if p["a"] == a]
        ks = sorted({p["k"] for p in rows})
        shown = [p for p in rows if p["k"] in (ks[0], ks[-1])]
        out.append(_forest(f"paired-{i}", a, shown, ks[-1]))
    return out


def _forest(id: str, a: str, rows: list[dict[str, Any]], top: int) -> Figure:
    data = []
    labels = [f"{p['b']}, Pass@{p['k']}" for p in rows]
    for verdict, colour in VERDICTS.items():
        chosen = [
            (label, p) for label, p in zip(labels, rows, strict=True) if p["verdict"] == verdict
        ]
        if not chosen:
            continue
        chosen.sort(key=lambda one: one[1]["k"] != top)  # the first stands in the legend: filled
        mean, low, high = ([100 * p["delta"][j] for _, p in chosen] for j in range(3))
        ends = {
            "array": [h - m for h, m in zip(high, mean, strict=True)],
            "arrayminus": [m - v for m, v in zip(mean, low, strict=True)],
        }
        bars = {"type": "data", "symmetric": False, "thickness": 1.6, "width": 0, **ends}
        symbols = ["circle" if p["k"] == top else "circle-open" for _, p in chosen]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": mean,
                "y": [label for label, _ in chosen],
                "error_x": bars | {"color": f"@{colour}"},
                "marker": {"color": f"@{colour}", "size": 10, "symbol": symbols},
                "name": verdict,
                "hovertemplate": "%{x:+.2f} points<extra>%{y}</extra>",
            }
        )
    layout = {
        "xaxis": axis(f"difference to {escape(a)}, points", zeroline=True, zerolinecolor="@muted"),
        "yaxis": {"categoryorder": "array", "categoryarray": labels[::-1], "automargin": True},
        "hovermode": "closest",
        "showlegend": True,
    }
    note = (
        f"Each method minus {a}, question by question, so that hard and easy questions cancel out. "
        "'tied' where the 95 % interval holds 0. Filled marks are the largest k, open ones k = 1."
    )
    return Figure(
        id, f"Paired differences to {a}", note, data, layout, height=110 + 26 * len(labels)
    )


def paired_table(study: Study) -> Table | None:
    """Every paired difference, a row for each pair of methods."""
    if not study.paired:
        return None
    ks = sorted({int(p["k"]) for p in study.paired})
    pairs: dict[tuple[str, str], dict[int, dict]] = {}
    for p in study.paired:
        pairs.setdefault((p["b"], p["a"]), {})[int(p["k"])] = p
    ends = list(dict.fromkeys((ks[0], ks[-1])))
    rows: list[list] = []
    for (b, a), found in pairs.items():
        row: list = [b, a, *(percent(found[k]["delta"]) if k in found else None for k in ks)]
        for k in ends:
            p = found.get(k, {})
            row += [str(p.get("verdict", "")), _p_value(p.get("p"))]
        rows.append(row)
    return Table(
        "paired-table",
        "Paired differences in Pass@k, points",
        "Method minus reference, question by question. 'tied' where the 95 % interval holds 0; p "
        "is two-sided and not corrected for the number of comparisons.",
        ["method", "minus", *(f"k = {k}" for k in ks)]
        + [title for k in ends for title in (f"at k = {k}", "p")],
        rows,
    )


def diversity_table(study: Study) -> Table | None:
    """How many solutions the right answers are, and how sure the policy is of its answers."""
    rows: list[list[Cell]] = []
    for s in study.scored():
        pairs, greedy, token = (s.facts.get(f) for f in ("pcmd", "greedy_logprob", "token_logprob"))
        told = [triple(s.facts["distinct"])] if s.facts.get("distinct") else [None]
        told += [percent(pairs) if pairs else None, s.facts.get("pcmd_questions")]
        rows.append([s.name, *told, _number(greedy, 2), _number(token, 3)])
    if not any(cell is not None for row in rows for cell in row[1:]):
        return None
    return Table(
        "diversity",
        "Diversity and concentration on the test questions",
        "Distinct right: different right solutions a question among its samples, mean over all "
        "questions. PCMD: the chance, in per cent, that two right samples of a question are "
        "different solutions; over the questions with two right samples of every seed, whose "
        "number stands beside it: a method that solves more questions is averaged over more. "
        "log p: the closer to 0, the more concentrated.",
        ["method", "distinct right", "PCMD", "questions", "log p(greedy answer)",
         "log p(sampled token)"],
        rows,
    )  # fmt: skip


def _number(value: Any, digits: int) -> str | None:
    return f"{value:.{digits}f}" if isinstance(value, int | float) else None


def _p_value(p: Any) -> str:
    if not isinstance(p, int | float):
        return ""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
