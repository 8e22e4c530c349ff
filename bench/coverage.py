"""Coverage of the intervals by simulation, beside textbook intervals; writes coverage.json.

Axes: R repetitions, S seeds, Q questions. A question has a chance of success from a population; a
run's seed shifts the log-odds of all of its questions, and of each on its own; n samples are drawn
of each. Two methods share questions, but one in 20 is as if new to the second. The truth is the
mean over the population and over seeds; with one seed it is that of a run with shift 0.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from scipy import stats

from bench.sides import RESULTS
from sps.algo.passk import bounds, seed_parts

N, REPETITIONS, ROWS = 128, 500, 100  # samples a question; ROWS repetitions at a time fit a cache
QUESTIONS, SEEDS, KS = (30, 100, 500), (1, 2, 3, 8), (1, N)
LEVELS = (0.1, 0.5)  # standard deviation of a seed's shift of all log-odds; 0 for one seed
OWN = 0.5  # and of its shift of each question
GAIN = 0.7  # the second method's, in log-odds, where there is a difference
GRID = (np.arange(4000) + 0.5) / 4000  # of quantiles


def beta(a: float, b: float, none: float = 0.0, all: float = 0.0) -> np.ndarray:
    """Quantiles of a Beta distribution, with a share of questions that fail or succeed always."""
    inner = stats.beta.ppf(np.clip((GRID - none) / (1 - none - all), 1e-9, 1 - 1e-9), a, b)
    return np.where(none > GRID, 0.0, np.where(1 - all < GRID, 1.0, inner))


POPULATIONS = {
    "Beta(0.2, 8)": beta(0.2, 8),
    "Beta(2, 98), 3 % always": beta(2, 98, all=0.03),
    "Beta(0.5, 20), 94 % never, 1 % always": beta(0.5, 20, none=0.94, all=0.01),
    "Beta(5, 5)": beta(5, 5),
    "Beta(1, 1), 30 % never, 30 % always": beta(1, 1, none=0.3, all=0.3),
    "Beta(4, 0.2), 1.5 % never": beta(4, 0.2, none=0.015),
}


@dataclass(frozen=True)
class Case:
    """One cell of the grid."""

    population: str
    k: int
    questions: int
    seeds: int
    level: float
    gain: float | None  # of the second method; None for the interval of a single mean


def shifted(chance: np.ndarray, shift: np.ndarray | float) -> np.ndarray:
    """Chances with their log-odds shifted; 0 and 1 stay."""
    odds = chance * np.exp(shift)
    return odds / (odds + (1 - chance))


def score(correct: np.ndarray, k: int) -> np.ndarray:
    """Pass@1 or Pass@n of each question."""
    return correct / N if k == 1 else (correct > 0) * 1.0


def draw(case: Case, place_RQ: np.ndarray, gain: float, rng: np.random.Generator) -> np.ndarray:
    """Scores of a method's runs."""
    size = (len(place_RQ), case.seeds)
    level_RS = case.level * rng.standard_normal(size)
    own_RSQ = OWN * rng.standard_normal((*size, case.questions))
    chance_RQ = POPULATIONS[case.population][place_RQ]
    chance_RSQ = shifted(chance_RQ[:, None], gain + level_RS[..., None] + own_RSQ)
    return score(rng.binomial(N, chance_RSQ), case.k)


@cache
def expected(population: str, k: int, level: float, gain: float) -> float:
    """Mean score over the population and over seeds, by quadrature."""
    node, weight = np.polynomial.hermite_e.hermegauss(41)
    shift = gain + np.hypot(OWN, level) * node[:, None]
    miss = (1 - shifted(POPULATIONS[population], shift)) ** k
    return float(1 - weight @ miss.mean(1) / weight.sum())


def ours(value_RSQ: np.ndarray, low: float) -> tuple[np.ndarray, np.ndarray]:
    """As `mean_interval` (low = 0) and `paired` (low = -1) have it, for every repetition."""
    share_RSQ = (value_RSQ - low) / (1 - low)
    ends = bounds(share_RSQ.mean(-2), seed_parts(share_RSQ), 0.025)
    return tuple(low + (1 - low) * end for end in ends)


def textbook(value_RSQ: np.ndarray, low: float) -> tuple[np.ndarray, np.ndarray]:
    """Student's t of differences, Wilson's formula with it of means; variances over questions and
    seeds add up, with Satterthwaite's degrees of freedom."""
    questions = value_RSQ.shape[-1]
    mean = value_RSQ.mean((-2, -1))
    parts = [
        (value_RSQ.mean(-2).var(-1, ddof=1) / questions, questions - 1),
        *seed_parts(value_RSQ),
    ]
    total = sum(variance for variance, _ in parts)
    square = sum(variance**2 / freedom for variance, freedom in parts)
    sure = total < 1e-18
    t = stats.t.ppf(0.975, np.where(sure, questions - 1, total**2 / np.where(sure, 1, square)))
    if low < 0:
        return mean - t * np.sqrt(total), mean + t * np.sqrt(total)
    spread = mean * (1 - mean)
    ratio = t**2 * np.where(sure, 1 / questions, total / np.maximum(spread, 1e-18))
    root = np.sqrt(ratio * spread + ratio**2 / 4)
    return (mean + ratio / 2 - root) / (1 + ratio), (mean + ratio / 2 + root) / (1 + ratio)


