"""Squeezing: of the policy over training, and in an exact simulation."""

from __future__ import annotations

from typing import Any

from sps.report.blocks import Figure, Table, axis, band, line
from sps.report.study import Study
from sps.report.style import Mark, marks

Diagnoses = dict[str, dict[str, Any]]  # method name -> what diagnose found in its first run


def greedy_figure(study: Study, diagnoses: Diagnoses) -> Figure | None:
    """Log-probability of greedy trajectories over training, every method on the same questions."""
    splits = ("validation", "select", "test")
    found = ((split, _greedy_ways(study, diagnoses, split)) for split in splits)
    split, ways = next(((split, ways) for split, ways in found if ways), ("", {}))
    if not ways:
        return None
    style = marks(s.name for s in study.subjects)
    data = []
    for name, way in ways.items():
        own = style[name]
        dots = {"mode": "lines+markers", "marker": {"symbol": own.symbol, "size": 8}}
        data.append(line([*way], [*way.values()], name, own.colour, own.dash, **dots))
    questions = "test" if split == "select" else split  # checkpoints are selected on these
    note = (
        f"Mean over the {questions} questions of log p(greedy answer), the paper's measure. Rising "
        "towards 0, the policy grows surer of the one answer it would give anyway: it is squeezed."
        " First seed of each method."
    )
    note += " Step 0 is the base." if any(0 in way for way in ways.values()) else ""
    layout: dict[str, Any] = {"xaxis": axis("RL step"), "yaxis": axis("log p, nats")}
    layout["showlegend"] = True
    return Figure("greedy", "Greedy log-probability", note, data, layout, height=300)


def _greedy_ways(study: Study, diagnoses: Diagnoses, split: str) -> dict[str, dict[int, float]]:
    """The number by step for each method that has two; step 0 is the base of its comparison."""

    def by_step(name: str) -> dict[int, float]:
        rows = (diagnoses.get(name) or {}).get("greedy") or []
        own = [r for r in rows if r["split"] == split and r["step"] is not None]
        return {r["step"]: r["greedy_logprob"] for r in own}

    bases = {s.runs[0].folder: by_step(s.name) for s in study.subjects if s.runs}
    ways = {}
    for s in (s for s in study.subjects if s.runs):
        base = bases.get(s.runs[0].folder.parent.parent / "base" / "eval", {})
        ways[s.name] = dict(sorted({**base, **by_step(s.name)}.items()))
    return {name: way for name, way in ways.items() if len(way) > 1}


def greedy_table(study: Study, diagnoses: Diagnoses) -> Table | None:
    """The appendix table of the paper, for these runs."""
    rows: list[list] = []
    for s in study.subjects:
        value = s.facts.get("greedy_logprob")
        if isinstance(value, int | float):
            token = s.facts.get("token_logprob")
            shown = f"{token:.4f}" if isinstance(token, int | float) else None
            rows.append([s.name, "test", f"{value:.3f}", shown])
            continue
        for r in (diagnoses.get(s.name) or {}).get("greedy") or []:
            token = r["sampled_logprob"]
            shown = f"{token:.4f}" if isinstance(token, int | float) else None
            rows.append([s.name, r["name"], f"{r['greedy_logprob']:.3f}", shown])
    if not rows:
        return None
    return Table(
        "greedy-table",
        "Log-probability of greedy answers and of sampled tokens",
        "Closer to 0 is more concentrated. The paper (AIME-24): base -124.27, GRPO -122.40, "
        "GSPO -121.89, SPS -124.34.",
        ["method", "evaluation", "log p(greedy answer)", "log p(sampled token)"],
        rows,
    )


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
            data.append(line(q["step"], q["kept"], "median of those L2TE kept", "ochre", "dot"))
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


