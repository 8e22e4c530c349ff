"""Colours and marks. Figures name colours as '@blue' or '@blue/0.2'; a theme says what they are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

LIGHT = {
    "ink": "#1f2328",
    "muted": "#6e7681",
    "grid": "#e4e6ea",
    "paper": "#ffffff",
    "grey": "#7d8590",
    "blue": "#2b5f9e",
    "red": "#c4512d",
    "green": "#2f7d5b",
    "violet": "#7456a8",
    "ochre": "#b07d12",
    "teal": "#1f8a94",
    "rose": "#ad3f72",
}
DARK = {
    "ink": "#e6e8eb",
    "muted": "#9aa3ad",
    "grid": "#2c3138",
    "paper": "#16191d",
    "grey": "#9aa3ad",
    "blue": "#6ea6e8",
    "red": "#ee8560",
    "green": "#5fbd92",
    "violet": "#b094e6",
    "ochre": "#dcae4a",
    "teal": "#55bfc9",
    "rose": "#e07fab",
}
# A colour is an algorithm, a mark is a variant of it.
_FAMILIES = {"base": "grey", "sps": "red", "grpo": "blue", "dapo": "green", "gspo": "violet"}
_FAMILIES |= {"memory": "violet", "memory + sps": "ochre", "memory without rl": "teal"}
# Names that are written otherwise than in lower case.
_SPELLED = {
    name: name.upper()
    for name in ("grpo", "sps", "dapo", "gspo", "cispo", "ucpo", "raft", "rft", "bbg", "irl", "kl")
}
_SPELLED |= {"dr_grpo": "Dr. GRPO", "rs_grpo": "RS-GRPO", "maxrl": "MaxRL"}
_SPELLED |= {"kl_cov": "KL-Cov", "clip_cov": "Clip-Cov", "w_reinforce": "W-REINFORCE"}
_SPELLED |= {"pass_at_k": "Pass@k training", "memory_sps": "memory + SPS"}
_SPELLED |= {"memory_no_rl": "memory without RL", "memory_mixed": "memory mixed"}
_OTHERS = ("ochre", "teal", "rose", "green", "violet")
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "star")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
KIND_COLOURS = {
    "correct": "green",
    "wrong": "grey",
    "unparsed": "ochre",
    "truncated": "violet",
    "timeout": "rose",
    "crashed": "red",
}


@dataclass(frozen=True)
class Mark:
    """How one method is drawn."""

    colour: str  # a name of the palette
    symbol: str
    dash: str

    @property
    def shade(self) -> float:
        """Strength of its bars, which show no dash: within a family each is fainter."""
        return round(0.7 ** _DASHES.index(self.dash), 2)


def marks(names: Iterable[str]) -> dict[str, Mark]:
    """A mark for each method: its family's colour, and a symbol of its own within the family."""
    seen: dict[str, int] = {}
    out = {}
    for name in names:
        family = _family(name)
        if family not in _FAMILIES and family not in seen:
            strangers = sum(f not in _FAMILIES for f in seen)
            seen[family] = 0
            colour = _OTHERS[strangers % len(_OTHERS)]
            out[name] = Mark(colour, _SYMBOLS[0], _DASHES[0])
            continue
        nth = seen[family] = seen.get(family, -1) + 1
        colour = _FAMILIES.get(family) or next(
            m.colour for n, m in out.items() if _family(n) == family
        )
        out[name] = Mark(colour, _SYMBOLS[nth % len(_SYMBOLS)], _DASHES[nth % len(_DASHES)])
    return out


def spelled(name: str) -> str:
    """A method's name as people write it: grpo is GRPO, and sps_slow is SPS slow. A name without a
    method in it, and the value of a setting, stay as they are."""
    return " ".join(part if "=" in part else _spelled_word(part) for part in name.split(" "))


def _spelled_word(name: str) -> str:
    words = "|".join(sorted(_SPELLED, key=len, reverse=True))
    found = re.compile(rf"(?<![a-z])(?:{words})(?![a-z])", re.IGNORECASE)
    shown = found.sub(lambda match: _SPELLED[match[0].lower()], name)
    return shown.replace("_", " ") if found.search(name) else name


def _family(name: str) -> str:
    """What a variant is a variant of: SPS of 'SPS keep=2', GRPO of 'GRPO @100'."""
    own = re.split(r"\s*[@(]|\s+\S*=", name.lower(), maxsplit=1)[0].strip()
    if own in _FAMILIES:
        return own
    word = re.split(r"[^a-z]", own, maxsplit=1)[0]
    return next((f for f in _FAMILIES if word.startswith(f)), word or name.lower())
