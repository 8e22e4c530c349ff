"""One spelling for what LaTeX writes in many ways, for Math-Verify's parser. Strings only."""

from __future__ import annotations

import re

from sps.tasks.math.units import TEXT

_SIGNS = {
    "\u2212": "-",
    "\u2013": "-",
    "\uff0c": ",",
    "\u00d7": "\\times ",
    "\u00f7": "/",
    "\u00b7": "\\cdot ",
    "\u03c0": "\\pi ",
    "\u221e": "\\infty ",
    "\u2264": "\\le ",
    "\u2265": "\\ge ",
    "\u2260": "\\neq ",
    "\u222a": "\\cup ",
    "\u2205": "\\emptyset ",
    "\u00b0": "^\\circ ",
    "\u00b2": "^2",
    "\u00b3": "^3",
    "\u00bd": "\\frac{1}{2}",
    "\u2248": "\\approx ",
    "\u202f": "\\,",
    "\u2009": "\\,",
    "\u00a0": "\\,",
    "\0": " ",
}
_TABLE = str.maketrans(_SIGNS)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\{,\}|,\\!|\\,|\\!|\\ |~|,\\,)\s?\d{3})+(?!\d)")
_MONEY = re.compile(r"\A\s*\\\$\s*(\d[\d.,]*)\s*\Z")
_SPACES = re.compile(r"(?<!\\)\\(?:[,;:! ]|q?quad(?![a-zA-Z]))|~")
_NOTHING = re.compile(
    r"\\(?:displaystyle|textstyle|limits|large|Large|huge|Huge|left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\.?|(?<!\\)\$|(?<!\\)\\[()\[\]]"
    r"|\{\}"
)
_BOLD = re.compile(r"\\(?:boxed|mathbf|textbf|boldsymbol|bm|fbox|pmb|underline)\s*\{([^{}]*)\}")
_COLOR = re.compile(r"\\(?:text)?color\s*\{[a-zA-Z]+\}")
_FRAC = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_TOKEN = re.compile(r"\s*(\\[a-zA-Z]+|[^\s{}\\])")
_LINES = re.compile(
    r"\\begin\{(?:aligned|align\*?|gathered|split)\}(.*?)\\end\{\w+\*?\}", re.DOTALL
)
_LONE = re.compile(rf"{TEXT}")
_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{(\d+)\}")
# \{x | 2 < x < 5\}: the condition says all.
_WHERE = re.compile(
    r"\\\{\s*([a-z])(?:\s*\\in\s*\\mathbb\{R\})?\s*(?:\||:)((?=[^{}|,]*\1)[^{}|,]*)\\\}"
)
_CHOICE = re.compile(
    r"(?:\\(?:text|mathrm)\s*\{\s*)?\(([A-F])\)(?:\s*\}\s*| +)(?=-?\d|\\(?:frac|sqrt))[^A-Z()=]*"
)
_MODULO = re.compile(
    r"\(?\s*(?:\\[pb]?mod|\\(?:text|mathrm|operatorname)\s*\{\s*mod\s*\})\s*\{?\s*(\w+)\s*\}?\s*\)?"
)
_TEXT_INDEX = re.compile(rf"_\s*\{{?\s*{TEXT}\s*\}}?")
_MIXED = re.compile(r"(-?\d+)\s+(\d+)\s*/\s*(\d+)")
_SCIENTIFIC = re.compile(r"(?:(?<=^)|(?<== )|(?<==))(-?\d+(?:\.\d+)?)[eE]([+-]?\d{1,4})\Z")
_GROUPED = re.compile(r"-?\d{1,3}(?: \d{3})+")
_SMALL = r"\\frac\{-?\d+\}\{\d+\}|\\[dt]?binom\{\d+\}\{\d+\}"
_NEXT = r"(?=\\frac|\\[dt]?binom|\(|\d)"
_PRODUCTS = (
    # 2(3), but not \log_2(8), x_1(t) or \sin^2(x)
    (
        re.compile(r"(?<![\w.^_\\}])(\d+(?:\.\d+)?)\s*(?=\(|\{\d|\[\d+\]|\\[dt]?binom)"),
        r"\1\\cdot ",
    ),
    (re.compile(r"(\^\s*(?:\d+|\{\d+\}))\s+(?=\d)"), r"\1\\cdot "),  # 2^6 3^5
    (re.compile(rf"({_SMALL})\s*{_NEXT}"), r"\1\\cdot "),
    (re.compile(rf"\)\s*{_NEXT}"), r")\\cdot "),
)
_IMPROPER = re.compile(r"(?<![\w.^_\\}])(\d+)\s*(?=\\frac\{(\d+)\}\{(\d+)\})")
_WORD_NUMBERS = {
    word: str(number)
    for number, word in enumerate(
        (
            *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
            *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"),
            *("seventeen", "eighteen", "nineteen", "twenty"),
        )
    )
} | {"infinity": "\\infty"}


