"""Squeezing, exactly: what one update does to a softmax.

Two updates are compared, because they are easily taken for one another.

    nudge     z_m += eta, the other logits stay (Property 1 of the SPS paper)
    gradient  z += sign * lr * (onehot(m) - p): a step on log p(m) moves every logit
              (Ren & Sutherland, 2024)

For a negative nudge p'(j) = p(j) / (1 + p(m) (e^eta - 1)) with a denominator below 1: every other
token GAINS, in proportion to its mass. Property 1 prints the opposite, p'(j) < p(j). For a negative
gradient step, to first order, token j != m gains only if p(j) > sum_i p(i)^2 - p(m): in a balanced
distribution all others do, in a peaky one only the dominant token does. That is squeezing.

Axes: V tokens, or sequences where a whole sequence is the unit; T places of a sequence.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

BALANCED = np.array([0.16, 0.15, 0.14, 0.13, 0.12, 0.11, 0.10, 0.09])
PEAKY = np.array([0.80, 0.07, 0.05, 0.03, 0.02, 0.015, 0.01, 0.005])
SIGNS = {"negative": -1, "positive": 1}


def softmax(z_V: np.ndarray) -> np.ndarray:
    """Probabilities of logits, over the last axis."""
    e_V = np.exp(z_V - z_V.max(-1, keepdims=True))
    return e_V / e_V.sum(-1, keepdims=True)


def nudge(p_V: np.ndarray, m: int, eta: float) -> np.ndarray:
    """The distribution after z_m += eta, in closed form."""
    scale_V = np.ones_like(p_V)
    scale_V[m] = np.exp(eta)
    return p_V * scale_V / (1 + p_V[m] * (np.exp(eta) - 1))


def gradient_step(p_V: np.ndarray, m: int, lr: float, sign: int) -> np.ndarray:
    """The distribution after a step of the logits up (sign 1) or down (-1) log p(m)."""
    onehot_V = np.eye(len(p_V))[m]
    return softmax(np.log(p_V) + sign * lr * (onehot_V - p_V))


def gain_threshold(p_V: np.ndarray, m: int, lr: float) -> float:
    """A negative gradient step of this size raises p(j), j != m, exactly when p(j) is above this.

    p'(j) / p(j) = e^(lr p(j)) / E with E = sum_i p(i) e^(z'_i - z_i): the threshold is log(E) / lr,
    which tends to sum_i p(i)^2 - p(m) as lr tends to 0.
    """
    shift_V = lr * (p_V - np.eye(len(p_V))[m])
    return float(np.log((p_V * np.exp(shift_V)).sum()) / lr)


def sequence_probabilities(conditional: list[np.ndarray]) -> np.ndarray:
    """Joint probability of every sequence; conditional[t] is [V^t, V], one row a prefix."""
    joint = np.ones(1)
    for table in conditional:
        joint = (joint[:, None] * table).reshape(-1)
    return joint


def sequence_step(
    conditional: list[np.ndarray], sequence: tuple[int, ...], lr: float, sign: int
) -> list[np.ndarray]:
    """One gradient step on log p(sequence): each place on its path takes a token-level step."""
    after, prefix = [], 0
    for table, token in zip(conditional, sequence, strict=True):
        moved = table.copy()
        moved[prefix] = gradient_step(table[prefix], token, lr, sign)
        after.append(moved)
        prefix = prefix * table.shape[1] + token
    return after


def entropy(p_V: np.ndarray) -> float:
    """Entropy in nats."""
    return float(-(p_V[p_V > 0] * np.log(p_V[p_V > 0])).sum())


def simulate(lr: float = 1.0, eta: float = -1.0, steps: int = 30) -> dict[str, Any]:
    """Figure 1 of the paper with the right dynamics, as plain numbers."""
    cases = []
    for level, shape in itertools.product(("token", "sequence"), ("balanced", "peaky")):
        for rule, sign in itertools.product(("nudge", "gradient"), SIGNS):
            cases.append(_case(level, shape, rule, sign, lr, abs(eta), steps))
    negative = [c for c in cases if c["sign"] == "negative"]
    nudges = [c for c in negative if c["rule"] == "nudge"]
    return {
        "lr": lr,
        "eta": eta,
        "cases": cases,
        "property_1_as_printed_holds": any(c["others_fall"] > 0 for c in nudges),
        "dominant_gains": all(c["dominant_change"] > 0 for c in negative),
    }


def _case(
    level: str, shape: str, rule: str, sign: str, lr: float, eta: float, steps: int
) -> dict[str, Any]:
    first = BALANCED if shape == "balanced" else PEAKY
    path = _token_path if level == "token" else _sequence_path
    m, stages = path(first, rule, SIGNS[sign], lr, eta, steps)
    before, after = stages[0], stages[1]
    top = int(before.argmax())
    others = [j for j in range(len(before)) if j not in (m, top)]
    change = after - before
    return {
        "level": level,
        "shape": shape,
        "rule": rule,
        "sign": sign,
        "target": m,
        "dominant": top,
        "before": before.tolist(),
        "after": after.tolist(),
        "dominant_change": float(change[top]),
        "others_fall": int((change[others] < 0).sum()),
        "others": len(others),
        "top1": [float(p[top]) for p in stages],
        "entropy": [entropy(p) for p in stages],
    }


def _token_path(
    p_V: np.ndarray, rule: str, sign: int, lr: float, eta: float, steps: int
) -> tuple[int, list[np.ndarray]]:
    m = len(p_V) - 2  # an unlikely token
    stages = [p_V]
    for _ in range(steps):
        p = stages[-1]
        stages.append(nudge(p, m, sign * eta) if rule == "nudge" else gradient_step(p, m, lr, sign))
    return m, stages


def _sequence_path(
    p_V: np.ndarray, rule: str, sign: int, lr: float, eta: float, steps: int
) -> tuple[int, list[np.ndarray]]:
    """Two tokens a sequence, three choices a token; the two likeliest and the rest of the shape."""
    row = (
        np.array([p_V[0], p_V[1], p_V[2:].sum()]) if p_V[0] > 0.5 else np.array([0.36, 0.33, 0.31])
    )
    conditional = [row[None], np.tile(row, (3, 1))]
    unlikely = (int(row.argmin()), int(row.argmin()))
    m = unlikely[0] * 3 + unlikely[1]
    stages = [sequence_probabilities(conditional)]
    for _ in range(steps):
        if rule == "nudge":  # Property 2: the sequence itself is the unit of one softmax
            stages.append(nudge(stages[-1], m, sign * eta))
        else:
            conditional = sequence_step(conditional, unlikely, lr, sign)
            stages.append(sequence_probabilities(conditional))
    return m, stages
