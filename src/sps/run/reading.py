"""Files that somebody may have sent: read whole and within bounds, or a ValueError that says why.

A pipe would make a reader wait for ever and a device has no end; nesting, aliases and numbers with
thousands of digits cost far more than they take to write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

MIB = 2**20
_DEEPEST = 40  # mappings and lists inside each other, in YAML


def read_text(path: Path, limit: int = 64 * MIB) -> str:
    """A plain file's text, in UTF-8, of at most `limit` bytes."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no plain file"
        raise ValueError(f"it is {kind}")
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        size = f"{limit // MIB} MiB" if limit >= MIB else f"{limit // 2**10} KiB"
        raise ValueError(f"it has more than {size}")
    return content.decode("utf-8")


def read_json(path: Path, limit: int = 64 * MIB) -> Any:
    """What a JSON file holds."""
    try:
        return json.loads(read_text(path, limit))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_yaml(text: str) -> Any:
    """Plain data from YAML without aliases; the error names the line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1} " if mark else ""
        said = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ValueError(f"{line}is not valid YAML: {said}") from None
    except (RecursionError, OverflowError) as error:
        raise ValueError(f"is not valid YAML: {error}") from None


class _Loader(yaml.SafeLoader):
    """YAML that reads 1e-6 as a number (YAML 1.1 wants 1.0e-6) and refuses a key given twice."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        # Nine lines of aliases are a billion values to whoever looks at each.
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(
                None, None, "aliases (*name) are not read; write the value out", mark
            )
        self.depth += 1
        if self.depth > _DEEPEST:
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "it is nested too deeply", mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            # A date of month 99, a number of 5000 digits: yaml does not call them its errors.
            said = f"the value cannot be read ({error})"
            raise yaml.constructor.ConstructorError(None, None, said, node.start_mark) from None
        if isinstance(value, str) and not is_text(value):
            said = "a text with characters that are none (NUL, or half of a pair)"
            raise yaml.constructor.ConstructorError(None, None, said, node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # refused with its line by the call below
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_FLOAT = r"^[-+]?(?:\d+(?:_\d+)*)(?:\.\d*)?(?:[eE][-+]?\d+)$"
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(_FLOAT), list("-+0123456789"))


def is_text(value: str) -> bool:
    """Whether it can be written as UTF-8 and given to a tokenizer: no NUL, no lone surrogate."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in value
