"""Training curves, verdict kinds, the memory, how far phases moved the policy, and cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sps.diagnose.cost import cost_by_stage
from sps.diagnose.read import RunFolder
from sps.reporting.blocks import Figure, Table, axis, band, clean, line, percent_axis, smooth
from sps.reporting.scales import log_ticks
from sps.reporting.study import Study
from sps.reporting.style import KIND_COLOURS, marks

_POINTS = 800  # of a curve; a longer run is averaged in bins
CURVES = (
    ("reward", "Reward", "Mean reward of each step's batch: the share of right rollouts, where a "
     "judge gives no parts of a point.", axis("mean reward", rangemode="tozero")),
    ("entropy", "Token entropy", "Mean entropy of the next-token distribution, in nats, on the "
     "tokens that were trained on. A steady fall is concentration.", axis("nats")),
    ("logprob", "Log-probability of rollouts", "Mean log-probability of a sampled token. Rising "
     "towards 0 means the policy samples ever more likely answers.", axis("nats a token")),
    ("grad_norm", "Gradient norm", "Before clipping.", axis("L2 norm", rangemode="tozero")),
)  # fmt: skip
MEMORY = (
    ("memory/size", "rollouts", {"rangemode": "tozero"}),
    ("memory/share", "tokens", {"tickformat": ".1~%", "rangemode": "tozero"}),
    ("memory/nll", "nats a token", {"rangemode": "tozero"}),
)


def training_curves(study: Study) -> list[Figure | None]:
    """One figure a metric, every method in each; IRL phases are marked."""
    return [_curve(study, *spec) for spec in CURVES]


def _curve(
    study: Study, field: str, title: str, note: str, upright: dict[str, Any]
) -> Figure | None:
    style = marks(s.name for s in study.subjects)
    data: list[dict[str, Any]] = []
    for s in study.trained():
        colour, dash = style[s.name].colour, style[s.name].dash
        series = [found for run in s.runs if (found := _series(run, field))]
        if not series:
            continue
        steps = sorted(set.intersection(*(set(x) for x in series)))
        steps, table = _binned(steps, [[x[i] for i in steps] for x in series])
        window = max(1, len(steps) // 40) * 2 + 1
        smoothed = [smooth(row, window) for row in table]
        mean = [_mean(column) for column in zip(*smoothed, strict=True)]
        if len(series) > 1:
            low, high = ([f(c) for c in zip(*smoothed, strict=True)] for f in (_low, _high))
            data.append(band(steps, low, high, colour, s.name))
        elif len(study.trained()) == 1:
            faint = {"opacity": 0.28, "hoverinfo": "skip", "showlegend": False}
            data.append(line(steps, table[0], s.name, colour, **faint))
            data[-1]["line"]["width"] = 1
        data.append(line(steps, mean, s.name, colour, dash, legendgroup=s.name))
    if not data:
        return None
    layout: dict[str, Any] = {"xaxis": axis("RL step"), "shapes": _irl_marks(study)}
    layout["yaxis"] = upright
    layout["showlegend"] = len(study.trained()) > 1
    several = any(len(s.runs) > 1 for s in study.trained())
    note += " Smoothed" + ("; the band spans the seeds." if several else ".")
    if layout["shapes"]:
        note += " Dotted vertical lines: IRL phases."
    return Figure(f"train-{field}", title, note, data, layout, height=300)


def _series(run: RunFolder, field: str) -> dict[int, float]:
    values = {r["step"]: clean(r.get(field)) for r in run.of_kind("rl")}
    return {s: float(v) for s, v in values.items() if isinstance(v, int | float)}


def _binned(steps: list[int], table: list[list[float]]) -> tuple[list[float], list[list[float]]]:
    if len(steps) <= _POINTS:
        return [float(s) for s in steps], table
    cuts = np.array_split(np.arange(len(steps)), _POINTS)
    rows = [[float(np.mean([row[i] for i in cut])) for cut in cuts] for row in table]
    return [float(np.mean([steps[i] for i in cut])) for cut in cuts], rows


def _irl_marks(study: Study) -> list[dict[str, Any]]:
    """A vertical line at each step after which an IRL phase came."""
    steps = {r["step"] for s in study.subjects for run in s.runs for r in run.of_kind("irl")}
    look = {"color": "@muted/0.5", "width": 1, "dash": "dot"}
    place = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "layer": "below", "line": look}
    shown = sorted(steps)
    if len(shown) > 60:  # a comb would hide the curves
        return []
    return [{**place, "x0": step, "x1": step} for step in shown]


def meter_figure(study: Study) -> Figure | None:
    """KL of each phase on held-out rollouts, RL and IRL apart."""
    style = marks(s.name for s in study.subjects)
    data = []
    for s in study.trained():
        own = style[s.name]
        for of, symbol in (("rl", own.symbol), ("irl", f"{own.symbol}-open")):
            rows = [r for r in s.runs[0].of_kind("meter") if r.get("of") == of and r.get("kl")]
            if not rows:
                continue
            mark = {"symbol": symbol, "size": 8, "color": f"@{own.colour}"}
            entry = line(
                [r["step"] for r in rows],
                [max(float(r["kl"]), 1e-12) for r in rows],
                f"{s.name} {of.upper()}",
                own.colour,
                own.dash if of == "rl" else "dot",
                mode="lines+markers",
                marker=mark,
                hovertemplate="%{y:.2g}",
            )
            entry["line"]["width"] = 1.3
            data.append(entry)
    if not data:
        return None
    decades = [math.log10(v) for trace in data for v in trace["y"]]
    values, texts = zip(*log_ticks(min(decades) - 0.2, max(decades) + 0.2, 6), strict=True)
    upright = axis("KL a token", type="log", tickvals=[*values], ticktext=[*texts])
    layout = {"xaxis": axis("RL step"), "yaxis": upright}
    note = (
        "KL between the policy before and after each phase, per token, on held-out rollouts of the "
        "first policy (k2 estimate, log scale); filled after RL, open after IRL. An IRL phase "
        "whose KL is orders of magnitude smaller changes nothing. First seed of each method."
    )
    return Figure("meter", "How far each phase moved the policy", note, data, layout, height=320)


def verdict_figures(study: Study) -> list[Figure]:
    """Kinds of verdict over training, stacked; one figure a method, its first seed."""
    out = []
    for i, s in enumerate(study.trained()[:6]):
        records = s.runs[0].of_kind("rl")
        kinds = sorted({k for r in records for k in r if k.startswith("verdict/")}, key=_kind_order)
        if not kinds:
            continue
        steps = [r["step"] for r in records]
        window = max(1, len(steps) // 40) * 2 + 1
        data = []
        for kind in kinds:
            name = kind.removeprefix("verdict/")
            colour = KIND_COLOURS.get(name, "teal")
            values = smooth([clean(r.get(kind)) or 0.0 for r in records], window)
            x, rows = _binned(steps, [[v or 0.0 for v in values]])
            area = line(x, rows[0], name, colour, stackgroup="one", fillcolor=f"@{colour}/0.55")
            area["line"]["width"] = 0.6
            area["hovertemplate"] = "%{y:.1%}"
            data.append(area)
        layout = {
            "xaxis": axis("RL step"),
            "yaxis": percent_axis("share of rollouts", range=[0, 1]),
        }
        title = "Verdicts" if len(study.trained()) == 1 else f"Verdicts: {s.name}"
        note = "Share of rollouts by kind of verdict, smoothed."
        out.append(Figure(f"verdicts-{i}", title, note, data, layout, height=280))
    return out


def _kind_order(kind: str) -> tuple[int, str]:
    order = list(KIND_COLOURS)
    name = kind.removeprefix("verdict/")
    return (order.index(name) if name in order else len(order), name)


def memory_figure(study: Study) -> Figure | None:
    """What `irl.memory` recalls beside RL steps: three panels over one axis of steps."""
    style = marks(s.name for s in study.subjects)
    data: list[dict[str, Any]] = []
    for s in study.trained():
        for i, (field, _, _) in enumerate(MEMORY):
            found = _series(s.runs[0], field)
            x, rows = _binned([*found], [[*found.values()]])
            if found:
                entry = line(x, rows[0], s.name, style[s.name].colour, style[s.name].dash)
                place = {"xaxis": "x", "yaxis": f"y{i + 1}" if i else "y"}
                data.append(entry | place | {"legendgroup": s.name, "showlegend": i == 0})
    if not data:
        return None
    layout: dict[str, Any] = {"xaxis": axis("RL step", anchor="y3")}
    for i, (_, title, more) in enumerate(MEMORY):
        low = 0.70 - 0.35 * i
        layout[f"yaxis{i + 1}" if i else "yaxis"] = axis(title, domain=[low, low + 0.28], **more)
    note = (
        "Of runs with a memory, first seed of each method. From above: right rollouts in it, "
        "the share of a step's tokens that come from it, and the mean negative log-probability of "
        "these tokens, which rises as the policy forgets what it has solved."
    )
    return Figure("memory", "Memory", note, data, layout, height=420)


def cost_table(study: Study) -> Table | None:
    """Seconds by stage."""
    rows: list[list] = []
    for s in study.trained():
        cost = cost_by_stage(s.runs[0].records)
        for row in cost["stages"]:
            step = f"{1000 * row['per_step']:.1f}" if row["per_step"] is not None else None
            share = f"{100 * row['share']:.1f}"
            rows.append([s.name, row["stage"], f"{row['seconds']:.1f}", step, share])
        if share := cost["irl_over_rl"]:
            rows.append([s.name, "IRL over RL", None, None, f"{100 * share:.1f}"])
    if not rows:
        return None
    note = (
        "Wall time by stage, first seed of each method. 'not timed' is what no timer covers "
        "between the first and the last record: loading weights, the meter, waiting, and all that "
        "another trainer (TRL) does."
    )
    return Table("cost-table", "Cost", note, ["method", "stage", "s", "ms a step", "%"], rows)


def _mean(values: tuple) -> float | None:
    found = [v for v in values if v is not None]
    return sum(found) / len(found) if found else None


def _low(values: tuple) -> float | None:
    return min((v for v in values if v is not None), default=None)


def _high(values: tuple) -> float | None:
    return max((v for v in values if v is not None), default=None)
