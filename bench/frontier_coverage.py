"""Coverage of the frontier's intervals by simulation; writes frontier_coverage.json.

A question's chance of success comes from a population. Training squeezes: over a path its log-odds
rise by a gain, and spread away from the population's middle, so that Pass@1 rises and Pass@k falls.
A run's seed moves the log-odds of all of its questions, and of each on its own, as random walks
along the path. The truth is the same arithmetic on the means over the population and over seeds.
'plain' is the bootstrap that draws seeds and questions with replacement, with percentiles of it.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import asdict, dataclass
from datetime import date
from itertools import product
from typing import Any

import numpy as np
from scipy import stats

from bench.sides import RESULTS
from sps.algo.frontier import envelope, frontier, highest_kept
from sps.algo.passk import pass_at_k

N, POINTS, DRAWS = 128, 6, 400  # samples a question, points of a path, draws of an interval
GRID = (np.arange(2000) + 0.5) / 2000  # of quantiles
SEEDS, QUESTIONS = (2, 3, 6, 8), (100, 200)


@dataclass(frozen=True)
class Way:
    """How a method moves log-odds from the base to its last point."""

    gain: float
    spread: float  # times the distance from the population's middle
    late: float = 1.0  # power of the share of the path by which the spread grows


@dataclass(frozen=True)
class Setting:
    """A population, the reference, its rivals, and how much seeds differ at the end of a path."""

    name: str
    chances: tuple[float, float, float]  # Beta's two, and the share of questions that always fail
    ways: tuple[Way, ...]  # the reference first
    level: float  # standard deviation of the walk that a run's questions share
    own: float  # and of each question's own


_GRPO, _SPS, _LATE = Way(-0.1, 1.1), Way(0.3, 0.6), Way(0.9, 1.0, late=2.5)
_COUNTDOWN, _MATHS = (1.5, 35.0, 0.0), (0.5, 1.2, 0.1)
SETTINGS = (
    Setting("countdown, equal", _COUNTDOWN, (_GRPO, _GRPO), 0.2, 0.7),
    Setting("countdown, equal, seeds differ much", _COUNTDOWN, (_GRPO, _GRPO), 0.5, 0.7),
    Setting("countdown, equal, 5 rivals", _COUNTDOWN, (_GRPO,) * 6, 0.2, 0.7),
    Setting("countdown, less squeezed", _COUNTDOWN, (_GRPO, _SPS), 0.2, 0.7),
    Setting("countdown, half as far", _COUNTDOWN, (_GRPO, Way(-0.05, 0.55)), 0.2, 0.7),
    Setting("countdown, squeezed late, equal", _COUNTDOWN, (_LATE, _LATE), 0.2, 0.7),
    Setting("maths, equal", _MATHS, (Way(0.6, 0.8), Way(0.6, 0.8)), 0.2, 0.7),
    Setting("maths, less squeezed", _MATHS, (Way(0.6, 0.8), Way(0.7, 0.4)), 0.2, 0.7),
)  # fmt: skip


def population(chances: tuple[float, float, float]) -> np.ndarray:
    """Log-odds at each quantile; -inf for questions that always fail."""
    a, b, never = chances
    inner = stats.beta.ppf(np.clip((GRID - never) / (1 - never), 1e-9, 1 - 1e-9), a, b)
    inner = np.maximum(inner, 1e-9)
    return np.where(never > GRID, -np.inf, np.log(inner / (1 - inner)))


def moved(odds_Q: np.ndarray, way: Way, share: float) -> np.ndarray:
    """Log-odds after a share of a path."""
    middle = np.median(odds_Q[np.isfinite(odds_Q)])
    off_Q = np.where(np.isfinite(odds_Q), odds_Q - middle, 0.0)
    return odds_Q + share * way.gain + share**way.late * way.spread * off_Q


def expected(setting: Setting, way: Way) -> np.ndarray:
    """Mean Pass@1 and Pass@N at each point, base first, over population and seeds by quadrature."""
    node, weight = np.polynomial.hermite_e.hermegauss(41)
    odds_Q, rows = population(setting.chances), []
    for share in np.arange(POINTS + 1) / POINTS:
        sd = np.sqrt(share) * np.hypot(setting.level, setting.own)
        miss = 1 / (1 + np.exp(moved(odds_Q, way, share) + sd * node[:, None]))
        rows.append([1 - weight @ (miss**k).mean(1) / weight.sum() for k in (1, N)])
    return np.array(rows)


def truth(setting: Setting) -> dict[str, list[float]]:
    """What the intervals should hold."""
    paths = [expected(setting, way)[None] for way in setting.ways]
    low, tops = paths[0][0, 0, 0], [path[0, :, 0].max() for path in paths]

    def mean(path: np.ndarray, top: float) -> float:
        at = np.minimum(low + (top - low) * np.linspace(0, 1, 33), top)
        return float(np.trapezoid(envelope(path, at[None])[0], dx=1 / 32))

    gaps = []
    for path, own in zip(paths[1:], tops[1:], strict=True):
        top = min(own, tops[0])
        gaps.append(mean(path, top) - mean(paths[0], top))
    areas = [mean(path, min(tops)) for path in paths]
    gains = [float(highest_kept(path)[0] - low) for path in paths]
    return {"gap": gaps, "area": areas, "free gain": gains}


def draw(
    setting: Setting, way: Way, odds_Q: np.ndarray, seeds: int, rng: np.random.Generator
) -> np.ndarray:
    """Correct samples [P, S, Q] of a method's runs."""
    step = 1 / np.sqrt(POINTS)
    level_PS1 = (setting.level * step * rng.standard_normal((POINTS, seeds, 1))).cumsum(0)
    own_PSQ = setting.own * step * rng.standard_normal((POINTS, seeds, len(odds_Q)))
    base_PQ = np.stack([moved(odds_Q, way, (i + 1) / POINTS) for i in range(POINTS)])
    return _sample(base_PQ[:, None] + level_PS1 + own_PSQ.cumsum(0), rng)


