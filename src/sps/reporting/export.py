"""Figures as SVG files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sps.errors import UserError
from sps.reporting.blocks import Figure, Section
from sps.reporting.draw import draw

_OTHERS = (".png", ".pdf", ".jpg", ".jpeg", ".eps", ".html")  # no names of folders


def export_figures(sections: Sequence[Section], place: Path) -> list[Path]:
    """Write every figure as <place>/<figure>.svg; the first alone where the place is an .svg."""
    if place.suffix.lower() in _OTHERS and not place.is_dir():
        raise UserError(
            f"--svg {place}: plots are written as SVG: name a file {place.stem}.svg, or a folder"
        )
    figures = [b for s in sections for b in s.present() if isinstance(b, Figure)]
    if not figures:
        raise UserError("there is nothing to draw: no scores, and no record of training")
    paths = [place / f"{re.sub(r'[^a-z0-9-]+', '-', figure.id)}.svg" for figure in figures]
    if place.suffix == ".svg":
        figures, paths = figures[:1], [place]
    drawn = [_drawn(figure) for figure in figures]
    try:
        for text, path in zip(drawn, paths, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{place}: cannot write the plots ({error.strerror})") from None
    return paths


def _drawn(figure: Figure) -> str:
    try:
        return draw(figure)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise UserError(f"{figure.title}: cannot be drawn as SVG ({error!r})") from None
