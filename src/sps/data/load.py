"""Problems from a JSONL, JSON, Parquet or CSV file, or from the hub."""

from __future__ import annotations

import codecs
import csv
import difflib
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sps.data.config import OPTIONS
from sps.data.messages import TURNS, read_messages
from sps.errors import UserError
from sps.run.reading import MIB, is_text
from sps.types import Problem

Row = dict[str, Any]
_LOG = logging.getLogger("sps")
_LINE = 16 * MIB  # characters of a line, and of all that a row asks and answers
_ROWS = 20_000_000  # of a Parquet file: a few bytes can claim to be many rows
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
    whole: bool = False,
) -> list[Problem]:
    """Every row as a problem, in order. `key` is what errors call the setting that named it."""
    rows = list(read_rows(source, split, config, key))
    if not rows:
        raise UserError(f"{key}: {source} holds no rows")
    if convert:
        rows = [convert(row) for row in rows]
    return to_problems(rows, columns or Columns(), source, key, whole)


def to_problems(
    rows: Sequence[Row], columns: Columns, source: str, key: str, whole: bool = False
) -> list[Problem]:
    """Rows as problems. With `whole` the answer is as it is in the row, of any type, and may be
    missing, and `meta` is all of the row."""
    question = _column(rows, columns.question, QUESTION, "question", source, key)
    answer = None
    if columns.answer or not whole or any(get(r, c) is not None for r in rows for c in ANSWER):
        answer = _column(rows, columns.answer, ANSWER, "answer", source, key)
    name = columns.id or next((c for c in ID if all(get(r, c) is not None for r in rows)), None)
    if columns.id:
        _column(rows, columns.id, ID, "id", source, key)
    stem = Path(source).stem or "row"
    problems = [
        _problem(
            row,
            question,
            answer,
            get(row, name) if name else f"{stem}-{i:06d}",
            f"{key}: {source}: row {i + 1}",
            whole,
        )
        for i, row in enumerate(rows)
    ]
    _unique(problems, rows, f"{key}: {source}")
    if whole:
        problems = [
            replace(p, meta={**row, **_said(p)}) for p, row in zip(problems, rows, strict=True)
        ]
    return problems


def _said(problem: Problem) -> Row:
    return {key: problem.meta[key] for key in ("system", TURNS) if problem.meta.get(key)}


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
        _almost_here(path, key)
        return _from_hub(source, split, config, key)
    if not path.is_file():
        raise UserError(f"{key}: {source} is no plain file (a pipe or a device); give a file")
    if path.suffix not in READERS:
        raise UserError(f"{key}: {source}: only {', '.join(READERS)} files can be read")
    try:
        return iter(list(READERS[path.suffix](path)))
    except RecursionError:
        raise UserError(f"{key}: {source} cannot be read: it is nested too deeply") from None
    except UnicodeDecodeError:
        where = "one of its texts" if path.suffix == ".parquet" else _no_utf8(path)
        raise UserError(
            f"{key}: {source} cannot be read: it is no UTF-8 ({where}); save it as UTF-8"
        ) from None
    except (OSError, ValueError, OverflowError, pa.ArrowException, csv.Error) as error:
        said = (str(error).strip().splitlines() or [repr(error)])[0][:300]
        raise UserError(f"{key}: {source} cannot be read: {said}") from None


def _almost_here(path: Path, key: str) -> None:
    """Of what could be a hub id, and is also a path into a folder that is here."""
    if not path.parent.is_dir():
        return
    near = [p for p in sorted(path.parent.iterdir()) if p.suffix in READERS and p.stem == path.name]
    if near:
        raise UserError(f"{key}: there is no file {path}; did you mean {near[0]}?")
    _LOG.warning("%s: there is no file %s here; looking for it on the hub", key, path)


def get(row: Mapping[str, Any], column: str) -> Any:
    """A column's value; `a.b` is b inside the struct a. None where there is none."""
    if column in row:
        return row[column]
    head, _, rest = column.partition(".")
    inner = row.get(head)
    return get(inner, rest) if rest and isinstance(inner, Mapping) else None


def _jsonl(path: Path) -> Iterator[Row]:
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except RecursionError:
                raise ValueError(f"line {number} is nested too deeply") from None
            except ValueError as error:  # also a number of thousands of digits
                said = getattr(error, "msg", error)
                hint = _other_kind(line) if number == 1 else ""
                raise ValueError(f"line {number} is not JSON ({said}){hint}") from None
            if not isinstance(row, dict):
                hint = _other_kind(line) if number == 1 else ""
                raise ValueError(f"line {number} is not an object with columns{hint}")
            yield row


def _no_utf8(path: Path) -> str:
    """Where in the file."""
    decoder, read, number = codecs.getincrementaldecoder("utf-8")(), 0, 1
    with path.open("rb") as file:
        while piece := file.readline(_LINE):
            pending = len(decoder.getstate()[0])  # of a letter that began in the piece before
            try:
                decoder.decode(piece)
            except UnicodeDecodeError as error:
                return f"line {number}, byte {read - pending + error.start}"
            read += len(piece)
            number += piece.endswith(b"\n")
    return "its end"


def _other_kind(line: str) -> str:
    """What a file that is called .jsonl seems to be, by its first line."""
    if line.lstrip().startswith("["):
        return "; it looks like one JSON array: name the file .json"
    if "," in line and not line.lstrip().startswith("{"):
        return "; it looks like CSV: name the file .csv"
    return ""


def _lines(path: Path) -> Iterator[str]:
    """One by one: a file may be larger than memory is worth, and a line longer."""
    with path.open(encoding=_ENCODING, newline="\n") as file:
        number = 0
        while line := file.readline(_LINE):
            number += 1
            if len(line) == _LINE:
                raise ValueError(f"line {number} has more than {_LINE // MIB} million characters")
            yield line


