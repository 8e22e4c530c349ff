"""The unit at the end of an answer: 5\\text{ cm}^2, 60 km/h, 12 students. Strings only.

Math-Verify takes every trailing 't', 'h' or 'ab' for a unit, so that 2ab equals 2. Here a unit is
written in text, or is a name that is no product of variables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Units = tuple[tuple[str, int], ...]  # name and power, sorted

TEXT = r"\\(?:text|mathrm|mbox|hbox|rm|operatorname|text(?:rm|normal|it|bf)|mathit)\s*\{([^{}]*)\}"
_POWER = r"(?:\s*\^\s*\{?\s*(-?\d+)\s*\}?)?"
_IN_TEXT = re.compile(rf"(/|\\cdot|\\times|\*)?\s*{TEXT}{_POWER}\s*\Z")
# One name for each spelling.
NAMES = {
    name: names.split()[0]
    for names in (
        "mm millimeter millimeters millimetre millimetres",
        "cm centimeter centimeters centimetre centimetres",
        "dm decimeter decimeters",
        "km kilometer kilometers kilometre kilometres",
        "m meter meters metre metres",
        "nm nanometer nanometers",
        "in inch inches",
        "ft foot feet",
        "yd yard yards",
        "mi mile miles",
        "mg milligram milligrams",
        "kg kilogram kilograms",
        "g gram grams",
        "lb lbs pound pounds",
        "oz ounce ounces",
        "ms millisecond milliseconds",
        "s sec secs second seconds",
        "min mins minute minutes",
        "h hr hrs hour hours",
        "day days",
        "week weeks",
        "month months",
        "yr year years",
        "cent cents",
        "dollar dollars usd",
        "euro euros",
        "degree degrees deg",
        "rad radian radians",
        "l liter liters litre litres",
        "ml milliliter milliliters",
        "gal gallon gallons",
        "acre acres",
        "n newton newtons",
        "j joule joules",
        "w watt watts",
        "v volt volts",
        "k kelvin",
        "hz hertz",
        "celsius c",
        "fahrenheit f",
        "am a.m a.m.",
        "pm p.m p.m.",
        "north",
        "south",
        "east",
        "west",
    )
    for name in names.split()
}
_SHORT = {
    "mph": (("h", -1), ("mi", 1)),
    "kph": (("h", -1), ("km", 1)),
    "kmh": (("h", -1), ("km", 1)),
}
_LETTERS = "mgshLlNJWKV"
# Words that change what is counted.
_MATTER = re.compile(
    r"\d|\b(?:squared|cubed|factorial|half|halves|thirds?|tenths|hundredths|pi|infinity|not|is|are"
    r"|wrong|incorrect|if|when|unless|except|plus|minus|over|mod|to|jan(?:uary)?|feb(?:ruary)?|march"
    r"|april|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b",
    re.IGNORECASE,
)
_SI = re.compile(r"[kMGTmcdnp\u00b5\u03bc]?(?:Pa|eV|Hz|J|W|N|V|A|F|T|Wb|mol|cal|bar|B|ohm)")
_TENS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_NUMERIC = r"\s*[-+]?\s*(?:[\d.,{}()+\-*/^ ]|\\(?:frac|sqrt|pi|cdot|times)(?![a-zA-Z]))+\s*"
# Bare words: names of two letters and more, but for those that may be a product of variables.
_PRODUCTS = ("in", "am", "pm", "rad", "ms", "mg", "ml", "mi", "dm", "nm")
_WORDS = sorted((n for n in NAMES if len(n) > 1 and n not in _PRODUCTS), key=len)
_BARE = re.compile(
    rf"({_NUMERIC})(?<![a-zA-Z\\])"
    rf"((?:(?:square|sq\.?|cubic)\s+)?(?:{'|'.join(reversed(_WORDS))}|mph|km/h|m/s)"
    rf"(?:\s*(?:/|\bper\b)\s*(?:{'|'.join(reversed(_WORDS))}|h|s|m|g))?){_POWER}\s*\Z",
)
_THINGS = re.compile(
    rf"({_NUMERIC})\s+((?:[a-z]{{2,}} ){{0,3}}(?:[a-z]{{3,}}s|people|children|men|women))\s*\Z"
)
_LETTER = re.compile(rf"({_NUMERIC})([{_LETTERS}]){_POWER}\s*\Z")


@dataclass(frozen=True)
class Quantity:
    """An answer in two parts."""

    body: str
    units: Units | None = None  # None where it has none, or one that is not known
    words: bool = False  # something in words was taken off


def split(latex: str) -> Quantity:
    """What is measured, and in what. The latex is returned whole where no unit is plain."""
    found: list[tuple[str, str]] = []  # the last one first
    body = latex
    while match := _IN_TEXT.search(body):
        words = match.group(2).replace("~", " ").strip().strip(".,").strip()
        if not _is_unit(words, body[: match.start()]):
            break
        power = int(match.group(3) or 1) * (-1 if match.group(1) == "/" else 1)
        found.append((words, str(power)))
        body = body[: match.start()].rstrip().removesuffix("\\,").rstrip()
    if found:
        return _quantity(body, found)
    if match := _BARE.fullmatch(latex):
        return _quantity(match.group(1).strip(), [(match.group(2), match.group(3) or "1")])
    if match := _THINGS.fullmatch(latex):
        return Quantity(match.group(1).strip(), None, True)
    return Quantity(latex)


def with_letter(latex: str) -> Quantity:
    """`split`, with a last letter taken for a unit: 5 h, where the other answer is in hours."""
    if match := _LETTER.fullmatch(latex):
        return _quantity(match.group(1).strip(), [(match.group(2), match.group(3) or "1")])
    return Quantity(latex)


def _is_unit(words: str, before: str) -> bool:
    """Whether words at the end of an answer only say what is counted or measured."""
    before = re.sub(rf"{TEXT}{_POWER}", " ", before).replace("{\\circ}", "\\circ").strip()
    if not before or re.search(r"(?:[-+=,;:(\[{^_<>|]|\\[a-z]{2,8})\Z", before.rstrip("\\, ")):
        return bool(re.search(r"\\(?:pi|circ|infty)\Z", before))
    if re.fullmatch(r"(?:and|or)\b.*|.*\b(?:and|or)", words, re.DOTALL):
        return False
    known = _known(words) is not None
    if _MATTER.search(words) and not known:
        return False
    numeric = re.fullmatch(rf"(?:[a-zA-Z]\s*=)?{_NUMERIC}", before) is not None
    if len(words) == 1:  # \mathrm{e} and \text{i} are numbers, \mathrm{t} may be a variable
        return numeric and words in _LETTERS
    return numeric or known


def _quantity(body: str, found: list[tuple[str, str]]) -> Quantity:
    total: dict[str, int] = {}
    known = True
    for words, power in found:
        if words.lower() in _TENS and len(found) == 1:
            return Quantity(f"{body}\\cdot 10^{{{_TENS[words.lower()]}}}")
        if words.lower() == "dozen" and len(found) == 1:
            return Quantity(f"{body}\\cdot 12")
        parts = _known(words)
        known = known and parts is not None
        for name, inner in parts or ():
            total[name] = total.get(name, 0) + inner * int(power)
    return Quantity(body, tuple(sorted(total.items())) if known else None, True)


def _known(words: str) -> Units | None:
    """The units that words name: 'square cm', 'km/h', 'miles per hour', 'm s^{-1}'."""
    text = words.replace("\u00b2", "^2").replace("\u00b3", "^3").strip(" .")
    if text.lower() in _SHORT:
        return _SHORT[text.lower()]
    total: dict[str, int] = {}
    for index, part in enumerate(re.split(r"\s*/\s*|\s+per\s+", text)):
        power = 1
        for shape, number in (("square ", 2), ("cubic ", 3), ("sq ", 2), ("sq. ", 2)):
            if part.lower().startswith(shape):
                part, power = part[len(shape) :], number
        match = re.fullmatch(r"([a-zA-Z.\u00b5\u03bc]+)\s*\^?\s*\{?(-?\d)?\}?", part.strip())
        name = _name(match.group(1)) if match else None
        if match is None or name is None:
            return None
        power *= int(match.group(2) or 1)
        total[name] = total.get(name, 0) + (-power if index else power)
    return tuple(sorted(total.items()))


def _name(word: str) -> str | None:
    """The one name of a unit; the case of a prefix counts: mW is not MW."""
    return NAMES.get(word.lower()) or (word if _SI.fullmatch(word) else None)