def clean(latex: str) -> str:
    """The same answer in one spelling, units and words still on it."""
    latex = _MONEY.sub(r"\1\\text{ dollars}", latex)
    latex = latex.replace("\\$", "").translate(_TABLE)
    latex = _THOUSANDS.sub(lambda m: re.sub(r"\D", "", m.group()), latex)
    if match := _LINES.search(latex):  # the last line of a derivation
        latex = [line for line in match.group(1).split("\\\\") if line.strip()][-1].replace("&", "")
        latex = latex.strip().removeprefix("=")
    latex = _NOTHING.sub("", latex)
    latex = _BOLD.sub(r"\1", _COLOR.sub("", latex))
    latex = _braces(_FRAC.sub(r"\\frac", latex))
    latex = _TEXT_INDEX.sub(r"_{\1}", latex)
    latex = (
        latex.replace("\\langle", "(")
        .replace("\\rangle", ")")
        .replace("\\varnothing", "\\emptyset")
    )
    latex = (
        latex.replace("\\lbrace", "\\{")
        .replace("\\rbrace", "\\}")
        .replace("{,}", ",")
        .replace("{:}", ":")
    )
    latex = re.sub(r"\\(?:lvert|rvert|vert|mid)(?![a-zA-Z])", "|", latex)
    latex = re.sub(r"\^\s*\{?\s*\\prime\s*\}?", "'", latex)
    latex = re.sub(r"\\(?:text|mathrm)\s*\{\s*pi\s*\}", r"\\pi ", latex)
    latex = re.sub(r"\s*\\text\s*\{\s*(?:percent|\\?%)\s*\}", r"\\%", latex)
    latex = re.sub(r"\\text\s*\{\s*([-+]?[\d.,]+|[A-Z](?:\s*,\s*[A-Z])+)\s*\}", r"\1", latex)
    latex = re.sub(r"\\text\s*\{\s*(-?\d[\d.,]*)\s+([^{}]*)\}", r"\1\\text{ \2}", latex)
    latex = re.sub(r"\^\s*\{?\\circ\}? ?([CF])\Z", r"^\\circ\\text{\1}", latex)
    latex = _MODULO.sub(r"\\pmod{\1}", latex)
    latex = re.sub(r"_(\d) ", r"_{\1} ", latex)  # \log_2 3
    latex = re.sub(r"\\Gamma(?!\s*[({a-zA-Z])", "G_{amma}", latex)  # else it is Euler's constant
    latex = _REPEATING.sub(_fraction, latex)
    # A command may stand before the space: \cdot~2.
    latex = re.sub(r"\s+", " ", _SPACES.sub(" ", latex)).strip()
    return re.sub(r"(?<=[\w})\]'!%|])(?!\.\.\.)(?:\s*[.,;:])+\Z", "", latex)


def parsable(body: str) -> str:
    """A clean answer without its unit, as the parser reads it rightly."""
    for pattern, rewrite in (
        (_GROUPED, lambda m: m.group().replace(" ", "")),
        (_MIXED, lambda m: f"{m[1]}\\frac{{{m[2]}}}{{{m[3]}}}"),
    ):
        if match := pattern.fullmatch(body):
            body = rewrite(match)
    body = _SCIENTIFIC.sub(lambda m: f"{m[1]} \\times 10^{{{int(m[2])}}}", body)
    body = re.sub(r"(?<=\d)(?: ?\\(?:times|cdot)) ?10\^(-?\d+)", r"\\times 10^{\1}", body)
    body = _WHERE.sub(r"\2", body)
    body = re.sub(r"(,?\s*)\\(?:text|mbox)\s*\{\s*,?\s*(?:and|or)\s*\}\s*,?", ", ", body)
    body = _LONE.sub(lambda m: f" {m[1].strip()}" if len(m[1].strip()) == 1 else m.group(), body)
    body = re.sub(r"(?<![a-zA-Z\\_{])i(?=\()", r"i\\cdot ", body)  # a number, not a function
    for pattern, rewrite in _PRODUCTS:
        body = pattern.sub(rewrite, body)
    return _IMPROPER.sub(
        lambda m: m[1] if int(m[2]) < int(m[3]) else f"{m[1]}\\cdot ", body
    ).strip()


def _braces(latex: str) -> str:
    """\\frac12 as \\frac{1}{2} and \\sqrt3 as \\sqrt{3}, as TeX reads them."""
    for command, count in (("\\frac", 2), ("\\sqrt", 1), ("\\binom", 2), ("\\dbinom", 2)):
        place = latex.find(command)
        while place >= 0:
            end = place + len(command)
            if not latex[end : end + 1].isalpha():
                latex = latex[:end] + _arguments(latex[end:], count)
            place = latex.find(command, end)
    return latex