def _sample(odds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.binomial(N, 1 / (1 + np.exp(-odds)))


def plain_gap(base_Q: np.ndarray, paths: list[np.ndarray], rng: np.random.Generator) -> Any:
    """Percentiles of the first rival's mean gap under resampled seeds and questions."""
    table_N2 = np.stack([pass_at_k(np.arange(N + 1), N, k) for k in (1, N)], -1)
    seeds, questions = paths[0].shape[1:]
    found = []
    for _ in range(200):
        s, q = rng.integers(seeds, size=seeds), rng.integers(questions, size=questions)
        start = table_N2[base_Q[q]].mean(0)
        a, b = (
            np.vstack([start, table_N2[path[:, s][:, :, q]].mean((1, 2))])[None]
            for path in paths[:2]
        )
        top = min(a[..., 0].max(), b[..., 0].max())
        at = np.minimum(start[0] + (top - start[0]) * np.linspace(0, 1, 33), top)[None]
        found.append(np.trapezoid((envelope(b, at) - envelope(a, at))[0], dx=1 / 32))
    return np.quantile(found, (0.025, 0.975))


def simulate(
    setting: Setting, seeds: int, questions: int, repetitions: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Shares of repetitions in which intervals hold the truth, all rivals at once for gaps."""
    right, odds = truth(setting), population(setting.chances)
    held: dict[str, list[float]] = {"gap": [], "area": [], "free gain": [], "plain gap": []}
    widths, verdicts = [], []
    for _ in range(repetitions):
        odds_Q = odds[rng.integers(len(odds), size=questions)]
        base_Q = _sample(odds_Q, rng)
        paths = [draw(setting, way, odds_Q, seeds, rng) for way in setting.ways]
        named = {str(i): path for i, path in enumerate(paths)}
        found = frontier(base_Q, named, N, "0", draws=DRAWS)
        gaps = [gap.mean for gap in found.gaps]
        held["gap"].append(all(_holds(i, t) for i, t in zip(gaps, right["gap"], strict=True)))
        for key, of in (("area", "area"), ("free gain", "free_gain")):
            own = [getattr(one, of) for one in found.standings]
            held[key] += [_holds(i, t) for i, t in zip(own, right[key], strict=True)]
        if len(held["plain gap"]) < repetitions // 4:
            low, high = plain_gap(base_Q, paths, rng)
            held["plain gap"].append(low <= right["gap"][0] <= high)
        widths.append(gaps[0][2] - gaps[0][1])
        verdicts.append(any(gap.verdict != "tied" for gap in found.gaps))
    return {
        "setting": setting.name,
        "seeds": seeds,
        "questions": questions,
        "repetitions": repetitions,
        "truth": {key: [round(v, 4) for v in values] for key, values in right.items()},
        "coverage": {key: round(float(np.mean(values)), 4) for key, values in held.items()},
        "width": round(float(np.mean(widths)), 4),
        "verdicts": round(float(np.mean(verdicts)), 4),
    }


def _holds(interval: tuple[float, float, float], value: float) -> bool:
    return interval[1] - 1e-9 <= value <= interval[2] + 1e-9


def main() -> None:
    """Every case; the table is printed, every number is in bench/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=500)
    repetitions = parser.parse_args().repetitions
    began, rows = time.process_time(), []
    print("| setting | seeds | questions | gap | plain | area | free gain | width | verdicts |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for place, setting in enumerate(SETTINGS):
        rng = np.random.default_rng(place)
        for seeds, questions in product(SEEDS, QUESTIONS):
            row = simulate(setting, seeds, questions, repetitions, rng)
            rows.append(row)
            cells = [row["coverage"][key] for key in ("gap", "plain gap", "area", "free gain")]
            cells += [row["width"], row["verdicts"]]
            shown = " | ".join(f"{100 * cell:.1f}" for cell in cells)
            print(f"| {setting.name} | {seeds} | {questions} | {shown} |", flush=True)
    about = {
        "date": date.today().isoformat(),
        "machine": platform.machine(),
        "cpu_seconds": round(time.process_time() - began),
        "settings": [asdict(setting) for setting in SETTINGS],
    }
    cells = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    written = json.dumps(about)[:-1] + f', "rows": [\n{cells}\n]}}\n'
    (RESULTS / "frontier_coverage.json").write_text(written)


if __name__ == "__main__":
    main()
