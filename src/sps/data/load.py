"""Problems from a JSONL, JSON, Parquet or CSV file, or from the hub."""

from __future__ import annotations

import csv
import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sps.errors import UserError
from sps.types import Problem

Row = dict[str, Any]
_ENCODING = "utf-8-sig"  # Excel and Windows put a mark in front, which is no part of the first name
# Tried in this order where no column is named. A dot goes into a struct.
QUESTION = ("problem", "question", "Question", "prompt", "query", "input", "instruction")
ANSWER = (
    "answer",
    "reward_model.ground_truth",
    "ground_truth",
    "final_answer",
    "expected_answer",
    "gold",
    "label",
    "answerKey",
)
ID = ("id", "unique_id", "problem_id", "uid", "extra_info.id")


@dataclass(frozen=True)
class Columns:
    """Where a row holds what; None: the usual names are tried."""

    question: str | None = None
    answer: str | None = None
    id: str | None = None


def load_problems(
    source: str,
    columns: Columns | None = None,
    *,
    split: str = "train",
    config: str | None = None,
    key: str = "task.data",
    convert: Callable[[Row], Row] | None = None,
) -> list[Problem]:
    """Every row as a problem, in order. `key` is what errors call the setting that named it."""
    rows = list(read_rows(source, split, config, key))
    if not rows:
        raise UserError(f"{key}: {source} holds no rows")
    if convert:
        rows = [convert(row) for row in rows]
    columns = columns or Columns()
    question = _column(rows, columns.question, QUESTION, "question", source, key)
    answer = _column(rows, columns.answer, ANSWER, "answer", source, key)
    name = columns.id or next((c for c in ID if all(get(r, c) is not None for r in rows)), None)
    if columns.id:
        _column(rows, columns.id, ID, "id", source, key)
    stem = Path(source).stem or "row"
    problems = [
        _problem(
            row, i, question, answer, get(row, name) if name else f"{stem}-{i:06d}", source, key
        )
        for i, row in enumerate(rows)
    ]
    _unique(problems, source, key)
    return problems


def read_rows(source: str, split: str, config: str | None, key: str) -> Iterator[Row]:
    """Rows of a local file, or of a data set on the hub."""
    path = Path(source).expanduser()
    if path.is_dir():
        raise UserError(
            f"{key}: {source} is a folder; name a .jsonl, .json, .parquet or .csv file in it"
        )
    if not path.exists():
        if path.suffix in READERS or source.startswith(("/", ".", "~")) or source.count("/") != 1:
            raise UserError(
                f"{key}: there is no file {source}. Give a .jsonl, .json, .parquet or .csv file, "
                "or a hub id such as openai/gsm8k"
            )
        return _from_hub(source, split, config, key)
    if path.suffix not in READERS:
        raise UserError(f"{key}: {source}: only {', '.join(READERS)} files can be read")
    try:
        return iter(list(READERS[path.suffix](path)))
    except (OSError, ValueError, pa.ArrowInvalid, csv.Error) as error:
        raise UserError(f"{key}: {source} cannot be read: {error}") from None


def get(row: Mapping[str, Any], column: str) -> Any:
    """A column's value; `a.b` is b inside the struct a. None where there is none."""
    if column in row:
        return row[column]
    head, _, rest = column.partition(".")
    inner = row.get(head)
    return get(inner, rest) if rest and isinstance(inner, Mapping) else None


def _jsonl(path: Path) -> Iterator[Row]:
    for number, line in enumerate(path.read_text(encoding=_ENCODING).split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number} is not JSON ({error.msg})") from None
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is not an object with columns")
            yield row


def _json(path: Path) -> Iterator[Row]:
    rows = json.loads(path.read_text(encoding=_ENCODING))
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it is not a list of objects")
    yield from rows


def _csv(path: Path) -> Iterator[Row]:
    with path.open(encoding=_ENCODING, newline="") as file:
        yield from csv.DictReader(file)


READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".parquet": lambda path: iter(pq.read_table(path).to_pylist()),
}


def _from_hub(name: str, split: str, config: str | None, key: str) -> Iterator[Row]:
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"{key}: {name} is no file here, and reading it from the hub needs datasets; "
            "run: pip install 'sps[hub]'"
        ) from None
    try:
        return (dict(row) for row in datasets.load_dataset(name, config, split=split))
    except Exception as error:  # the hub fails in many ways, none of them ours
        first = str(error).strip().splitlines()[0][:300] if str(error).strip() else repr(error)
        raise UserError(
            f"{key}: {name} ({config or 'default'}, {split}) cannot be loaded from the hub: "
            f"{first}. Without a network, give a local file instead (for benchmarks: "
            "--data-dir, or task.data_dir in a recipe)"
        ) from None


def _column(
    rows: Sequence[Row],
    asked: str | None,
    usual: Sequence[str],
    what: str,
    source: str,
    key: str,
) -> str:
    """The column to read; one that is not there is an error that names those that are."""
    first = rows[0]
    found = asked or next((c for c in usual if get(first, c) is not None), None)
    if found is not None and any(get(row, found) is not None for row in rows):
        return found
    there = _names(first)
    near = difflib.get_close_matches(found or what, there, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    wanted = f"no column {asked!r}" if asked else f"no column that looks like the {what}"
    raise UserError(
        f"{key}: {source} has {wanted}{hint} It has: {', '.join(there)}. "
        f"Name the right one with task.columns.{what}"
    )


def _names(row: Mapping[str, Any], head: str = "") -> list[str]:
    out = []
    for name, value in row.items():
        out.append(head + name)
        if isinstance(value, Mapping):
            out += _names(value, f"{head}{name}.")
    return out


def _problem(
    row: Row, number: int, question: str, answer: str, name: Any, source: str, key: str
) -> Problem:
    asked, gold = get(row, question), get(row, answer)
    meta = {k: v for k, v in row.items() if isinstance(v, str | int | float | bool) and k != "id"}
    for used in (question, answer, "solution"):
        meta.pop(used, None)
    if isinstance(asked, list):  # chat messages: the last of the user asks, the system's is kept
        asked, meta["system"] = _from_messages(asked, number, source, key)
    if isinstance(gold, list) and len(gold) == 1:
        gold = gold[0]
    if isinstance(gold, str) and "####" in gold:
        gold = _after_hashes(gold)
    if asked is None or gold is None or not str(asked).strip() or not str(gold).strip():
        lacks = "question" if asked is None or not str(asked).strip() else "answer"
        raise UserError(
            f"{key}: {source}: row {number + 1} has no {lacks}; mend or remove that row"
        )
    return Problem(str(name), str(asked), str(gold).strip(), meta)


def _after_hashes(solution: str) -> str:
    """The answer of a worked solution as GSM8K has it: '... = 1,234 #### 1,234' is 1234."""
    answer = solution.rsplit("####", 1)[-1].strip()
    return answer.replace(",", "") if re.fullmatch(r"-?[\d,.]+", answer) else answer


def _from_messages(messages: list[Any], number: int, source: str, key: str) -> tuple[str, str]:
    by_role = {m["role"]: m["content"] for m in messages if isinstance(m, Mapping) and "role" in m}
    if "user" not in by_role:
        raise UserError(f"{key}: {source}: row {number + 1}: its messages hold none of the user")
    return by_role["user"], by_role.get("system", "")


def _unique(problems: list[Problem], source: str, key: str) -> None:
    seen: dict[str, int] = {}
    for i, problem in enumerate(problems):
        if problem.id in seen:
            raise UserError(
                f"{key}: {source}: rows {seen[problem.id] + 1} and {i + 1} have the same id "
                f"{problem.id!r}; name another column with task.columns.id"
            )
        seen[problem.id] = i
