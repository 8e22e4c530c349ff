"""Finding the answer in a text: what a model wrote in, the words that count as its answer out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sps.tasks.math.units import NAMES as UNIT_NAMES

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*(?=\{)|\\boxed\s+(?=\S)")
# What is joined to a box in its formula: a sign before it, a factor or a power after it.
_SIGN = re.compile(r"(?:[$=]|\\[(\[])\s*-\s*\Z")
_FACTOR = re.compile(r"\s*(\\pi\b|\\sqrt\s*\{[^{}]*\}|\^\s*(?:\{\d+\}|\d))")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
# What may stand between two boxes that are one answer: \boxed{2} and $y = \boxed{5}$.
_TIGHT = re.compile(
    r"(?:[-\s$.,;:&*/=+]|\(?\b[a-z\d][.)]|\\[()\[\],;!\\]|\\q?quad|\b(?:and|or)\b|\\(?:text|mbox)\{\s*(?:and|or)?\s*\}"
    r"|[a-zA-Z](?:_\{?\w\}?)?\s*=)*"
)
_JOINT = re.compile(r"\b(?:and|or)\b|[,;]")
_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n?", re.MULTILINE)
_PROSE_FENCES = {"", "text", "latex", "tex", "math", "markdown", "md", "plaintext", "answer"}
_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\)"
    r".*?(?:^\w[\w.]*(?:Error|Exception|Interrupt|Exit)\b[^\n]*|\Z)",
    re.DOTALL | re.MULTILINE,
)
_CODE = re.compile(
    r"import [\w.]+(?: as \w+)?(?:,.*)?\s*$|from [\w.]+ import |(?:async )?def \w+\(|class \w+[(:]"
    r"|print\s*\(|return [^ ]+\s*$|>>> |#include|console\.|printf|std::|assert "
    r"|(?:int|void|float|double|char|long|bool) \w+\s*[(=;]|(?:[\w, ]+=\s*)?(?:symbols|solve)\("
    r"|File \".*\", line \d|[\w.]+(?:Error|Exception)(?::|\s*$)|(?:[eE]rror|fatal|warning): "
    r"|Exception in thread |at [\w.$]+\([\w.]+:\d+\)|.*\bexit(?:ed)? with (?:status|code) \d"
)
_LIKE_CODE = re.compile(
    r"[\w.\[\]]+\s*[-+*/]?=[^=].*|[\w.]+\(.*\)\s*|#.*|.*[;{}]|[)\]}]+|-?[\d.]+|\s.*"
)
_ANCHOR = re.compile(
    r"\banswers?\b[^.\n$\d\\]{0,60}?(?:\bis\b|\bare\b|:|=|\bbe\b|\bequals?\b)[\s*:]*|#{4}\s*"
    r"|<answer>",
    re.IGNORECASE,
)
_FINAL = re.compile(r"final answer(?: is|:)", re.IGNORECASE)
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+,\d\d?(?![\d,.])|\d+(?:\.\d+)?)"
_NUMBER = rf"(?:{_DIGITS}|\.\d+)"
_PLAIN = re.compile(
    rf"(?<![\w.\\#])(?:(?<![\w)])[-+\u2212]\s?)?[$€£]?{_NUMBER}"
    rf"(?:\s*[-+*/^\u00d7\u00f7x]\s*\(?-?[$€£]?{_NUMBER}\)?)*(?!(?:st|nd|rd|th)\b|\.?\d)"
    r"(?:\s*(?:\\?%|percent\b))?"
)
_FORMULA = re.compile(
    r"\$\$(?P<a>.+?)\$\$|\\\[(?P<b>.+?)\\\]|\\\((?P<c>.+?)\\\)"
    r"|(?<!\\)\$(?P<d>(?:\\\$|[^$\n])+?)(?<!\\)\$"
    r"|(?P<e>-?\\[dt]?frac\{[^{}]*\}\{[^{}]*\})",
    re.DOTALL,
)
_LIST = re.compile(r"\s*(?:,\s*and\b|,\s*or\b|,|\band\b|\bor\b)\s*")
_LEADS = re.compile(r"(?:\b(?:is|are|be|equals?)|=|:)[\s*]*\Z")
_WORDS = re.compile(r"[\s*:]*(\([A-Z]\)|(?:[a-zA-Z][\w-]*[ ]?){1,3})[\s*]*(?:[.!\n<]|\Z)")
_SENTENCE_END = re.compile(r"[.?!]\s+|\n+")
_EQUALS = re.compile(r"=\s*[-$€£]*\Z")
_NOT = re.compile(
    r"(?:\bnot|\bcannot|n['\u2019]t)\s+(?:be\s+|equal\s+(?:to\s+)?)?\Z", re.IGNORECASE
)
# A formula that no dollar sign marks: 2x + 1, 5 pi, sqrt(3), x < 4, 3:2, 1 1/2, 6 million.
_LETTERED = r"(?<![a-zA-Z])(?![IaA] [a-z])[a-zA-Z](?![a-zA-Z'\u2019])"
_CALL = r"(?:sqrt|sin|cos|tan|log|ln|exp|pi)(?![a-zA-Z])|[\u221a\u03c0]"
_ATOM = re.compile(
    rf"(?P<mark>\\(?!text|mbox|mathrm|q?quad)[a-zA-Z]+|!(?=\s*[-+*/=^])|(?<![a-zA-Z]){_CALL}|[<>\u2264\u2265\u2260^_]|\\[{{}}])"
    r"|(?P<mixed>(?<![\d.,/])\d+ \d+/\d+|\d+ ?: ?\d+(?:\.\d+)?(?!\d)"
    r"|\d+(?:\.\d+)?[eE][-+]?\d+|\d+(?:\.\d+)? (?:hundred|thousand|million|billion|dozen)\b)"
    rf"|(?P<letter>{_LETTERED}|(?<=\d)[a-zA-Z]{{2,3}}(?![a-zA-Z]))"
    rf"|(?P<number>{_NUMBER})|(?P<sign>[-+*/(){{}}|\u2212])"
)
_SIGNS = "-+*/\u2212"
_REACH = 400  # characters after 'the answer is' in which it is looked for


@dataclass(frozen=True)
class Prose:
    """A text without the code in it."""

    text: str
    ends_in_code: bool  # so that what stands before was not meant as the last word


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
            end = closing[begin]
            inside = _with_neighbours(text, match.start(), end, text[begin + 1 : end - 1])
            found.append((match.start(), end, inside))
    return found


def _with_neighbours(text: str, start: int, end: int, inside: str) -> str:
    """A box is part of its formula: $-\\boxed{4}$ is -4, and \\boxed{4}\\pi is no 4."""
    before = _SIGN.search(text, max(0, start - 8), start)
    after = _FACTOR.match(text, end)
    if not (before or after) or not inside.strip() or re.search(r"[=,;]|\\text", inside):
        return inside
    whole = f"({inside})" if re.search(r"[-+]", inside) else inside
    return ("-" if before else "") + whole + (after.group(1) if after else "")


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


def last_boxes(text: str, tight: bool = False) -> list[str]:
    """What the last box holds; before it, boxes that are joined to it by 'and', 'or' or a comma,
    with other words between them unless `tight`."""
    found = boxes(text)
    if not found:
        return []
    group = [found[-1]]
    for box in reversed(found[:-1]):
        between = text[box[1] : group[0][0]]
        if not _TIGHT.fullmatch(between) and (
            tight or len(between) > 70 or not _JOINT.search(between)
        ):
            break
        group.insert(0, box)
    return [inside.strip() for _, _, inside in group]


def after_thinking(text: str) -> str | None:
    """What follows </think>, where there is any; the thoughts before it are not the answer."""
    _, end, after = text.rpartition("</think>")
    return after if end and re.search(r"\w", after) else None


def prose(text: str) -> Prose:
    """The text less code, its output and tracebacks; a box in a program is no answer."""
    kept, place, code_to = [], 0, -1
    fences = iter(_FENCE.finditer(text))
    for opening in fences:
        closing = next(fences, None)
        end = closing.end() if closing else len(text)
        inside = text[opening.end() : closing.start() if closing else len(text)]
        kept.append(text[place : opening.start()])
        place = end
        code = any(_CODE.match(line.strip()) for line in inside.split("\n"))
        if opening.group(1).lower() in _PROSE_FENCES and not code:
            kept.append(inside)
        else:
            code_to = end
    plain = "".join([*kept, text[place:]])
    ends_in_code = code_to >= 0 and not re.search(r"\w", text[code_to:])
    less = _without_last_code(_TRACEBACK.sub(_SEAM, plain))
    _, seam, rest = less.rpartition(_SEAM)
    ends_in_code = ends_in_code or (seam == _SEAM and not re.search(r"\w", rest))
    return Prose(less.replace(_SEAM, "\n"), ends_in_code)


_SEAM = "\0"  # where a traceback or a program was taken out


def _without_last_code(text: str) -> str:
    """A program at the end that nothing marks as one is taken out."""
    lines = text.split("\n")
    first, program = len(lines), False
    for line in reversed(lines):
        code = _CODE.match(line.strip()) is not None
        if line.strip() and not code and not _LIKE_CODE.fullmatch(line):
            break
        program = program or code
        first -= 1
    return "\n".join([*lines[:first], _SEAM]) if program else text


def stated_after_boxes(text: str) -> str:
    """What 'The final answer is ...' after the last box says, for the box then was a step on the
    way."""
    rest = text[boxes(text)[-1][1] :][:5000]
    match = _FINAL.search(rest)
    after = rest[match.end() :][:_REACH].split("\n\n")[0] if match else ""
    return _first(after) if re.search(r"\d|\$|\\", after) else ""


def stated(text: str, only_if_announced: bool = False) -> str:
    """The answer of a text without a box: what it says the answer is, else its last formula or
    number."""
    for match in reversed(list(_ANCHOR.finditer(text))):
        if found := _first(text[match.end() :][:_REACH]):
            return found
    return "" if only_if_announced else _last(text)


def _first(text: str) -> str:
    """The first formula or number, with those that a list goes on with; a later one that its
    sentence leads up to: 'The volume of $ABCD$ is 120'. Words where there is none."""
    found = _pieces(text)
    if not found:
        said = _WORDS.match(text)
        return said.group(1).strip() if said else ""
    start = 0
    if re.search(r"\w", text[: found[0][0]]):
        end = re.search(r"[.?!]\s|\n", text[found[0][1] :])
        stop = found[0][1] + end.start() if end else len(text)
        led = [i for i, p in enumerate(found) if p[0] < stop and _LEADS.search(text[: p[0]])]
        start = led[-1] if led else 0
    group = [found[start]]
    for piece in found[start + 1 :]:
        between = text[group[-1][1] : piece[0]]
        if re.fullmatch(r"\s*=\s*", between):  # 26 + 15 = 41, but 2x = 41 whole
            whole = re.match(r"\d+[a-zA-Z]", group[-1][2])
            inside = f"{group[-1][2]} = {piece[2]}" if whole else piece[2]
            group = [(group[-1][0], piece[1], inside)]
        elif _LIST.fullmatch(between):
            group.append(piece)
        else:
            break
    return ", ".join(inside for _, _, inside in group)


def _last(text: str) -> str:
    """The last formula or number, with the formulas of a list that it ends; of several numbers in
    the last sentence the one that was worked out before it."""
    found = _pieces(text)
    if not found:
        return ""
    if result := _worked_out(text, found):
        return result
    group = [found[-1]]
    for piece in reversed(found[:-1]):
        formulas = text[piece[0]] in "$\\" and text[group[0][0]] in "$\\"
        if not formulas or not _LIST.fullmatch(text[piece[1] : group[0][0]]):
            break
        group.insert(0, piece)
    return ", ".join(inside for _, _, inside in group)


def _worked_out(text: str, found: list[tuple[int, int, str]]) -> str:
    """'6 * 2 = $12. So he pays $12 for 2 shirts.': the number of the last sentence that the last
    equation before it arrives at; nothing where that is not so."""
    ends = list(_SENTENCE_END.finditer(text.rstrip()))
    start = ends[-1].end() if ends else 0
    said = [inside for begin, _, inside in found if begin >= start]
    results = [piece for piece in found if piece[0] < start and _EQUALS.search(text[: piece[0]])]
    if len(said) < 2 or not results:
        return ""
    value = _plain_value(results[-1][2])
    return next((s for s in said if value is not None and _plain_value(s) == value), "")


def _plain_value(number: str) -> float | None:
    try:
        return float(re.sub(r"[,$%\\\s]", "", number))
    except ValueError:
        return None


def _pieces(text: str) -> list[tuple[int, int, str]]:
    """Formulas and numbers in their order. A dollar sign before a number may be money."""
    found, place = [], 0
    formulas, at = _unmarked(text), 0
    formula = _FORMULA.search(text)
    while place < len(text):
        number = _PLAIN.search(text, place)
        if formula and (number is None or formula.start() <= number.start()):
            inside = next(part for part in formula.groupdict().values() if part)
            money = _is_money(inside)
            if not money:
                if not _is_denied(text, formula.start()):
                    found.append((formula.start(), formula.end(), inside.strip()))
                place = formula.end()
            # Not again where there is none: a text may open a thousand that it never closes.
            formula = _FORMULA.search(text, formula.start() + 1 if money else place)
            continue
        if number is None:
            break
        start = number.start() - (text[number.start() - 1 : number.start()] == "$")
        end, inside = number.end(), number.group().replace("percent", "%").strip("$€£ ")
        while at < len(formulas) and formulas[at][1] <= number.start():
            at += 1
        begin, stop = formulas[at] if at < len(formulas) else (len(text), len(text))
        if begin <= number.start() and stop - begin > len(number.group()):
            start, end, inside = begin, max(stop, end), _as_latex(text[begin:stop])
        if not _is_denied(text, start):
            found.append((start, end, inside))
        place = end
        if formula and formula.start() < place:
            formula = _FORMULA.search(text, place)
    return found


def _is_denied(text: str, place: int) -> bool:
    """'The answer is not 5.'"""
    return _NOT.search(text[max(0, place - 24) : place]) is not None


def _unmarked(text: str) -> list[tuple[int, int]]:
    """Where formulas stand that nothing marks: numbers with letters, functions or relations."""
    runs: list[list[re.Match[str]]] = []
    for atom in _ATOM.finditer(text):
        if (atom["letter"] or "").lower() in UNIT_NAMES and (
            len(atom[0]) > 1 or text[atom.end() : atom.end() + 1] in ("\u00b2", "\u00b3")
        ):  # 5cm, 5m²
            continue
        if runs and _goes_on(text[runs[-1][-1].end() : atom.start()], runs[-1][-1], atom):
            runs[-1].append(atom)
        else:
            runs.append([atom])
    spans = []
    for run in runs:
        while run and run[-1][0] in "-+*/({^_|<>\u2212":
            run.pop()
        while run and run[0][0] in "+*/)}":
            run.pop(0)
        if any(atom["mark"] or atom["mixed"] or atom["letter"] for atom in run):
            spans.append((run[0].start(), run[-1].end()))
    return spans


def _goes_on(gap: str, left: re.Match[str], right: re.Match[str]) -> bool:
    """Whether two parts belong to one formula: they touch, or a sign or a function is one."""
    if gap.strip(" ") or len(gap) > 1:
        return False
    joined = left["mark"] or left[0] in _SIGNS or left[0] in "({"
    return not gap or bool(joined or right["mark"] or right[0] in _SIGNS or right[0] in ")}")


def _as_latex(formula: str) -> str:
    """sqrt(3) and 6 million as the reader of formulas knows them."""
    formula = re.sub(r"(?<!\\)(?:\bsqrt|\u221a)\s*(?:\(([^()]*)\)|(\w+))", r"\\sqrt{\1\2}", formula)
    formula = re.sub(r"(?<![\\a-zA-Z])(sin|cos|tan|log|ln|exp|pi)(?![a-zA-Z])", r"\\\1 ", formula)
    return re.sub(r" (hundred|thousand|million|billion|dozen)\Z", r"\\text{ \1}", formula)


def _is_money(inside: str) -> bool:
    """'5 and she sells it for ' between two dollar signs."""
    plain = re.sub(r"\\[a-zA-Z]+(?:\s*\{[^{}]*\})?", " ", inside)
    return re.match(r"\s*\d", inside) is not None and re.search(r"[a-zA-Z]{2,}", plain) is not None


def is_bare(text: str) -> bool:
    """A text that is an answer and nothing else: one short line, no prose, no marked formula."""
    line = text.strip()
    if (
        not line
        or len(line) > 200
        or "\n" in line
        or re.search(r"(?<!\\)\$|\\[(\[]|[:?€£#]|\*\*", line)
    ):
        return False
    plain = re.sub(r"\\[a-zA-Z]+(?:\s*\{[a-zA-Z ]*\})?", " ", line)  # commands and their words
    return re.search(r"[a-zA-Z]{2,}", plain) is None


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
