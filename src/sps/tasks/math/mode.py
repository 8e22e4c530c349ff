"""Which solution a right answer to a question of mathematics is: a proxy that can be computed."""

from __future__ import annotations

import hashlib
import re
from fractions import Fraction

from sps.tasks import answers

_NUMBER = r"[-\u2212]?\d{1,3}(?:,\d{3})+(?:\.\d{1,18})?|[-\u2212]?\d{0,18}\.?\d{1,18}"
# One side of an equation that is a number and nothing else: not `= 3 * 4`, not `= 5x`.
_RESULT = re.compile(
    r"(?<![<>!=:])=\s{0,9}(?:\\?[$€£]\s?)?(?:"
    r"(?P<sign>[-\u2212]?)\\[dt]?frac\{(?P<top>[-\u2212]?\d{1,18})\}\{(?P<bottom>\d{1,18})\}"
    rf"|(?P<number>{_NUMBER})(?:/(?P<over>\d{{1,18}}))?)"
    r"(?![\w^({]|[.,]\d)(?!\s{0,9}(?:[-+*/^=\u00d7\u00f7\u00b7\u2212]\s?[\w\\($]|\\(?:times|cdot|div|sqrt|pi|frac|left)))"
)


def mode(gold: str, text: str) -> str:
    """A short hash of the intermediate results: the multiset of the numbers that stand after `=`,
    each in one spelling (1,200 and 1200.0, 1/2 and 0.5), in any order.

    The final answer is left out, in its box and wherever an equation arrives at it. It is a proxy:
    two methods with the same intermediate numbers count as one; one method with a step more, less
    or in words counts as two; results that are not plain numbers are not seen.
    """
    body, kept, place = answers.prose(text).text, "", 0
    for start, end, _ in answers.boxes(body):
        kept, place = f"{kept}{body[place:start]} ", end
    kept += body[place:]
    found = [value for match in _RESULT.finditer(kept) if (value := _value(match)) is not None]
    final = _RESULT.fullmatch(f"={gold.strip().strip('$')}")
    answer = _value(final) if final else None
    results = sorted(value for value in found if value != answer)
    return hashlib.sha256(" ".join(map(str, results)).encode()).hexdigest()[:12]


def _value(match: re.Match[str]) -> Fraction | None:
    part = {key: (text or "").replace("\u2212", "-") for key, text in match.groupdict().items()}
    if part["number"]:
        top, bottom = Fraction(part["number"].replace(",", "")), int(part["over"] or 1)
    else:
        top, bottom = Fraction(part["top"]), int(part["bottom"])
    if bottom == 0:
        return None
    return (-top if part["sign"] else top) / bottom
