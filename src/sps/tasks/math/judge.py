"""Mathematics: which answer a text gives, and whether it is the gold one.

The last box counts; without a box, what the text says its answer is, or its last formula or number.
The pool's workers import this module: nothing here loads torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import sympy

from sps.tasks import answers
from sps.tasks.math import equality, notation, units
from sps.tasks.math.numbers import exact
from sps.tasks.math.reading import Reading, read, read_less_percent, read_with_letter
from sps.types import Problem, Verdict
from sps.verify.limit import TimeIsUp, time_limit

_LONGEST = 2000  # characters of an answer that are read as one
_DEEPEST = 16  # nested brackets; sympy needs seconds for 15 nested fractions, hours for 30
_TAIL = 6000  # characters at the end of a text without a box that are searched for an answer
_NOTHING = "no answer found"
# 'The area is $12$.', but not 'All primes $p$' or 'not $3$'.
_SAID = re.compile(
    r"(?:(?!\bnot\b)[^$\\])*(?:\b(?:is|are|equals?|be)|:|=)\s*(\$[^$]+\$|\\\((?:(?!\\\)).)+\\\))\s*\.?",
    re.IGNORECASE,
)


def judge_within(seconds: float, gold: str, text: str, finished: bool, cut: str) -> Verdict:
    """`judge` with a time limit, where signals work (see limit.py)."""
    try:
        with time_limit(seconds):
            return judge(gold, text, finished, cut)
    except TimeIsUp:
        return Verdict("timeout", 0.0, f"no verdict within {seconds:g} s")
    except Exception as error:
        return Verdict("crashed", 0.0, f"{type(error).__name__}: {error}"[:200])


def make_judge(cut: str = "zero") -> Callable[[Problem, str, bool], Verdict]:
    """The judge as the pool's workers build it. `cut` says what becomes of a completion that was
    cut off at the token limit: 'zero' or, if it holds a box already, 'judge'."""

    def judge_with(problem: Problem, text: str, finished: bool) -> Verdict:
        return judge(problem.answer, text, finished, cut)

    return judge_with


def judge(gold: str, text: str, finished: bool = True, cut: str = "zero") -> Verdict:
    """The verdict on one completion; may take as long as sympy pleases, so run it in the pool."""
    if not finished:
        found = answers.last_boxes(answers.prose(text).text)
        if cut == "zero" or not found:
            shown = found[-1] if found else ""
            return Verdict("truncated", 0.0, "cut off at the token limit", shown)
    after = answers.after_thinking(text)
    if after is not None:
        verdict = _judge_text(gold, after)
        if verdict.detail != _NOTHING:
            return verdict
    return _judge_text(gold, text)


def _judge_text(gold: str, text: str) -> Verdict:
    if not text.strip():
        return Verdict("unparsed", 0.0, "empty")
    prose = answers.prose(text)
    boxes = answers.last_boxes(prose.text, tight=True)
    if boxes:
        stated = answers.stated_after_boxes(prose.text)
        if stated:
            return _judge_answer(gold, (stated,))
        return _judge_answer(gold, tuple(boxes), tuple(answers.last_boxes(prose.text)))
    tail = prose.text[-_TAIL:]
    bare = answers.is_bare(tail)
    stated = tail.strip() if bare else answers.stated(tail, prose.ends_in_code)
    if not stated:
        return Verdict("unparsed", 0.0, _NOTHING)
    verdict = _judge_answer(gold, (stated,))
    if verdict.kind == "wrong" and re.fullmatch(r"-?\d+,\d\d?", stated):  # 1000,99
        return _judge_answer(gold, (stated.replace(",", "."),))
    return verdict


@lru_cache(maxsize=20_000)  # the samples of a question share a few answers
def _judge_answer(gold: str, parts: tuple[str, ...], wider: tuple[str, ...] = ()) -> Verdict:
    """The verdict on an answer in one part, or in several that are one list. `wider` has the parts
    before them that may belong to it: a step on the way, or half of the answer."""
    last = parts[-1]
    if faults := _faults(", ".join(parts)):
        return Verdict("unparsed", 0.0, faults, last[:200])
    if not last:
        return Verdict("unparsed", 0.0, "the box is empty")
    parts = tuple({notation.squeeze(part): part for part in parts}.values())
    verdict = _compare(gold, ", ".join(parts), last)
    if verdict.kind == "correct":
        return verdict
    # 1/2 or 0.5: one answer, twice.
    if len(parts) > 1 and all(_compare(gold, part, part).kind == "correct" for part in parts):
        return Verdict("correct", 1.0, "equal", last)
    if len(wider) > len(parts) and not _faults(together := ", ".join(wider)):
        whole = _compare(gold, together, last)
        return whole if whole.kind == "correct" else verdict
    return verdict


def _faults(answer: str) -> str:
    """Why an answer is not even read: nothing honest looks like that, and it may take hours."""
    if len(answer) > _LONGEST:
        return "the answer is too long"
    if answers.nesting(answer) > _DEEPEST:
        return "brackets are nested too deep"
    if any(answer.count(sign) > 100 for sign in ("\\frac", "^", "'", "=")):
        return "too many fractions, powers, primes or equations"
    if re.search(
        r"binom\s*\{?\s*\d{5,}|\\binom\s*\{[^{}]*\^", answer
    ):  # worked out while it is read
        return "a binomial coefficient too large to work out"
    return ""


def _compare(gold: str, got: str, shown: str) -> Verdict:
    plain = _plain_gold(gold)
    if notation.squeeze(plain) == notation.squeeze(got):
        return Verdict("correct", 1.0, "same text", shown)
    known = _compare_numbers(plain, got)
    if known is not None:
        return Verdict(
            "correct" if known else "wrong", float(known), "equal" if known else "not equal", shown
        )
    return _compare_reading(gold, read(got), shown)


def _compare_reading(gold: str, reading: Reading, shown: str) -> Verdict:
    golds, bare = read_gold(gold), read_less_percent(reading.text)
    pairs = [(want, reading) for want in golds]
    if bare and len(golds) == 2:  # both in per cent
        pairs = [(golds[1], bare)]
    elif bare and _above_one(golds[0]):
        pairs.append((golds[0], bare))
    if any(_same(want, have) for want, have in pairs):
        return Verdict("correct", 1.0, "equal", shown)
    want_expression = any(g.expression is not None for g in golds)
    if want_expression and reading.expression is None:
        return Verdict("unparsed", 0.0, "not a mathematical expression", shown)
    return Verdict("wrong", 0.0, "not equal", shown)


def _above_one(gold: Reading) -> bool:
    """Not a share: 0.5% is not 0.5."""
    return isinstance(gold.expression, sympy.Number) and abs(float(gold.expression)) > 1


def _same(gold: Reading, got: Reading) -> bool:
    said = notation.words(gold.latex), notation.words(got.latex)
    if said[0] and said[1] and notation.same_words(said[0], said[1]):
        return True
    if said[0] and (choice := notation.choice(got.text)):
        return said[0][0] == choice
    if any(word and (word[1] or len(word[0]) == 1) for word in said) and (all(said)):
        return False
    if all(notation.has_base(reading.latex) for reading in (gold, got)):
        return notation.numeral(gold.latex) == notation.numeral(got.latex) is not None
    for numeral in (gold.latex, got.latex):  # the question may have said the base
        if notation.has_base(numeral) and not notation.is_numeral(numeral):
            return False
    if None not in (gold.units, got.units) and gold.units != got.units:
        return False
    if notation.is_braced(gold.latex) and notation.is_point(got.latex):
        return False
    if notation.is_braced(got.latex) and notation.is_point(gold.latex):
        return False
    for one, other in ((gold, got), (got, gold)):
        if one.units == (("rad", 1),) and "\\circ" in other.latex:
            return False
    if gold.label and got.label and gold.label != got.label:
        return False
    if gold.latex and notation.squeeze(gold.latex) == notation.squeeze(got.latex):
        return True
    if gold.units and not got.units and (letter := read_with_letter(got.text)).units == gold.units:
        got = letter
    if got.units and not gold.units and (letter := read_with_letter(gold.text)).units == got.units:
        gold = letter
    if gold.expression is None or got.expression is None:
        return False
    return equality.same(gold.expression, got.expression)


def _compare_numbers(gold: str, got: str) -> bool | None:
    """Most competition answers: no need to ask Math-Verify, and no way for it to err. None where
    it has to be asked; a decimal that is not exactly the gold answer may be near enough."""
    want, have = (units.split(notation.clean(text)) for text in (gold, got))
    if None not in (want.units, have.units) and want.units != have.units:
        return None
    a, b = (exact(quantity.body) for quantity in (want, have))
    if a is None or b is None:
        return None
    if a[0] == b[0]:
        return True
    if a[1] and b[1]:  # as many places, and other digits
        places = [len(quantity.body.strip().partition(".")[2]) for quantity in (want, have)]
        return False if places[0] == places[1] else None
    return None if a[1] or b[1] else False


def _plain_gold(gold: str) -> str:
    """A gold answer without the words around it: 'The answer is $5$', '$5', '\\boxed{5}'."""
    boxes = answers.last_boxes(gold)
    if boxes:
        return ", ".join(boxes)
    said = _SAID.fullmatch(gold.strip())
    return said.group(1) if said else gold


@lru_cache(maxsize=50_000)
def read_gold(gold: str) -> tuple[Reading, ...]:
    """Every sound reading of a gold answer; parsed once in the life of a worker."""
    plain = _plain_gold(gold)
    return tuple(found for found in (read(plain), read_less_percent(plain)) if found)
