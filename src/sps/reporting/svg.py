"""Elements of an SVG file in the colours of both themes.

An element has the light theme's colour as an attribute, which any program can read; where the
reader prefers dark, a style sheet puts the dark theme's in its place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from sps.reporting.style import DARK, LIGHT

FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
_DASHES = {"dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "12 4",
           "longdashdot": "12 4 2 4"}  # fmt: skip
# Width of a character in ems: no font is at hand to ask, and files must not depend on one.
_NARROW, _BROAD = " .,:;'!|ijltfI()[]/-", "mwMW@%+=<>"
_BOLD = re.compile(r"(<b>.*?</b>)")
Point = tuple[float, float]


def width_of(text: str, size: float) -> float:
    """About how many pixels a text takes; tags take none."""
    plain = re.sub(r"</?b>", "", text)
    widths = (
        0.28 if c in _NARROW else 0.86 if c in _BROAD else 0.69 if c.isupper() else 0.56
        for c in plain
    )
    return size * sum(widths) * (1.06 if "<b>" in text else 1.0)


def number(value: float) -> str:
    """A coordinate: to a tenth of a pixel."""
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


class Sheet:
    """The elements of one file, in the order they are painted."""

    def __init__(self, width: int, height: int, title: str):
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []
        self.hatched: list[str] = []  # colours

    def line(self, points: Sequence[Point], colour: str, width: float = 1, dash: str = "") -> None:
        """A line through points."""
        if len(points) > 1:
            path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
            dashes = f' stroke-dasharray="{_DASHES[dash]}"' if dash in _DASHES else ""
            look = f'fill="none" stroke-width="{width:g}" stroke-linejoin="round"{dashes}'
            self.parts.append(f'<path d="{path}" {look}{_paint("stroke", colour)}/>')

    def area(self, points: Sequence[Point], colour: str) -> None:
        """A filled polygon."""
        path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points) + "Z"
        self.parts.append(f'<path d="{path}"{_paint("fill", colour)}/>')

    def box(self, at: Point, size: Point, colour: str, hatch: bool = False) -> None:
        """A rectangle, plain or striped."""
        (x, y), (wide, tall) = at, size
        paint = _paint("fill", colour)
        if hatch:
            self.hatched.append(colour)
            paint = f' fill="url(#{_hatch_id(colour)})"'
        place = " ".join(
            f'{k}="{number(v)}"'
            for k, v in zip(("x", "y", "width", "height"), (x, y, wide, tall), strict=True)
        )
        self.parts.append(f"<rect {place}{paint}/>")

    def mark(self, at: Point, symbol: str, size: float, colour: str) -> None:
        """A mark of a data point, with a thin rim that parts it from what it lies on."""
        shape = symbol.removesuffix("-open")
        x, y = at
        r = size / 2
        look = (
            f'{_paint("fill", "@paper")}{_paint("stroke", colour)} stroke-width="1.6"'
            if symbol.endswith("-open")
            else f'{_paint("fill", colour)}{_paint("stroke", "@paper")} stroke-width="1"'
        )
        if shape == "circle":
            where = f'cx="{number(x)}" cy="{number(y)}" r="{number(r)}"'
            self.parts.append(f"<circle {where}{look}/>")
            return
        corners = [(x + r * dx, y + r * dy) for dx, dy in _SHAPES[shape]]
        path = "M" + "L".join(f"{number(a)} {number(b)}" for a, b in corners) + "Z"
        self.parts.append(f'<path d="{path}"{look}/>')

    def text(
        self, at: Point, text: str, colour: str = "@ink", size: float = 12, anchor: str = "start",
        turn: bool = False,
    ) -> None:  # fmt: skip
        """A text whose middle is at the height of `at`; what is within <b> is bold, and its
        special characters are escaped already."""
        x, y = at[0], at[1] + 0.35 * size
        runs = "".join(
            f'<tspan font-weight="bold">{part[3:-4]}</tspan>' if part.startswith("<b>") else part
            for part in _BOLD.split(text)
        )
        where = f'x="{number(x)}" y="{number(y)}"'
        if turn:
            where = (
                f'transform="translate({number(at[0] + 0.35 * size)} {number(at[1])}) rotate(-90)"'
            )
        look = f'font-size="{size:g}" text-anchor="{anchor}"{_paint("fill", colour)}'
        self.parts.append(f"<text {where} {look}>{runs}</text>")

    def file(self) -> str:
        """The whole file."""
        size = f'width="{self.width}" height="{self.height}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
            f'viewBox="0 0 {self.width} {self.height}" font-family="{FONT}" role="img">',
            f"<title>{escape(self.title, quote=False)}</title>",
            f"<style>{_dark_rules()}</style>",
            *map(_hatch, dict.fromkeys(self.hatched)),
            f'<rect {size} rx="6"{_paint("fill", "@paper")}/>',
            *self.parts,
        ]
        return "\n".join([*lines, "</svg>", ""])


_SHAPES = {
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "diamond": ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
    "triangle-up": ((0, -1.2), (1.1, 0.9), (-1.1, 0.9)),
    "cross": ((-0.35, -1.1), (0.35, -1.1), (0.35, -0.35), (1.1, -0.35), (1.1, 0.35), (0.35, 0.35),
              (0.35, 1.1), (-0.35, 1.1), (-0.35, 0.35), (-1.1, 0.35), (-1.1, -0.35),
              (-0.35, -0.35)),
    "star": ((0, -1.2), (0.28, -0.39), (1.14, -0.37), (0.46, 0.15), (0.71, 0.97), (0, 0.49),
             (-0.71, 0.97), (-0.46, 0.15), (-1.14, -0.37), (-0.28, -0.39)),
}  # fmt: skip


def _paint(what: str, colour: str) -> str:
    """The attributes of a colour such as '@blue/0.2'."""
    name, _, opacity = colour.removeprefix("@").partition("/")
    faint = f' {what}-opacity="{opacity}"' if opacity and float(opacity) < 1 else ""
    return f' {what}="{LIGHT.get(name, name)}"{faint}'


def _hatch_id(colour: str) -> str:
    return "hatch-" + re.sub(r"[^a-z0-9]+", "-", colour.removeprefix("@"))


def _hatch(colour: str) -> str:
    stripe = f'<rect width="2" height="5"{_paint("fill", colour)}/>'
    turned = 'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"'
    where = f'id="{_hatch_id(colour)}" width="5" height="5" {turned}'
    return f"<pattern {where}>{stripe}</pattern>"


def _dark_rules() -> str:
    rules = "".join(
        f'[{what}="{LIGHT[name]}"]{{{what}:{DARK[name]}}}'
        for name in dict.fromkeys(LIGHT)
        for what in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme: dark){{{rules}}}"