def concentration_figures(study: Study, diagnoses: Diagnoses) -> list[Figure | None]:
    """Collision probability from the store; top-1 mass and mass moved from the checkpoints."""
    style = marks(s.name for s in study.subjects)
    agree, top, moved = [], [], []
    for name, found in diagnoses.items():
        mark = style[name]
        c = found.get("collision")
        if c:
            agree.append(line(c["step"], c["collision"], name, mark.colour, mark.dash))
        rows = found.get("checkpoints") or []
        if len(rows) > 1:
            dots = {"mode": "lines+markers", "marker": {"symbol": mark.symbol, "size": 8}}
            xy = [r["step"] for r in rows], [r["top1"] for r in rows]
            top.append(line(*xy, name, mark.colour, mark.dash, **dots))
        moved += moved_bars(name, mark, found.get("phases") or [], rows)
    share: dict[str, Any] = {"xaxis": axis("RL step")}
    share["yaxis"] = axis("probability", tickformat=".1~%")
    share["showlegend"] = len(diagnoses) > 1
    change = {
        "yaxis": axis("points of probability", zeroline=True),
        "showlegend": len(moved) > 1,
    }
    figures = [
        (agree, "collision", "Collision probability", "Mean probability of a sampled token, "
         "which is the chance that two draws of the next token agree (the sum of p squared). 100 % "
         "would be a policy without choice.", share),
        (top, "top1", "Top-1 mass", "Mean probability of the likeliest next token at each "
         "checkpoint, on the same held-out rollouts of the first policy.", share),
        (moved, "moved", "Mass moved to the greedy token", "Change in the probability of the token "
         "that was greedy before, mean over held-out tokens, by phase or from checkpoint to "
         "checkpoint. Above 0 the updates squeezed; below 0 they spread. Striped: IRL phases. "
         "First seed of each method.", change),
    ]  # fmt: skip
    return [
        Figure(id, title, note, data, layout, height=290, wide=id == "moved" and len(data) > 4)
        if data
        else None
        for data, id, title, note, layout in figures
    ]


def moved_bars(name: str, mark: Mark, phases: list[dict], rows: list[dict]) -> list[dict[str, Any]]:
    """Mass moved to the greedy token: by phase where the meter measured it, else by checkpoint."""
    bar = {
        "type": "bar",
        "marker": {"color": f"@{mark.colour}/{mark.shade}"},
        "hovertemplate": "%{y:+.2f}",
    }
    bars = []
    for of in ("rl", "irl"):
        own = [r for r in phases if r["of"] == of]
        if own:
            xy = {"x": [f"to {r['step']}" for r in own], "y": [100 * r["to_greedy"] for r in own]}
            striped = {"color": f"@{mark.colour}/{mark.shade}", "pattern": {"shape": "/"}}
            look = {"marker": striped} if of == "irl" else {}
            bars.append({**bar, **xy, **look, "name": f"{name} {of.upper()}"})
    steps = [r for r in rows if "moved" in r]
    if steps and not bars:
        xy = {"x": [f"to {r['step']}" for r in steps], "y": [100 * r["moved"] for r in steps]}
        bars.append({**bar, **xy, "name": name})
    return bars


def simulator_figure(simulation: dict[str, Any]) -> Figure:
    """Figure 1 done exactly: one negative update on an unlikely token, four ways."""
    panels = [(shape, rule) for shape in ("balanced", "peaky") for rule in ("nudge", "gradient")]
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"barmode": "group", "bargap": 0.25, "annotations": []}
    layout["legend"] = {"orientation": "h", "x": 0, "y": -0.14, "yanchor": "top"}
    for i, (shape, rule) in enumerate(panels):
        case = _case(simulation, "token", shape, rule, "negative")
        n = "" if i == 0 else str(i + 1)
        column, row = i % 2, i // 2
        layout[f"xaxis{n}"] = {
            "title": {"text": "token" if row == 1 else ""},
            "domain": [0.54 * column, 0.46 + 0.54 * column],
            "anchor": f"y{n}",
            "dtick": 1,
            "showticklabels": row == 1,
        }
        layout[f"yaxis{n}"] = {
            "title": {"text": "probability" if column == 0 else ""},
            "domain": [0.55, 0.88] if row == 0 else [0.0, 0.33],
            "anchor": f"x{n}",
            "tickformat": ".0%",
            "rangemode": "tozero",
        }
        tokens = list(range(1, len(case["before"]) + 1))
        for when, colour in (("before", "grey"), ("after", "red")):
            bar = {"type": "bar", "x": tokens, "y": case[when], "name": when}
            bar |= {"xaxis": f"x{n}", "yaxis": f"y{n}", "showlegend": i == 0, "legendgroup": when}
            mark = {
                "color": [f"@{colour}/0.55" if when == "before" else f"@{colour}"] * len(tokens)
            }
            mark["color"][case["target"]] = "@ochre/0.55" if when == "before" else "@ochre"
            data.append(bar | {"marker": mark, "hovertemplate": "%{y:.3%}"})
        layout["annotations"].append(_panel_title(case, shape, rule, column, row))
    note = (
        "One negative update on an unlikely token (ochre), before and after. Left: only its logit "
        "is lowered (Property 1 of the paper): every other token gains, where the paper prints "
        "that all lose. Right: a gradient step, which moves every logit: in a balanced "
        "distribution all others still gain, in a peaky one the dominant token gains and all "
        "others lose. That is squeezing."
    )
    return Figure("simulator", "Squeezing, exactly", note, data, layout, height=520, wide=True)


