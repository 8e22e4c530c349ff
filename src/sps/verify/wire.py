"""What goes between the trainer and a worker: a length, then JSON. Nothing of it can be code.

The trainer trusts no byte that comes back. A reply is one of four short lists, checked field by
field; whatever else a worker sends is a `Malformed`, which costs it its life and its sample a
verdict of 'crashed'.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from sps.types import KINDS, Problem, Verdict

LONGEST = 500  # characters of an answer or a detail that are sent back
LARGEST = 1 << 14  # bytes of a reply: two texts of that length, escaped, and a little
_TUPLE, _TABLE = "(tuple)", "(table)"


class Malformed(ValueError):
    """A worker sent what no worker of ours sends."""


@dataclass(frozen=True)
class Ready:
    """The judge is loaded."""


@dataclass(frozen=True)
class Failed:
    """The judge cannot be loaded."""

    why: str


@dataclass(frozen=True)
class Full:
    """The memory is, or was nearly, used up: this sample needs a new worker."""

    sample: int


@dataclass(frozen=True)
class Judged:
    """A verdict on one sample."""

    sample: int
    verdict: Verdict


Reply = Ready | Failed | Full | Judged


def frame(message: Any, text: bytes = b"") -> bytes:
    """A message as it goes through a pipe; `text` stands behind it, as long texts are slow as JSON.
    The message itself is ASCII, without line breaks."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return struct.pack("<I", len(body) + len(text)) + body + text


def request(sample: int, problem: Problem, text: str, finished: bool) -> bytes:
    """One sample to judge; `sample` is a number that its reply must name."""
    answer, meta = (
        _plain(value, f"problem {problem.id}: its {what}")
        for what, value in (("answer", problem.answer), ("meta", dict(problem.meta)))
    )
    head = [sample, problem.id, problem.question, answer, meta, finished]
    return frame(head, b"\n" + text.encode("utf-8", "surrogatepass"))  # half a pair is text too


def read_request(body: bytes) -> tuple[int, Problem, str, bool]:
    """The inverse, in the worker."""
    head, _, tail = body.partition(b"\n")
    sample, name, question, answer, meta, finished = json.loads(head)
    text = tail.decode("utf-8", "surrogatepass")
    return sample, Problem(name, question, _restored(answer), _restored(meta)), text, finished


def reply(message: Reply) -> bytes:
    """A reply, its texts cut to length."""
    if isinstance(message, Judged):
        v = message.verdict
        texts = [v.detail[:LONGEST], v.answer[:LONGEST]]
        return frame(["judged", message.sample, v.kind, float(v.reward), *texts])
    if isinstance(message, Full):
        return frame(["full", message.sample])
    return frame(["failed", message.why[:LONGEST]] if isinstance(message, Failed) else ["ready"])


def replies(buffer: bytearray) -> Iterator[Reply]:
    """Take every whole reply from the front of a buffer; Malformed at the first that is none."""
    while len(buffer) >= 4:
        size = struct.unpack_from("<I", buffer)[0]
        if size > LARGEST:
            raise Malformed(f"a reply of {size} bytes")
        if len(buffer) < 4 + size:
            return
        body = bytes(buffer[4 : 4 + size])
        del buffer[: 4 + size]
        yield read_reply(body)


def read_reply(body: bytes) -> Reply:
    """A reply, checked; the types are the exact ones, so True is no number here."""
    try:
        # Not the default decoding: that guesses UTF-16 from the first bytes.
        message = json.loads(body.decode("ascii"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"a reply that cannot be read ({type(error).__name__})") from None
    match message if type(message) is list else None:
        case ["ready"]:
            return Ready()
        case ["failed", str(why)] if len(why) <= LONGEST:
            return Failed(why)
        case ["full", sample] if type(sample) is int:
            return Full(sample)
        case ["judged", sample, str(kind), reward, str(detail), str(answer)]:
            fits = len(detail) <= LONGEST and len(answer) <= LONGEST
            numbers = type(sample) is int and type(reward) is float
            if fits and numbers and kind in KINDS and _pays(kind, reward):
                return Judged(sample, Verdict(kind, reward, _utf8(detail), _utf8(answer)))
    raise Malformed("a reply of no known form")


def _utf8(text: str) -> str:
    """Half a surrogate pair, which a judge may have found or made, can be stored nowhere."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _pays(kind: str, reward: float) -> bool:
    """A right answer is worth something, up to 1, a wrong one less than 1, others nothing."""
    if kind == "wrong":
        return 0.0 <= reward < 1.0
    return 0.0 < reward <= 1.0 if kind == "correct" else reward == 0.0


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _plain(value: Any, where: str) -> Any:
    """JSON knows no tuples and no keys but strings; judges compare with them, so they are kept."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list):
        return [_plain(v, where) for v in value]
    if isinstance(value, tuple):
        return {_TUPLE: [_plain(v, where) for v in value]}
    if isinstance(value, dict):
        if all(type(key) is str for key in value) and not {_TUPLE, _TABLE} & value.keys():
            return {key: _plain(v, where) for key, v in value.items()}
        return {_TABLE: [[_plain(k, where), _plain(v, where)] for k, v in value.items()]}
    raise TypeError(
        f"{where} holds a {type(value).__name__}; a verifier's worker takes "
        "numbers, strings, lists, tuples and dicts"
    )


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(v) for v in value]
    if isinstance(value, dict):
        if _TUPLE in value:
            return tuple(_restored(v) for v in value[_TUPLE])
        if _TABLE in value:
            return {_restored(k): _restored(v) for k, v in value[_TABLE]}
        return {key: _restored(v) for key, v in value.items()}
    return value
