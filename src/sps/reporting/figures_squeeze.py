"""How concentrated the policies became during training."""

from __future__ import annotations

from typing import Any

from sps.reporting.blocks import Figure, axis, band, line
from sps.reporting.study import Study
from sps.reporting.style import marks

Diagnoses = dict[str, dict[str, Any]]  # method name -> what diagnose found in its first run


def greedy_figure(study: Study, diagnoses: Diagnoses) -> Figure | None:
    """Log-probability of greedy trajectories over training."""
    style = marks(s.name for s in study.subjects)
    data = []
    for name, found in diagnoses.items():
        rows = [r for r in found.get("greedy") or [] if r["split"] == "validation"]
        rows = [r for r in rows if r["step"] is not None]
        if len(rows) > 1:
            own = style[name]
            dots = {"mode": "lines+markers", "marker": {"symbol": own.symbol, "size": 8}}
            xy = [r["step"] for r in rows], [r["greedy_logprob"] for r in rows]
            data.append(line(*xy, name, own.colour, own.dash, **dots))
    if not data:
        return None
    note = (
        "Mean over the validation questions of log p(greedy answer), the paper's measure. Rising "
        "towards 0, the policy becomes more certain of its likeliest answer: it is squeezed. Step "
        "0 is the base. First seed of each method."
    )
    layout = {"xaxis": axis("RL step"), "yaxis": axis("log p, nats"), "showlegend": True}
    return Figure("greedy", "Greedy log-probability", note, data, layout, height=300)


def likelihood_figures(study: Study, diagnoses: Diagnoses) -> list[Figure]:
    """Quantiles of rollout likelihood by step, a fan a method."""
    out = []
    style = marks(s.name for s in study.subjects)
    for i, (name, found) in enumerate(diagnoses.items()):
        q = found.get("likelihood")
        if not q or i >= 6:
            continue
        colour = style[name].colour
        data = [
            band(q["step"], q["q05"], q["q95"], colour, "wide", 0.13),
            band(q["step"], q["q25"], q["q75"], colour, "narrow", 0.22),
            line(q["step"], q["q50"], "median", colour),
        ]
        if any(v is not None for v in q["kept"]):
            data.append(line(q["step"], q["kept"], "median of those L2TE kept", "ink", "dot"))
        layout = {"xaxis": axis("RL step"), "yaxis": axis("mean log p of a token")}
        title = (
            "Likelihood of rollouts" if len(diagnoses) == 1 else f"Likelihood of rollouts: {name}"
        )
        note = (
            "Mean token log-probability of each rollout under the policy that drew it: 5 to 95 % "
            "and 25 to 75 % of rollouts, and the median. A fan that closes upwards is squeezing."
        )
        out.append(Figure(f"likelihood-{i}", title, note, data, layout, height=300))
    return out


def moved_figure(study: Study, diagnoses: Diagnoses) -> Figure | None:
    """Probability that each phase moved to the greedy token."""
    style = marks(s.name for s in study.subjects)
    data = []
    for name, found in diagnoses.items():
        colour = f"@{style[name].colour}/{style[name].shade}"
        for of, pattern in (("rl", {}), ("irl", {"pattern": {"shape": "/"}})):
            rows = [r for r in found.get("phases") or [] if r["of"] == of]
            if rows:
                bar = {"type": "bar", "name": f"{name} {of.upper()}", "hovertemplate": "%{y:+.2f}"}
                bar |= {"x": [f"to {r['step']}" for r in rows]}
                bar |= {"y": [100 * r["to_greedy"] for r in rows]}
                data.append(bar | {"marker": {"color": colour, **pattern}})
    if not data:
        return None
    steps = {int(r["step"]) for found in diagnoses.values() for r in found.get("phases") or []}
    ordered = {"categoryorder": "array", "categoryarray": [f"to {s}" for s in sorted(steps)]}
    layout = {
        # Methods may end their phases at other steps: each new one belongs between those before.
        "xaxis": axis(showgrid=False, type="category", **ordered),
        "yaxis": axis("points of probability", zeroline=True),
        "showlegend": len(data) > 1,
    }
    note = (
        "Change over each phase in the probability of the token that was greedy before it, mean "
        "over held-out tokens. Above 0 the updates squeezed; below 0 they spread. Striped: IRL "
        "phases. First seed of each method."
    )
    title = "Probability moved to the greedy token"
    return Figure("moved", title, note, data, layout, height=290, wide=len(data) > 4)
