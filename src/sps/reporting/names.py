"""Where the names of lines go in a plot, so that it needs no legend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sps.reporting.svg import Point, width_of

Box = tuple[float, float, float, float]  # left, top, right, bottom
NAME_SIZE = 13  # of the font
_PLOT = (670.0, 390.0)  # pixels that places are chosen for
_NEAR = 24  # pixels to a name that needs no line


@dataclass(frozen=True)
class Spot:
    """A name's place, seen from the end of its line."""

    right: int  # pixels
    down: int
    anchor: str  # the end of the name that lies there

    @property
    def far(self) -> bool:
        """Whether a line should lead from the one to the other."""
        return math.hypot(self.right, self.down) > _NEAR


# The best first.
_SPOTS = [Spot(10, 0, "left"), Spot(8, -13, "left"), Spot(8, 13, "left"), Spot(0, -17, "center"),
          Spot(0, 17, "center"), Spot(-8, -13, "right"), Spot(-8, 13, "right"),
          Spot(-10, 0, "right")]  # fmt: skip
_SPOTS += [
    Spot(right, down, anchor)
    for down in (-34, 34, -52, 52, -70, 70)
    for right, anchor in ((14, "left"), (-14, "right"))
]


def place_names(
    lines: Mapping[str, Sequence[Point]],
    others: Sequence[tuple[Point, Point]],
    ranges: Sequence[Sequence[float]],
) -> dict[str, Spot]:
    """A place for each line's name near its end, off all lines, other names and the edge."""
    (x0, x1), (y0, y1) = ranges

    def pixel(point: Point) -> Point:
        return (point[0] - x0) / (x1 - x0) * _PLOT[0], (y1 - point[1]) / (y1 - y0) * _PLOT[1]

    drawn = {name: [pixel(point) for point in line] for name, line in lines.items()}
    parts = [part for line in drawn.values() for part in pairwise([*line, line[-1]])]
    parts += [(pixel(a), pixel(b)) for a, b in others]
    ink = [point for part in parts for point in _between(*part)]
    boxes: dict[str, Box] = {}
    out: dict[str, Spot] = {}
    for name in [*drawn, *drawn]:  # twice: the first could not know where the last would go
        rivals = [box for other, box in boxes.items() if other != name]
        tried = [_box(name, drawn[name][-1], spot) for spot in _SPOTS]
        costs = [_crowding(box, ink, rivals) + i for i, box in enumerate(tried)]
        best = costs.index(min(costs))
        out[name], boxes[name] = _SPOTS[best], tried[best]
    return out


def _box(name: str, end: Point, spot: Spot) -> Box:
    wide = width_of(f"<b>{name}</b>", NAME_SIZE)
    x, y = end[0] + spot.right, end[1] + spot.down
    left = {"left": x, "center": x - wide / 2, "right": x - wide}[spot.anchor]
    return left, y - 0.6 * NAME_SIZE, left + wide, y + 0.6 * NAME_SIZE


def _crowding(box: Box, ink: Sequence[Point], rivals: Sequence[Box]) -> float:
    """How much of lines lies under a name, how many names, and how much of it is outside."""
    left, top, right, bottom = box
    under = sum(left - 3 < x < right + 3 and top - 2 < y < bottom + 2 for x, y in ink)
    over = sum(left < r and right > a and top < b and bottom > t for a, t, r, b in rivals)
    outside = max(0, -left) + max(0, right - _PLOT[0]) + max(0, -top) + max(0, bottom - _PLOT[1])
    return 4.0 * under + 200.0 * over + 20.0 * outside


def _between(a: Point, b: Point) -> list[Point]:
    """Points of a line, some pixels apart."""
    count = max(1, round(math.dist(a, b) / 4))
    shares = [i / count for i in range(count + 1)]
    return [(a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t) for t in shares]