def _arguments(rest: str, count: int) -> str:
    """The rest of a formula with braces around the first arguments of a command."""
    bare = rest.lstrip()
    if bare.startswith("[") and "]" in bare:  # \\sqrt[3]2
        index, bracket, rest = bare.partition("]")
        return index + bracket + _arguments(rest, count)
    if count == 0:
        return rest
    if bare.startswith("{"):
        depth = 0
        for place, char in enumerate(bare):
            depth += {"{": 1, "}": -1}.get(char, 0)
            if depth == 0:
                return bare[: place + 1] + _arguments(bare[place + 1 :], count - 1)
        return rest
    match = _TOKEN.match(rest)
    if match is None or match.group(1) in ("\\frac", "\\sqrt", "(", ")"):
        return rest
    return f"{{{match.group(1)}}}" + _arguments(rest[match.end() :], count - 1)


def _fraction(match: re.Match[str]) -> str:
    """0.1\\overline{6} as 15/90."""
    whole, start, cycle = match.group(1) or "0", match.group(2), match.group(3)
    bottom = (10 ** len(cycle) - 1) * 10 ** len(start)
    top = int(whole + start + cycle) - int(whole + start)
    return f"\\frac{{{top}}}{{{bottom}}}"


def squeeze(latex: str) -> str:
    """For the comparison of texts: no space that means nothing."""
    # A space between digits or letters may mean something: 1 1/2 is not 11/2.
    return re.sub(r"(?<!\w)\s+|\s+(?!\w)", "", clean(latex))


def words(latex: str) -> tuple[str, bool] | None:
    """An answer in words, letters and digits only, and whether it is marked as text; else None."""
    plain = re.sub(r"\A\((.*)\)\Z", r"\1", _LONE.sub(r"\1", latex).strip())
    plain = re.sub(r"\A\((.*)\)\Z", r"\1", re.sub(r"[\s$.{}\"`*]", "", plain))
    marked = _LONE.fullmatch(latex.strip(" ()$.")) is not None
    return (plain, marked) if re.fullmatch(r"[^\W\d_][\w-]*", plain) else None


def same_words(a: tuple[str, bool], b: tuple[str, bool]) -> bool:
    """Whether two answers in words are one; R is not r, but Yes is yes."""
    if a[0] == b[0]:
        return True
    word = a[0].lower()
    if word != b[0].lower() or len(word) == 1:
        return False
    spoken = len(word) > 3 and word.isalpha() and re.search(r"[aeiouy]", word) is not None
    return a[1] or b[1] or spoken or word in ("yes", "no", "true", "odd")


def choice(text: str) -> str:
    """The letter of a choice that is followed by what it says: (C) 12."""
    match = _CHOICE.fullmatch(clean(text))
    return match.group(1) if match and not re.search(r"\b(?:or|and)\b", match.group()) else ""


def as_number(word: str) -> str:
    """'four' as 4; other words as they are."""
    return _WORD_NUMBERS.get(_LONE.sub(r"\1", word).strip().lower(), word)


def has_base(latex: str) -> bool:
    """Whether it is digits with an index, which the parser leaves out."""
    digits = r"-?(?:\\text\{)?[0-9A-Z]*\d[0-9A-Z]*\}?"
    return re.fullmatch(rf"{digits}\s*_\s*(?:\{{[^{{}}]*\}}|\w+)", latex) is not None


def numeral(latex: str) -> tuple[str, str] | None:
    """Digits and base of a number such as 4210_5."""
    match = re.fullmatch(r"-?(?:\\text\{)?([0-9A-Z]+)\}?\s*_\s*\{?\s*(\d+)\s*\}?", latex)
    return (latex[:1] + match.group(1), match.group(2)) if match else None


def is_numeral(latex: str) -> bool:
    """Whether each digit of a number such as 4210_5 is below its base."""
    found = numeral(latex)
    return found is not None and all(int(d, 36) < int(found[1]) for d in found[0][1:])


def without_percent(latex: str) -> str | None:
    """An answer less its per cent sign, or None when it has none."""
    latex = latex.strip("$ ")
    # Looked for at the end alone: a pattern for the whole would try every digit against every end.
    place = max(0, len(latex) - 80)
    sign = re.search(
        r"(?:\\?%|percent|\\text\{\s{0,20}(?:percent|\\?%)\s{0,20}\})\Z", latex[place:]
    )
    bare = latex[: place + sign.start()].rstrip() if sign else ""
    return bare if re.search(r"\d", bare) else None


def is_braced(latex: str) -> bool:
    """A set that is written out: \\{2, 5\\}."""
    return re.fullmatch(r"\\\{[^{}]*\\\}", latex) is not None


def is_point(latex: str) -> bool:
    """(2, 5), a point or an open interval."""
    return re.fullmatch(r"\([^()]*,[^()]*\)", latex) is not None
