"""Finding the answer in a text, and tidying it before Math-Verify reads it. Strings only."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)|\\boxed\s+(?=\S)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_JOINT = re.compile(r"\b(?:and|or)\b|[,;]")
_LONE_LETTER = re.compile(
    r"\\(?:mathrm|text|textrm|mathit|textit|rm|operatorname)\s*\{\s*([a-zA-Z])\s*\}"
)
_THOUSANDS = re.compile(
    r"(?<![\d.,])\d{1,3}(?:(?:\{,\}|,\\!|\\,|\\!|\\ |~|\u202f|\u2009|\u00a0)\d{3})+(?!\d)"
)
_SIGNS = str.maketrans({"\u2212": "-", "\u2013": "-", "\uff0c": ",", "\u00d7": "*", "\u00f7": "/"})
_UNIT_AT_END = re.compile(
    r"\\(?:text|mathrm|mbox|textrm)\s*\{\s*([^{}]*?)\s*\}\s*(?:\^\s*\{?\s*(\d)\s*\}?)?\s*\.?\s*\Z"
)
_PLAIN_UNIT = re.compile(r"\d\s*([a-zA-Z]+)(?:\^\{?(\d)\}?)?\s*\.?\s*\Z")
_WITH_UNIT = re.compile(r"(-?[\d.,]+)\s+([a-zA-Z]+)\.?")
_NUMERAL = re.compile(r"([0-9A-Z]+)\s*_\s*\{?\s*(\d+)\s*\}?")
_WHOLE = (
    # 1 000 000
    (re.compile(r"-?\d{1,3}(?: \d{3})+"), lambda m: m.group().replace(" ", "")),
    # 1 1/2
    (re.compile(r"(-?\d+) (\d+)/(\d+)"), lambda m: f"{m[1]}\\frac{{{m[2]}}}{{{m[3]}}}"),
    # 1.6e-7
    (
        re.compile(r"(-?\d+(?:\.\d+)?)[eE]([+-]?\d{1,4})"),
        lambda m: f"{m[1]} \\times 10^{{{int(m[2])}}}",
    ),
)
# One name for each spelling; units that differ under the same number are different answers.
_UNITS = {
    name: names.split()[0]
    for names in (
        "mm millimeter millimeters millimetre millimetres",
        "cm centimeter centimeters centimetre centimetres",
        "km kilometer kilometers kilometre kilometres",
        "m meter meters metre metres",
        "in inch inches",
        "ft foot feet",
        "yd yard yards",
        "mi mile miles",
        "mg milligram milligrams",
        "kg kilogram kilograms",
        "g gram grams",
        "lb lbs pound pounds",
        "s sec secs second seconds",
        "min mins minute minutes",
        "h hr hrs hour hours",
        "day days",
        "week weeks",
        "month months",
        "year years",
        "cent cents",
        "dollar dollars",
        "degree degrees deg",
        "rad radian radians",
    )
    for name in names.split()
}


def boxes(text: str) -> list[tuple[int, int, str]]:
    """Every \\boxed{...} that is closed: where it starts, where it ends, what it holds.

    A box inside another is part of the outer one. A box that is never closed is not an answer.
    """
    found: list[tuple[int, int, str]] = []
    starts = list(_BOX.finditer(text))
    closing = _closing_braces(text) if starts else {}
    for match in starts:
        begin = match.end()
        if found and match.start() < found[-1][1]:
            continue
        if text[begin] != "{":
            found.append((match.start(), begin + 1, text[begin]))
        elif begin in closing:
            found.append((match.start(), closing[begin], text[begin + 1 : closing[begin] - 1]))
    return found


def _closing_braces(text: str) -> dict[int, int]:
    """For each brace that is closed, the place just past the one that closes it; in one pass, for
    texts may hold thousands that are not."""
    closing, open_at = {}, []
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            open_at.append(match.start())
        elif match.group() == "}" and open_at:
            closing[open_at.pop()] = match.end()
    return closing


def last_boxes(text: str) -> list[str]:
    """What the last box holds; before it, boxes that are joined to it by 'and', 'or' or a comma."""
    found = boxes(text)
    if not found:
        return []
    group = [found[-1]]
    for box in reversed(found[:-1]):
        between = text[box[1] : group[0][0]]
        if len(between) > 70 or (len(between) > 9 and not _JOINT.search(between)):
            break
        group.insert(0, box)
    return [inside.strip() for _, _, inside in group]


def stated_after_boxes(text: str) -> str:
    """'The final answer is ...' after the last box, which then was a step on the way; or ''."""
    rest = text[boxes(text)[-1][1] :]
    match = re.search(r"final answer(?: is|:)[^\n]{0,200}\d", rest[:5000], re.IGNORECASE)
    return rest[match.start() :] if match else ""


def is_bare(text: str) -> bool:
    """A text that is an answer and nothing else: one short line, no prose, no marked formula."""
    line = text.strip()
    if not line or len(line) > 200 or "\n" in line or re.search(r"(?<!\\)\$|\\[(\[]|[:?€£]", line):
        return False
    plain = re.sub(r"\\[a-zA-Z]+(?:\s*\{[a-zA-Z ]*\})?", " ", line)  # commands and their words
    return re.search(r"[a-zA-Z]{2,}", plain) is None


def is_number(text: str) -> bool:
    """One number or sum of numbers, in plain characters: 1 000, 1,22, 3/4, 2*10^3."""
    number = r"[-+]?(?:\d{1,3}(?:[ ,]\d{3})+(?:\.\d+)?|\d+(?:[.,]\d+)?|\.\d+)"
    return re.fullmatch(rf"{number}\s*%?|[-+*/^().\d\s]+", text.strip()) is not None


def tidy(latex: str) -> str:
    """The same answer with the spellings that Math-Verify 0.9 misreads replaced.

    `\\mathrm{e}` at the end of a fraction is taken for a unit and cut off with all that follows;
    `10\\,000` and `10{,}000` are thousands.
    """
    latex = latex.translate(_SIGNS).replace("\0", " ")
    latex = _LONE_LETTER.sub(r" \1", latex)
    return _THOUSANDS.sub(lambda m: re.sub(r"\D", "", m.group()), latex)


def tidy_answer(latex: str) -> str:
    """`tidy`, and spellings that are plain only when they are the whole answer."""
    latex = tidy(latex.replace("\\$", "")).strip()
    if re.search(r"[\w})\]]\.\Z", latex):  # a full stop
        latex = latex[:-1]
    for pattern, rewrite in _WHOLE:
        if match := pattern.fullmatch(latex):
            return rewrite(match)
    if (match := _WITH_UNIT.fullmatch(latex)) and match.group(2).lower() in _UNITS:
        return match.group(1)
    return latex


def numeral(latex: str) -> tuple[str, str] | None:
    """Digits and base of a number such as 4210_5."""
    match = _NUMERAL.fullmatch(latex.strip().strip("$").strip())
    return (match.group(1), match.group(2)) if match else None


def without_percent(latex: str) -> str | None:
    """An answer less its per cent sign, or None when it has none."""
    match = re.fullmatch(
        r"(.*\d.*?)\s*(?:\\?%|\\text\{\s*(?:percent|%)\s*\})", latex.strip("$ "), re.DOTALL
    )
    return match.group(1) if match else None


def unit(latex: str) -> str | None:
    """The known unit an answer ends with, as one spelling, with its power: 'cm', 'm^2'."""
    latex = latex.strip().strip("$").strip()
    match = _UNIT_AT_END.search(latex) or _PLAIN_UNIT.search(latex)
    if match is None:
        return None
    words, power = match.group(1).lower().strip(" ."), match.group(2)
    for shape, number in (("square ", "2"), ("cubic ", "3"), ("sq ", "2")):
        if words.startswith(shape):
            words, power = words.removeprefix(shape), number
    name = _UNITS.get(words.strip())
    return None if name is None else f"{name}^{power}" if power else name


def text_inside(latex: str) -> bool:
    """A text block with mathematics after it: Math-Verify's unit rule would cut off both."""
    match = re.search(
        r"\\(?:text|mbox|math(?:rm|it|bf)|text(?:rm|bf|it|normal))\s*\{[^{}]*\}", latex
    )
    if match is None:
        return False
    rest = re.sub(
        r"\\(?:text|mbox|mathrm)\s*\{[^{}]*\}|\^\s*\{?\d\}?|[\s.$]", "", latex[match.end() :]
    )
    return bool(rest)


def nesting(text: str) -> int:
    """How deep brackets of any kind are nested."""
    depth = deepest = 0
    for char in text:
        if char in "({[":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")}]":
            depth = max(0, depth - 1)
    return deepest


def balanced(latex: str) -> bool:
    """Whether every brace is closed."""
    depth = 0
    for match in _BRACE.finditer(latex):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth < 0:
            return False
    return depth == 0


def words(latex: str) -> str:
    """An answer in words, stripped to what matters: letters and digits in lower case, or ''."""
    plain = re.sub(
        r"\\(?:text|mathrm|mathbf|textbf|mathit|mbox|textrm)\s*\{([^{}]*)\}", r"\1", latex
    )
    plain = re.sub(r"[\s$.{}()]|\\[ ,;!]", "", plain).lower()
    return plain if re.fullmatch(r"[^\W\d_][\w-]*", plain) else ""