def simulate(case: Case, rng: np.random.Generator, repetitions: int) -> dict[str, Any]:
    """Coverage and mean width of one case, ours and the textbook's."""
    held: dict[str, list] = {"ours": [], "textbook": []}
    width: dict[str, list] = {"ours": [], "textbook": []}
    sides: dict[str, Callable] = {"ours": ours, "textbook": textbook}
    truth, low = expected(case.population, case.k, case.level, 0.0), 0.0
    if case.gain is not None:
        truth, low = expected(case.population, case.k, case.level, case.gain) - truth, -1.0
    for _ in range(repetitions // ROWS):
        place_RQ = rng.integers(len(GRID), size=(ROWS, case.questions))
        value_RSQ = draw(case, place_RQ, 0.0, rng)
        if case.gain is not None:
            new_RQ = rng.integers(len(GRID), size=place_RQ.shape)
            other_RQ = np.where(rng.random(place_RQ.shape) < 0.05, new_RQ, place_RQ)
            value_RSQ = draw(case, other_RQ, case.gain, rng) - value_RSQ
        for name, interval in sides.items():
            low_R, high_R = interval(value_RSQ, low)
            held[name] += ((low_R <= truth + 1e-9) & (truth - 1e-9 <= high_R)).tolist()
            width[name] += (high_R - low_R).tolist()
    return {
        **case.__dict__,
        "repetitions": repetitions,
        "truth": round(truth, 5),
        "coverage": {name: round(float(np.mean(values)), 5) for name, values in held.items()},
        "width": {name: round(float(np.mean(values)), 5) for name, values in width.items()},
    }


def main() -> None:
    """Every case; a summary is printed, every number is in bench/results/coverage.json."""
    began = time.process_time()
    rows = []
    for place, population in enumerate(POPULATIONS):
        rng = np.random.default_rng(place)
        for k, questions, seeds, gain in product(KS, QUESTIONS, SEEDS, (None, 0.0, GAIN)):
            for level in LEVELS if seeds > 1 else (0.0,):
                case = Case(population, k, questions, seeds, level, gain)
                row = simulate(case, rng, REPETITIONS)
                if row["coverage"]["ours"] < 0.95:  # by chance or not: afresh, with more
                    row = simulate(case, rng, 4 * REPETITIONS)
                rows.append(row)
        print(f"{population}: {time.process_time() - began:.0f} s", flush=True)
    about = {"date": date.today().isoformat(), "machine": platform.machine()}
    about |= {
        "cpu_seconds": round(time.process_time() - began),
        "repetitions": REPETITIONS,
        "seeds": "0 to 5",
    }
    cells = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    written = json.dumps(about)[:-1] + f', "rows": [\n{cells}\n]}}\n'
    (RESULTS / "coverage.json").write_text(written)
    print("\n".join(tables(rows)))


def tables(rows: list[dict[str, Any]]) -> list[str]:
    """Worst coverage over populations, both k and both levels; mean widths in points."""
    lines = []
    for title, key, values in (
        ("by questions and seeds", ("questions", "seeds"), list(product(QUESTIONS, SEEDS))),
        ("by population and k", ("population", "k"), list(product(POPULATIONS, KS))),
    ):
        lines += ["", f"{title}: ours (textbook)", ""]
        lines.append(
            f"| {' | '.join(key)} | means | width | differences | width | false verdicts |"
        )
        lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        for value in values:
            own = [row for row in rows if tuple(row[name] for name in key) == value]
            single = [row for row in own if row["gain"] is None]
            pairs = [row for row in own if row["gain"] is not None]
            null = [row for row in own if row["gain"] == 0]
            cells = [worst(single), mean_width(single), worst(pairs), mean_width(pairs)]
            false = [f"{100 * (1 - least(null, side)):.1f}" for side in ("ours", "textbook")]
            lines.append(
                f"| {' | '.join(map(str, value))} | {' | '.join(cells)} | {both(*false)} |"
            )
    return lines


def least(rows: list[dict[str, Any]], side: str) -> float:
    """The smallest coverage of one side."""
    return min(row["coverage"][side] for row in rows)


def worst(rows: list[dict[str, Any]]) -> str:
    """The smallest coverage of either side, in per cent."""
    return both(*(f"{100 * least(rows, side):.1f}" for side in ("ours", "textbook")))


def mean_width(rows: list[dict[str, Any]]) -> str:
    """Mean width of either side, in points."""
    means = (np.mean([row["width"][side] for row in rows]) for side in ("ours", "textbook"))
    return both(*(f"{100 * mean:.1f}" for mean in means))


def both(first: str, second: str) -> str:
    """Ours, and the textbook's in brackets."""
    return f"{first} ({second})"


if __name__ == "__main__":
    main()