def _json(path: Path) -> Iterator[Row]:
    text = path.read_text(encoding=_ENCODING)
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise
        raise ValueError("it holds several JSON values: one a line belong in a .jsonl") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        inside = (
            [k for k, v in rows.items() if isinstance(v, list)] if isinstance(rows, dict) else []
        )
        hint = f"; it has lists under {', '.join(inside)}: write one alone" if inside else ""
        raise ValueError(f"it is not a list of objects, [{{...}}, {{...}}]{hint}")
    yield from rows


def _csv(path: Path) -> Iterator[Row]:
    with path.open(encoding=_ENCODING, newline="") as file:
        reader = csv.DictReader(file, restval="")  # an empty cell, which some columns may have
        names = reader.fieldnames or ()
        if len(set(names)) < len(names):
            raise ValueError("two columns have the same name")
        for other in (";", "\t"):
            if len(names) == 1 and other in names[0]:
                raise ValueError(f"its cells are separated by {other!r}; separate them by ','")
        for row in reader:
            if None in row:
                raise ValueError(f"line {reader.line_num} has more cells than there are columns")
            if any(cell.strip() for cell in row.values()):
                yield row


def _parquet(path: Path) -> Iterator[Row]:
    with pq.ParquetFile(path) as file:
        if file.metadata.num_rows > _ROWS:
            raise ValueError(f"it has more than {_ROWS // 10**6} million rows")
        if len(set(file.schema_arrow.names)) < len(file.schema_arrow.names):
            raise ValueError("two columns have the same name")
        for batch in file.iter_batches():
            yield from batch.to_pylist()


READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _from_hub(name: str, split: str, config: str | None, key: str) -> Iterator[Row]:
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"{key}: {name} is no file here, and reading it from the hub needs datasets; "
            "run: pip install 'sps-rl[hub]'"
        ) from None
    try:
        return (dict(row) for row in datasets.load_dataset(name, config, split=split))
    except Exception as error:  # the hub fails in many ways, none of them ours
        first = str(error).strip().splitlines()[0][:300] if str(error).strip() else repr(error)
        raise UserError(
            f"{key}: there is no file {name} here, and as a data set ({config or 'default'}, "
            f"{split}) it cannot be loaded from the hub: {first}. Without a network, give a local "
            "file instead (for benchmarks: --data-dir, or task.data_dir in a recipe)"
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
    found = found or next((c for c in usual if any(get(r, c) is not None for r in rows)), None)
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
    row: Row, question: str, answer: str | None, name: Any, where: str, whole: bool
) -> Problem:
    asked, gold = get(row, question), get(row, answer) if answer else ""
    meta = {k: v for k, v in row.items() if isinstance(v, str | int | float | bool) and k != "id"}
    for used in (question, answer, "solution"):
        meta.pop(str(used), None)
    lists = {k: row[k] for k in OPTIONS if _are_options(row.get(k))}
    meta |= lists
    if isinstance(asked, list):
        said = read_messages(asked, where)
        asked, meta = said.question, meta | said.meta
    if isinstance(gold, list) and len(gold) == 1 and not whole:
        gold = gold[0]
    if lists and type(gold) is int:  # which option, from 0; as text it could be what one says
        meta["answer"] = gold
    if isinstance(gold, str):
        gold = (_after_hashes(gold) if "####" in gold else gold).strip()
    any_type = whole and not isinstance(gold, str | float)
    found = {"question": asked, **({"answer": gold} if answer and not any_type else {}), "id": name}
    for what, value in (*found.items(), ("system message", meta.get("system", "-"))):
        if fault := _fault(value, what):
            raise UserError(f"{where} {fault}; mend or remove that row")
    return Problem(str(name), str(asked), gold if whole else str(gold), meta)


def _are_options(value: Any) -> bool:
    if isinstance(value, Mapping):  # with labels of their own
        return _are_texts(value.get("text")) and isinstance(value.get("label"), list)
    return _are_texts(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) and is_text(v) for v in value)


def _fault(value: Any, what: str) -> str:
    """What is wrong with a value that is asked, answered or used as a name; empty: nothing."""
    if isinstance(value, list | Mapping):
        return f"has a {type(value).__name__} where its {what} should be"
    # What table programs write for an empty cell; no task has it for an answer.
    if (isinstance(value, float) and not math.isfinite(value)) or str(value).lower() == "nan":
        return f"has {value} where its {what} should be"
    if what != "system message" and (value is None or not str(value).strip()):
        return f"has no {what}"
    if not is_text(str(value)):
        return f"has characters in its {what} that are none (NUL, or half of a pair)"
    return f"has more than {_LINE // MIB} MiB in its {what}" if len(str(value)) > _LINE else ""


def _after_hashes(solution: str) -> str:
    """The answer of a worked solution as GSM8K has it: '... = 1,234 #### 1,234' is 1234."""
    answer = solution.rsplit("####", 1)[-1].strip()
    return answer.replace(",", "") if re.fullmatch(r"-?[\d,.]+", answer) else answer


def _unique(problems: list[Problem], rows: Sequence[Row], where: str) -> None:
    seen: dict[str, int] = {}
    for i, problem in enumerate(problems):
        if problem.id in seen:
            first = seen[problem.id]
            same = rows[first] == rows[i]
            what = "are the same row, with" if same else "have"
            how = "remove one" if same else "name another column with task.columns.id"
            raise UserError(
                f"{where}: rows {first + 1} and {i + 1} {what} the same id {problem.id!r}; {how}"
            )
        seen[problem.id] = i
