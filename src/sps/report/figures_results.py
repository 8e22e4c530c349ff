"""Pass@k: curves, the frontier, and paired differences."""

from __future__ import annotations

from typing import Any

from sps.report.blocks import Figure, Table, axis, band, line, percent, percent_axis, points
from sps.report.study import Study
from sps.report.style import Mark, marks

VERDICTS = {"better": "green", "worse": "red", "tied": "grey"}
# Corners, so that a name never lies on its own error bars; where that is, in shares of the plot.
_SIDES = {
    "top right": (0.07, 0.045),
    "bottom right": (0.07, -0.045),
    "top left": (-0.07, 0.045),
    "bottom left": (-0.07, -0.045),
}


def frontier(study: Study) -> Figure | None:
    """Pass@1 against Pass@max-k: how much exploitation was bought with how much exploration."""
    top, subjects = study.top_k(), study.scored()
    if top is None or top == 1 or len(subjects) < 2:
        return None
    style = marks(s.name for s in study.subjects)
    at = {s.name: (s.curve[1], s.curve[top]) for s in subjects}
    uses = {s.name for s in subjects if not s.runs}  # of a run of another name
    data = [_link(at[a], at[b], style[a]) for a, b in _variants(list(at)) if b in uses]
    sides = label_sides({n: (x[0], y[0]) for n, (x, y) in at.items()})
    data += [_dot(name, x, y, style[name], sides[name]) for name, (x, y) in at.items()]
    layout: dict[str, Any] = {
        "xaxis": axis("Pass@1", tickformat=".1~%"),
        "yaxis": axis(f"Pass@{top}", tickformat=".1~%"),
        "showlegend": False,
        "hovermode": "closest",
    }
    base = next((n for n in at if n.lower() == "base"), None)
    if base:
        layout["shapes"], layout["annotations"] = _base_line(at[base][1][0], base, top)
    return Figure(
        "frontier",
        "The frontier",
        f"Each method by its Pass@1 (exploitation) and Pass@{top} (exploration); up and to the "
        "right is better. Bars are 95 % intervals clustered by question; they are wide because "
        "questions differ, so read differences from the paired table below, where that spread "
        "cancels. Below the dashed line exploration was lost. A dotted line joins a run to other "
        "uses of it: an earlier checkpoint, another temperature.",
        data,
        layout,
        height=520,
        wide=True,
    )


def _dot(name: str, x: list[float], y: list[float], mark: Mark, side: str) -> dict[str, Any]:
    def bars(v: list[float]) -> dict[str, Any]:
        ends = {"array": [v[2] - v[0]], "arrayminus": [v[0] - v[1]]}
        look = {"color": f"@{mark.colour}/0.45", "thickness": 1.4, "width": 4}
        return {"type": "data", "symmetric": False, **ends, **look}

    said = f"Pass@1 {points(x[0])} % [{points(x[1])}, {points(x[2])}]"
    said += f"<br>y {points(y[0])} % [{points(y[1])}, {points(y[2])}]"
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [x[0]],
        "y": [y[0]],
        "error_x": bars(x),
        "error_y": bars(y),
        "name": name,
        "text": [f"<b>{escape(name)}</b>"],
        "textposition": side,
        "textfont": {"color": f"@{mark.colour}", "size": 13},
        "marker": {
            "color": f"@{mark.colour}",
            "symbol": mark.symbol,
            "size": 13,
            "line": {"color": "@paper", "width": 1.5},
        },
        "hovertemplate": f"{said}<extra>{escape(name)}</extra>",
        "cliponaxis": False,
    }


def _link(a: tuple, b: tuple, mark: Mark) -> dict[str, Any]:
    look = {"color": f"@{mark.colour}/0.55", "width": 1.2, "dash": "dot"}
    ends = {"x": [a[0][0], b[0][0]], "y": [a[1][0], b[1][0]]}
    return {"type": "scatter", "mode": "lines", **ends, "line": look, "hoverinfo": "skip"}


def _base_line(y: float, base: str, top: int) -> tuple[list, list]:
    shape = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "layer": "below"}
    look = {"line": {"color": "@grey/0.6", "width": 1, "dash": "dash"}}
    words = {"text": f"Pass@{top} of the {escape(base)}"}
    place = {"xref": "paper", "x": 1, "xanchor": "right", "y": y, "yanchor": "bottom"}
    font = {"showarrow": False, "font": {"size": 11, "color": "@muted"}}
    return [{**shape, **look}], [{**words, **place, **font}]


