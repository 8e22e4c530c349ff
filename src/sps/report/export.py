"""Plots as SVG files, ready for a paper, through kaleido and an installed browser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sps.errors import UserError
from sps.report.blocks import Figure, Section, clean
from sps.report.markup import figure_specs
from sps.report.style import LIGHT, resolve

_WIDTH, _WIDE = 480, 720  # pixels; a column and a page


def export_figures(sections: Sequence[Section], folder: Path) -> list[Path]:
    """Write every figure as <folder>/<figure>.svg."""
    try:
        import kaleido  # noqa: F401
        import plotly.graph_objects as go
        import plotly.io as pio
    except ImportError:
        raise UserError(
            "plots as files need kaleido: install the extra with pip install 'sps-rl[plots]'"
        ) from None
    figures, paths = [], []
    wide = {b.id: b.wide for s in sections for b in s.present() if isinstance(b, Figure)}
    for id, spec in figure_specs(sections).items():
        figures.append(go.Figure(paper_figure(spec, _WIDE if wide[id] else _WIDTH)))
        paths.append(folder / f"{re.sub(r'[^a-z0-9-]+', '-', id)}.svg")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if figures:
            pio.write_images(figures, [str(p) for p in paths])
    except OSError as error:
        raise UserError(f"{folder}: cannot write the plots ({error})") from None
    except Exception as error:
        if "chrome" not in f"{type(error).__name__} {error}".lower():
            raise
        raise UserError(
            "plots as files need Chrome or Chromium on this machine (kaleido draws with it): "
            "install one, or name it in the environment variable BROWSER_PATH"
        ) from None
    return paths


def paper_figure(spec: dict[str, Any], width: int) -> dict[str, Any]:
    """A figure of the page as it stands in print: light, plain, no title."""
    layout = dict(spec["layout"])
    for key in {"xaxis", "yaxis"} | {k for k in layout if re.fullmatch(r"[xy]axis\d*", k)}:
        own = {"gridcolor": "@grid", "zeroline": False, "automargin": True, **layout.get(key, {})}
        layout[key] = own | {"tickfont": {"size": 11, "color": "@muted"}}
    layout = {
        "width": width,
        "height": spec["height"],
        "font": {"family": "Helvetica, Arial, sans-serif", "size": 12, "color": "@ink"},
        "paper_bgcolor": "@paper",
        "plot_bgcolor": "@paper",
        "margin": {"l": 10, "r": 16, "t": 16, "b": 10},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        **layout,
    }
    return resolve(clean({"data": spec["data"], "layout": layout}), LIGHT)
