"""HTML of the report. Every text goes through `escape`; scripts get theirs as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from sps.reporting.blocks import Cell, Figure, Section, Table, clean

_SHORT = 8  # rows of a table that are shown before 'show all'


def safe_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(clean(value), separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def navigation(sections: Sequence[Section], explorer: bool) -> str:
    """Links to the sections."""
    links = [(s.id, s.title) for s in sections]
    links += [("trajectories", "Trajectories")] if explorer else []
    return "".join(f'<a href="#{escape(i)}">{escape(t)}</a>' for i, t in links)


def summary(sentence: str, numbers: Table | None) -> str:
    """What stands at the top."""
    return f"<p>{escape(sentence)}</p>{table(numbers) if numbers else ''}"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A strip of small facts."""
    return "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in pairs)


def alerts(warnings: Sequence[tuple[str, str]], missing: Sequence[tuple[str, str]]) -> str:
    """Warnings of the run, then what could not be read; each is (where, what)."""
    return _alert("warning", "Warnings of the run", warnings) + _alert(
        "missing", "Missing", missing
    )


def _alert(kind: str, title: str, said: Sequence[tuple[str, str]]) -> str:
    """What is said of several places, give or take a number, is said once."""
    places: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    for where, what in said:
        shape = re.sub(r"\d[\d.e+-]*", "#", what)
        places.setdefault(shape, []).append(where)
        first.setdefault(shape, what)
    if not places:
        return ""
    items = "".join(
        f"<li>{escape(_where(where))}{escape(first[shape])}</li>" for shape, where in places.items()
    )
    opened = " open" if kind == "warning" or len(places) <= 4 else ""
    return (
        f'<details class="alert {kind}"{opened}><summary>{escape(title)} ({len(places)})</summary>'
        f"<ul>{items}</ul></details>"
    )


def _where(places: Sequence[str]) -> str:
    named = [p for p in dict.fromkeys(places) if p]
    if not named:
        return ""
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return f"{', '.join(named[:3])}{more}: "


def section(part: Section) -> str:
    """A section with its blocks."""
    lead = f'<p class="lead">{escape(part.lead)}</p>' if part.lead else ""
    blocks = "".join(figure(b) if isinstance(b, Figure) else table(b) for b in part.present())
    return (
        f'<section id="{escape(part.id)}"><h2>{escape(part.title)}</h2>{lead}'
        f'<div class="blocks">{blocks}</div></section>'
    )


def figure(f: Figure) -> str:
    """The place where a figure is drawn when it comes into view."""
    wide = " wide" if f.wide else ""
    return (
        f'<figure class="plot{wide}" id="figure-{escape(f.id)}"><h3>{escape(f.title)}</h3>'
        f'<div class="canvas" data-figure="{escape(f.id)}" style="height:{f.height}px"></div>'
        f"<figcaption>{escape(f.note)}</figcaption></figure>"
    )


def table(t: Table) -> str:
    """A table with its copy buttons."""
    words = [_is_text([row[i] for row in t.rows]) for i in range(len(t.columns))]
    head = "".join(
        f'<th scope="col"{_align(w)}>{escape(c)}</th>'
        for c, w in zip(t.columns, words, strict=True)
    )
    body = "".join(
        f"<tr{' class=more' if i >= 2 * _SHORT else ''}>"
        f"{''.join(cell(c, w) for c, w in zip(row, words, strict=True))}</tr>"
        for i, row in enumerate(t.rows)
    )
    more = ""
    if len(t.rows) > 2 * _SHORT:
        more = f'<button type="button" data-all>Show all {len(t.rows)} rows</button>'
    return (
        f'<figure class="table wide" id="table-{escape(t.id)}"><h3>{escape(t.title)}</h3>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        '<div class="buttons"><button type="button" data-copy="csv">Copy CSV</button>'
        f'<button type="button" data-copy="latex">Copy LaTeX</button>{more}</div>'
        f"<figcaption>{escape(t.note)}</figcaption></figure>"
    )


def cell(value: Cell, text: bool = False) -> str:
    """A cell; an interval stands small under its value."""
    if isinstance(value, tuple):
        mean, low, high = (escape(str(v)) for v in value)
        data = f' data-low="{low}" data-high="{high}"'
        return f"<td{data}><span>{mean}</span> <small>[{low}, {high}]</small></td>"
    return f"<td{_align(text)}>{'' if value is None else escape(str(value))}</td>"


def _is_text(values: Sequence[Cell]) -> bool:
    """Whether a column holds words, which stand on the left."""
    return any(isinstance(v, str) and not any(c.isdigit() for c in v) and v for v in values) or all(
        isinstance(v, str) and v[:1].isalpha() for v in values
    )


def _align(text: bool) -> str:
    return ' class="words"' if text else ""


def figure_specs(sections: Iterable[Section]) -> dict[str, Any]:
    """Data and layout of every figure, by its id, with names that plotly cannot take for tags."""
    out = {}
    for part in sections:
        for block in part.present():
            if isinstance(block, Figure):
                data = [_named(trace) for trace in block.data]
                out[block.id] = {"data": data, "layout": block.layout, "height": block.height}
    return out


def _named(trace: dict[str, Any]) -> dict[str, Any]:
    name = trace.get("name")
    return trace | {"name": escape(name, quote=False)} if isinstance(name, str) else trace