def _variants(names: list[str]) -> list[tuple[str, str]]:
    """Pairs (run, another use of it): the longest name that another begins with."""
    pairs = []
    for name in names:
        parents = [p for p in names if p != name and name.startswith((f"{p}@", f"{p} "))]
        if parents:
            pairs.append((max(parents, key=len), name))
    return pairs


def label_sides(at: dict[str, tuple[float, float]]) -> dict[str, str]:
    """The corner of each dot in which its name is farthest from the other dots and names."""
    xs, ys = zip(*at.values(), strict=True)
    wide, tall = (max(v) - min(v) or 1.0 for v in (xs, ys))
    spots = {n: ((x - min(xs)) / wide, (y - min(ys)) / tall) for n, (x, y) in at.items()}
    taken = list(spots.values())
    out = {}
    for name, (x, y) in spots.items():
        others = [s for s in taken if s != (x, y)]
        rooms = {}
        for side, (dx, dy) in _SIDES.items():
            near = (((x + dx - a) / 2) ** 2 + (y + dy - b) ** 2 for a, b in others)
            rooms[side] = min(near, default=1.0)
        out[name] = side = max(rooms, key=lambda s: (round(rooms[s], 3), s == "top right"))
        taken.append((x + _SIDES[side][0], y + _SIDES[side][1]))
    return out


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
        "several). A curve that is higher at k = 1 but lower at large k has been squeezed.",
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
        "Pass@1 is also Avg@n, the mean share of right samples. 95 % intervals under each value.",
        ["method", "seeds", *(f"Pass@{k}" for k in ks)],
        rows,
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


def ablation_table(study: Study) -> Table | None:
    """SPS by number of rollouts kept of each group."""
    if len({row["keep"] for row in study.ablation}) < 2:
        return None
    ks = sorted({int(k) for row in study.ablation for k in row["pass_at_k"]})
    shown = sorted({ks[0], ks[-1], *(k for k in (8, 32) if k in ks)}) if ks else []
    rows: list[list] = []
    for row in study.ablation:
        cells = [
            percent(row["pass_at_k"][str(k)]) if str(k) in row["pass_at_k"] else None for k in shown
        ]
        rows.append([row["method"], row["keep"], row["n"], _number(row["irl_lr"]), *cells])
    return Table(
        "ablation",
        "Sampling size: rollouts kept by L2TE",
        "The paper's ablation has sizes 1 to 5. One row for each method with IRL steps.",
        ["method", "kept", "of", "IRL lr", *(f"Pass@{k}" for k in shown)],
        rows,
    )


def ablation_figures(study: Study) -> list[Figure]:
    """Pass@1 and Pass@max-k against the number of rollouts kept, a mark a method."""
    if len({row["keep"] for row in study.ablation}) < 2:
        return []
    style = marks(s.name for s in study.subjects)
    ks = sorted({int(k) for row in study.ablation for k in row["pass_at_k"]})
    out = []
    for k in dict.fromkeys((ks[0], ks[-1])) if ks else ():
        rows = [row for row in study.ablation if str(k) in row["pass_at_k"]]
        data = [_size_mark(row, row["pass_at_k"][str(k)], style[row["method"]]) for row in rows]
        layout: dict[str, Any] = {
            "xaxis": axis("rollouts kept of a group", dtick=1),
            "yaxis": axis(f"Pass@{k}", tickformat=".1~%"),
            "showlegend": False,
            "hovermode": "closest",
        }
        note = (
            f"Pass@{k} on the test questions by sampling size, 95 % intervals over questions and "
            "seeds. Whether two sizes differ is in the paired table, where questions cancel."
        )
        title = f"Sampling size and Pass@{k}"
        out.append(Figure(f"ablation-{k}", title, note, data, layout, height=300))
    return out


def _size_mark(row: dict[str, Any], triple: list[float], mark: Mark) -> dict[str, Any]:
    mean, low, high = triple
    ends = {"array": [high - mean], "arrayminus": [mean - low]}
    look = {"color": f"@{mark.colour}", "thickness": 1.6, "width": 5}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [row["keep"]],
        "y": [mean],
        "error_y": {"type": "data", "symmetric": False, **ends, **look},
        "marker": {"color": f"@{mark.colour}", "symbol": mark.symbol, "size": 10},
        "name": row["method"],
        "hovertemplate": f"%{{y:.1%}}<extra>{escape(row['method'])}</extra>",
    }


def _p_value(p: Any) -> str:
    if not isinstance(p, int | float):
        return ""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else ""


def escape(text: str) -> str:
    """Plotly reads a few tags in text; names must not become any."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