def _panel_title(case: dict, shape: str, rule: str, column: int, row: int) -> dict[str, Any]:
    what = "one logit lowered" if rule == "nudge" else "gradient step"
    gain = 100 * case["dominant_change"]
    lose = case["others_fall"]
    fate = f"others: {lose} of {case['others']} lose"
    return {
        "text": f"<b>{shape}, {what}</b><br>dominant {gain:+.1f} points, {fate}",
        "xref": "paper",
        "yref": "paper",
        "x": 0.54 * column,
        "xanchor": "left",
        "align": "left",
        "y": 1.0 if row == 0 else 0.45,
        "yanchor": "top",
        "showarrow": False,
        "font": {"size": 12, "color": "@ink"},
    }


def repeated_figure(simulation: dict[str, Any]) -> Figure:
    """The dominant token's mass under repeated negative updates."""
    data = []
    colours = {"balanced": "blue", "peaky": "red"}
    for case in simulation["cases"]:
        if case["sign"] == "negative" and case["level"] == "token":
            name = f"{case['shape']}, {'one logit' if case['rule'] == 'nudge' else 'gradient'}"
            dash = "dot" if case["rule"] == "nudge" else "solid"
            steps = list(range(len(case["top1"])))
            data.append(line(steps, case["top1"], name, colours[case["shape"]], dash))
    layout = {
        "xaxis": axis("negative updates"),
        "yaxis": axis("probability", tickformat=".0%", range=[0, 1.02]),
    }
    note = (
        "Probability of the dominant token when the same unlikely token is pushed down again and "
        "again. Lowering one logit can hand over no more than that token had; gradient steps go on."
    )
    return Figure("repeated", "Repeated negative updates", note, data, layout, height=320)


def simulator_table(simulation: dict[str, Any]) -> Table:
    """All sixteen cases."""
    rows: list[list] = []
    for c in simulation["cases"]:
        rule = "one logit" if c["rule"] == "nudge" else "gradient"
        fall = f"{c['others_fall']} of {c['others']}"
        change = f"{100 * c['dominant_change']:+.2f}"
        before, after = c["entropy"][0], c["entropy"][1]
        moved = f"{100 * (c['after'][c['target']] - c['before'][c['target']]):+.2f}"
        rows.append(
            [c["level"], c["shape"], rule, c["sign"], moved, change, fall, f"{after - before:+.4f}"]
        )
    return Table(
        "simulator-table",
        "One update on an unlikely token or sequence",
        f"Changes in points of probability; gradient steps of size {simulation['lr']:g}, logits "
        f"moved by {abs(simulation['eta']):g}. Property 1 as printed says that all others lose "
        "after a negative change of one logit: none does.",
        ["unit", "shape", "update", "sign", "target", "dominant", "others that lose", "entropy"],
        rows,
    )


def _case(
    simulation: dict[str, Any], level: str, shape: str, rule: str, sign: str
) -> dict[str, Any]:
    wanted = {"level": level, "shape": shape, "rule": rule, "sign": sign}
    return next(c for c in simulation["cases"] if all(c[k] == v for k, v in wanted.items()))
