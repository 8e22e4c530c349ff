"""How often the judge of mathematics errs, next to Math-Verify: gold answers in other spellings,
which are right, and with one symbol changed, which are wrong. SPS_DATA names the data sets' folder.

A few changes leave the value as it was (0 to -0, 1 to 1^2): both sides then rightly say 'correct'.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from math_verify import LatexExtractionConfig, parse, verify

from bench.sides import RESULTS
from sps.tasks.math.judge import judge_within

FILES = ("math500", "minerva_math", "olympiadbench_math_en", "deepmath_part", "math_train")
GOLDS = 200  # of each file
_LETTER = r"(?<![a-zA-Z\\{])[a-zA-Z](?![a-zA-Z])"
_NUMBER = re.compile(r"-?[\d.]+|-?\\d?frac\{\d+\}\{\d+\}|-?\d*\\sqrt\{\d+\}")


def boxed(answer: str) -> str:
    """A completion that ends in this answer."""
    return f"Adding all of it up, the answer is $\\boxed{{{answer}}}$."


def spellings(gold: str) -> list[str]:
    """Completions that give this answer."""
    made = [
        boxed(f"{gold}."),
        boxed(re.sub(r"\\[dt]?frac", r"\\tfrac", gold)),
        boxed(re.sub(r"([+=])", r" \1 ", gold)),
        f"Hence the answer is ${gold}$.",
        f"Hence the answer is ${gold}.$",
        f"We conclude\n\\[\n{gold}\n\\]",
        f"So $\\boxed{{{gold}}}$. The final answer is ${gold}.$",
        f"<think>First \\boxed{{17}}.</think> The answer is \\boxed{{{gold}}}",
    ]
    if _NUMBER.fullmatch(gold):
        units = (r"\text{ cm}", r"\,\mathrm{cm}^2", r"\mbox{ apples}", r"\text{ L}", r"\mbox{m}^3")
        made += [boxed(gold + unit) for unit in (*units, " dollars", r"^\circ")]
        made += [boxed(f"x = {gold}")]
    if re.fullmatch(r"\d{4,}", gold):
        made += [boxed(f"{int(gold):,}".replace(",", mark)) for mark in (",", "{,}", ",\\!", "\\,")]
    return made


def changes(gold: str, rng: random.Random) -> list[str]:
    """The same answer with one symbol changed or added."""
    made = [f"{gold}{rng.choice('thscmdgl')}", f"{gold}^2", f"{gold}{rng.choice('23456789')}"]
    made.append(gold[1:] if gold.startswith("-") else f"-{gold}")
    rules: list[tuple[str, Callable[[str], str]]] = [
        (r"\d", lambda s: str((int(s) + rng.randint(1, 8)) % 10)),
        (r"[-+]", lambda s: "-" if s == "+" else "+"),
        (_LETTER, str.swapcase),
        (_LETTER, lambda s: rng.choice([c for c in "abcknpqw" if c != s.lower()])),
        (rf"\d|{_LETTER}", lambda s: s + rng.choice("thscmdgl")),
    ]
    for pattern, rewrite in rules:
        for match in re.finditer(pattern, gold):
            made.append(gold[: match.start()] + rewrite(match.group()) + gold[match.end() :])
    return [boxed(answer) for answer in made if answer != gold]


def pairs(folder: Path, seed: int = 0) -> list[tuple[str, str, bool]]:
    """Gold answer, completion, and whether it is right."""
    rng, made = random.Random(seed), []
    for name in FILES:
        lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        golds = sorted({str(json.loads(line)["answer"]).strip("$") for line in lines})
        for gold in rng.sample(golds, GOLDS):
            if "$" in gold:
                continue
            made += [(gold, text, True) for text in rng.sample(spellings(gold), 3)]
            if not re.search(r"\\(?:text|mbox|mathrm)|[A-Za-z]{5,}(?<!right)", gold):
                wrong = changes(gold, rng)
                made += [(gold, text, False) for text in rng.sample(wrong, min(3, len(wrong)))]
    return made


def ours(gold: str, text: str) -> bool:
    """The judge's verdict."""
    return judge_within(6, gold, text, True, "zero").kind == "correct"


def theirs(gold: str, text: str) -> bool:
    """Math-Verify's, with the box first, as its authors advise for answers in boxes."""
    read = [LatexExtractionConfig(boxed_match_priority=0)]
    return verify(parse(f"${gold}$", read), parse(text, read))


def main() -> None:
    """Count what each side gets wrong."""
    logging.disable(logging.WARNING)
    if "SPS_DATA" not in os.environ:
        raise SystemExit("bench agreement needs SPS_DATA, the folder that holds the data sets")
    made = pairs(Path(os.environ["SPS_DATA"]))
    counts: Counter[str] = Counter(right=sum(right for *_, right in made))
    counts["wrong"] = len(made) - counts["right"]
    for side in ("ours", "math-verify"):  # none is a count too
        counts[f"{side}: right answers lost"] = counts[f"{side}: wrong ones accepted"] = 0
    for gold, text, right in made:
        for side, verdict in (("ours", ours(gold, text)), ("math-verify", theirs(gold, text))):
            if verdict != right:
                counts[f"{side}: {'right answers lost' if right else 'wrong ones accepted'}"] += 1
    for label, count in counts.items():
        print(f"{label:<36} {count}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "agreement.json").write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
