"""docs/reference.md from the code: every key of a recipe, every command, the Python API.

python -m bench.reference            writes it
python -m bench.reference --check    exit code 1 where it is stale
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
import types
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from sps import api
from sps.config.recipe import Recipe
from sps.config.rl import AnyAlgorithm
from sps.tasks.table import TASKS

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"
Kind = type[BaseModel]
Seen = set[tuple[str, Kind]]  # places and what is shown of them


def page() -> str:
    """The whole page."""
    seen: Seen = set()
    tasks = {name: row.config for name, row in TASKS.items()}
    algorithms = {str(k.model_fields["type"].default): k for k in kinds_in(AnyAlgorithm)}
    parts = [
        "# Reference",
        "Made from the code by `python -m bench.reference`; a test says when it is stale.",
        "## Recipe",
        "One YAML file; every key has a default unless the table says `needed`. `extends: FILE` "
        "(or a short name) inherits from another recipe, `--set a.b=c` changes a key.",
        *section("", Recipe, seen, skip=("task",)),
        "## Tasks",
        "The keys under `task`, by `task.type`.",
        *(text for name, kind in tasks.items() for text in section(f"task ({name})", kind, seen)),
        "## Algorithms",
        "The keys under `rl.algorithm`, by `rl.algorithm.type`.",
        *(
            text
            for name, kind in algorithms.items()
            for text in section(f"rl.algorithm ({name})", kind, seen)
        ),
        "## Commands",
        *commands(),
        "## Python",
        *functions(),
    ]
    return "\n\n".join(parts) + "\n"


def section(name: str, kind: Kind, seen: Seen, skip: tuple[str, ...] = ()) -> list[str]:
    """A branch: what it is for, its keys, and the branches below it that were not shown yet."""
    said = comments(kind)
    rows, below = [], []
    for key, field in kind.model_fields.items():
        inner = [k for k in kinds_in(field.annotation) if key not in skip]
        if key == "algorithm":
            inner = []
        place = f"{name.partition(' ')[0]}.{key}" if name else key
        if inner and "type" not in inner[0].model_fields:
            new = [k for k in inner if (place, k) not in seen]
            seen.update((place, k) for k in new)
            below += [text for k in new for text in section(place, k, seen)]
        default, values = shown(field), cell(type_name(field))
        rows.append(f"| `{key}` | {default} | {values} | {cell(said.get(key, ''))} |")
    head = [f"### {name}"] if name else []
    doc = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    table = "\n".join(["| key | default | values | |", "| --- | --- | --- | --- |", *rows])
    return [*head, doc, table, *below]


def kinds_in(annotation: Any) -> list[Kind]:
    """The branches that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [k for part in typing.get_args(annotation) for k in kinds_in(part)]


def shown(field: Any) -> str:
    """A default as YAML would have it."""
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "needed"
    names = {None: "null", True: "true", False: "false", (): "[]", "": "''"}
    if isinstance(value, bool | None) or value == () or value == "":
        return f"`{names[value]}`"
    if isinstance(value, BaseModel):
        return f"`type: {value.type}`" if hasattr(value, "type") else ""
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def type_name(field: Any) -> str:
    """Its values in a few words."""
    bounds = [f"{s} {getattr(m, k):g}" for m in field.metadata for k, s in SIGNS if hasattr(m, k)]
    return ", ".join([annotation_name(field.annotation), *bounds])


SIGNS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))


def annotation_name(kind: Any) -> str:
    """`int`, `a` or `b`, list of int."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin is typing.Annotated:
        extra = getattr(inner[1], "metadata", inner[1:])
        bounds = [f"{s} {getattr(m, k):g}" for m in extra for k, s in SIGNS if hasattr(m, k)]
        return ", ".join([annotation_name(inner[0]), *bounds])
    if origin in (typing.Union, types.UnionType):
        said = dict.fromkeys(annotation_name(k) for k in inner if k is not type(None))
        return " or ".join(said)
    if origin is tuple:
        return f"list of {annotation_name(inner[0])}"
    if origin is dict:
        return "mapping"
    names = {"str": "text", "int": "whole number", "float": "number", "bool": "`true` or `false`"}
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "keys by `type`" if "type" in kind.model_fields else "keys, see below"
    return names.get(getattr(kind, "__name__", ""), "value")


def comments(kind: Kind) -> dict[str, str]:
    """What the source says of each key, those of its parents too."""
    found: dict[str, str] = {}
    for parent in reversed(kind.__mro__):
        if parent not in (BaseModel, object) and issubclass(parent, BaseModel):
            found |= own_comments(parent)
    return found


def own_comments(kind: type) -> dict[str, str]:
    """Comments on a key's lines, and those between keys: of the next key unless it has its own."""
    source = inspect.cleandoc("\n" + inspect.getsource(kind))
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    lines = {
        t.start[0]: t.string.lstrip("# ")
        for t in tokenize.generate_tokens(io.StringIO(source).readline)
        if t.type == tokenize.COMMENT and not t.string.startswith("# noqa")
    }
    keys = [n for n in tree.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    found: dict[str, list[str]] = {}
    for at, node in enumerate(keys):
        name, end = node.target.id, node.end_lineno or node.lineno
        own = [lines[i] for i in range(node.lineno, end + 1) if i in lines]
        found.setdefault(name, []).extend(own)
        after, i = [], end + 1
        while i in lines and source.splitlines()[i - 1].strip().startswith("#"):
            after.append(lines[i])
            i += 1
        following = keys[at + 1] if at + 1 < len(keys) else None
        free = following is not None and following.lineno == i and following.lineno not in lines
        taker = following.target.id if free and following else name
        found.setdefault(taker, []).extend(after)
    # Comments before the first key.
    i = keys[0].lineno - 1 if keys else 0
    if i in lines and keys:
        found[keys[0].target.id].insert(0, lines[i])
    return {name: " ".join(said) for name, said in found.items()}


def cell(text: str) -> str:
    """For a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def commands() -> list[str]:
    """Every command with its arguments and options."""
    import typer

    from sps.cli import app

    group = typer.main.get_command(app)
    out = []
    for name, command in group.commands.items():
        lines = [f"### sps {name}", command.help or ""]
        rows = []
        for p in command.params:
            if p.name == "help":
                continue
            what = p.name.upper() if p.param_type_name == "argument" else ", ".join(p.opts)
            rows.append(f"| `{what}` | {usual(p)} | {cell(getattr(p, 'help', None) or '')} |")
        table = ["| argument or option | default | |", "| --- | --- | --- |", *rows]
        out += [*lines, "\n".join(table)] if rows else lines
    return out


def usual(p: Any) -> str:
    """The default of an argument or option: nothing where its help says it, or there is none."""
    if p.required:
        return "needed"
    if p.default is None or p.default == "" or callable(p.default):
        return ""
    if isinstance(p.default, bool):
        return "on" if p.default else "off"
    return f"`{p.default}`"


def signature(call: Any) -> str:
    """As one writes it: without the modules of the types, and without self."""
    text = re.sub(r"sps\.\w+(\.\w+)*\.", "", str(inspect.signature(call)))
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)  # types are texts; defaults keep quotes
    return text.replace("(self, ", "(").replace("(self)", "()")


def returned(member: Any) -> str:
    """How a member is called, and what it gives."""
    if isinstance(member, property):
        return ": " + signature(member.fget).partition(" -> ")[2]
    return signature(member)


def functions() -> list[str]:
    """The API: what all of it does, signatures and first paragraphs."""
    out = [(inspect.getdoc(api) or "").partition("\n\n")[2].replace("\n", " ")]
    for name in ("load_recipe", "train", "evaluate", "compare", "report"):
        call = getattr(api, name)
        plain = f"```\nsps.{name}{signature(call)}\n```"
        out += [f"### sps.{name}", plain, inspect.getdoc(call) or ""]
    out.append(
        "`Interval` is a tuple: the mean and the ends of its 95 % interval. `Row` is a dict."
    )
    for kind in (api.Trained, api.Measured):
        lines = [f"### {kind.__name__}", inspect.getdoc(kind) or ""]
        own = {n: v for n, v in inspect.getmembers(kind) if not n.startswith("_")}
        said = [
            f"- `{n}{returned(v)}`: {(inspect.getdoc(v) or '').partition(chr(10))[0]}"
            for n, v in own.items()
            if callable(v) or isinstance(v, property)
        ]
        told = own_comments(kind)
        fields = [
            f"- `{n}: {f.type}`{', ' + told[n] if told.get(n) else ''}"
            for n, f in kind.__dataclass_fields__.items()
        ]
        out += [*lines, "\n".join([*fields, *said])]
    return out


def main() -> None:
    """Write the page, or say whether it is stale."""
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
