"""Multiple choice: which letter (or number) does the answer name?

The options stand at the end of the question, one a line, as `A) ...` or `1) ...`; those that a
row has as a list of its own are put there. The last box counts; then what follows 'answer is' or
'Answer:'; then a reply that is no more than an option. Thoughts before `</think>` are read only
where what follows them names no option.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from sps.data.config import OPTIONS, DataConfig
from sps.errors import UserError
from sps.schema import Template
from sps.tasks import Bench, TaskType, answers
from sps.tasks.prompts import LETTER
from sps.tasks.questions import Questions, bench_problems, preface_of
from sps.types import Finding, Problem, Verdict

LETTERS = "ABCDEFGHIJ"
_OPTION = re.compile(r"^[^\S\n]*\(?([A-J]|[1-9])[).:]\s*(.*)$", re.MULTILINE)
# Every repeat has its bound: two that take the same signs cost the square of a long run of them.
_AFTER = (
    r"\s{0,9}(?:is|:|would be|should be|must be){0,3}[\s:*_$({\[\"']{0,19}(?:option\s{1,9})?"
    r"(?:\\text(?:bf)?\s{0,9}\{\s{0,9})?\(?([A-Ja-j1-9])(?![\w'-])"
)
# 'The answer is B, for option A is too small': the answer before any option that is only mentioned.
_STATED = [re.compile(word + _AFTER, re.IGNORECASE) for word in ("answer", "(?:option|choice)")]
_NAMED = re.compile(r"(?<![\w\\])([A-J1-9])(?![\w'])")
_TAIL = 6000


class ChoiceConfig(DataConfig):
    """Questions with lettered options."""

    type: Literal["choice"] = "choice"
    template: Template = "chat"


class Choice(Questions):
    """Questions with lettered options."""

    name = "choice"

    def __init__(
        self,
        splits: dict[str, list[Problem]],
        template: str = "chat",
        instruction: str = LETTER,
        cut: str = "zero",
        findings: Callable[[], Sequence[Finding]] = tuple,
    ):
        super().__init__(splits, template, instruction, cut, findings)

    def judge(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """See `judge`."""
        return judge(problem, text, finished, self.cut)


def _make(t: ChoiceConfig) -> Choice:
    from sps.data.splits import read_questions  # pyarrow

    read = read_questions(t, labelled)
    task = Choice(read.splits, t.template, t.instruction or LETTER, t.cut, read.findings)
    task.preface = preface_of(t)
    return task


def _bench(asked: Bench) -> Choice:
    problems = bench_problems(asked)
    if asked.rows:
        problems = labelled(problems, f"--bench {asked.name}")
    elif asked.data_dir:  # the hub's rows are labelled as they are read
        problems = labelled(problems, f"--data-dir: benchmark {asked.name}")
    return Choice({"test": problems}, asked.template, asked.instruction or LETTER, asked.cut)


TYPE = TaskType(ChoiceConfig, _make, _bench)


def options(question: str) -> dict[str, str]:
    """The options by label: the last lines that count up from A or from 1."""
    found: dict[str, str] = {}
    for label, text in _OPTION.findall(question):
        if label in "A1":
            found = {label: text.strip()}
        elif found and label == chr(ord(list(found)[-1]) + 1):
            found[label] = text.strip()
    return found


def labelled(problems: Sequence[Problem], where: str) -> list[Problem]:
    """The problems with their options in the question and the right one's label as the answer;
    `where` is what errors name."""
    return [_labelled(problem, f"{where}: row {i}") for i, problem in enumerate(problems, 1)]


def _labelled(problem: Problem, where: str) -> Problem:
    texts, own = _given(problem, where)
    question = _with_options(problem, texts, where)
    known = options(question)
    labels = "".join(known)
    gold = _plain(problem.answer)
    if own and question != problem.question:
        return replace(
            problem, question=question, answer=labels[_place(problem, texts, own, where)]
        )
    if own and not (gold in known and not _named(problem, texts, own)):
        return replace(problem, answer=_shown(problem, texts, own, known, where))
    number = problem.meta.get("answer")  # an integer; see sps.data.load
    if question != problem.question and type(number) is int and str(number) == gold:
        if number not in range(len(labels)):
            raise UserError(
                f"{where}: the answer {number} is none of the {len(labels)} options of question "
                f"{problem.id}, which an integer counts from 0; give 0 to {len(labels) - 1}, or "
                f"the label of one, {', '.join(labels)}"
            )
        gold = labels[number]
    if len(gold) != 1 or gold not in labels:
        same = _saying(problem.answer, known)
        if len(same) != 1:
            raise UserError(
                f"{where}: the answer {problem.answer!r} is none of the options {', '.join(labels)}"
                f" of question {problem.id}; give the label of one as the answer, and every option "
                "on a line of its own at the end of the question"
            )
        gold = same[0]
    return replace(problem, question=question, answer=gold)


def _plain(label: object) -> str:
    return str(label).strip(" ().:").upper()


def _given(problem: Problem, where: str) -> tuple[list[str], list[str]]:
    """The options that a row has beside its question, and the labels that it gives them itself.
    Where no label can be told from them, those that the question has are all there are."""
    values = (problem.meta.get(key) for key in OPTIONS)
    found = next((v for v in values if v and isinstance(v, list | dict)), [])
    if isinstance(found, list):
        return found, []
    texts, labels = found["text"], [_plain(label) for label in found["label"]]
    if texts and len(labels) == len(texts) == len({*labels}):
        return texts, labels
    if options(problem.question):
        return [], []
    raise UserError(
        f"{where}: question {problem.id} has {len(texts)} options and the labels "
        f"{', '.join(labels) or 'of none'}; give each option a label of its own"
    )


def _named(problem: Problem, texts: list[str], own: list[str]) -> list[str]:
    """Which of these labels the answer is, or those whose option says it; an integer says none."""
    gold = _plain(problem.answer)
    if gold in own:
        return [gold]
    counts = type(problem.meta.get("answer")) is int
    return [] if counts else _saying(problem.answer, dict(zip(own, texts, strict=True)))


def _place(problem: Problem, texts: list[str], own: list[str], where: str) -> int:
    """Which option is right, where these have labels of their own."""
    right = _named(problem, texts, own)
    if len(right) != 1:
        raise UserError(
            f"{where}: the answer {problem.answer!r} is none of the labels {', '.join(own)} of "
            f"question {problem.id}; give one of them, or what its option says"
        )
    return own.index(right[0])


def _shown(
    problem: Problem, texts: list[str], own: list[str], known: dict[str, str], where: str
) -> str:
    """The label in the question of the option that is right by the row's own labels."""
    place, gold = _place(problem, texts, own, where), _plain(problem.answer)
    told = len({_essence(text) for text in known.values()}) == len(known)
    how = _essence if told else _in_a_line  # 'x < y' and 'x > y' differ by a sign alone
    whole, shown = [how(text) for text in texts], [how(text) for text in known.values()]
    pairs = [*zip(known, shown, strict=True)]
    same = [label for label, text in pairs if text == whole[place]]
    read = same or [label for label, text in pairs if whole[place].startswith(text)]
    if texts == [*known] or all(map(str.startswith, whole, shown)):  # in the same order
        read = [pairs[place][0]]
    if len(read) == 1 and (gold == read[0] or gold not in known):
        return read[0]
    other = f", and {gold} by its own labels" if gold in known else ""
    raise UserError(
        f"{where}: by the labels under {' or '.join(OPTIONS)} the answer {problem.answer!r} of "
        f"question {problem.id} is {' or '.join(read) or 'none'} of the options in the question"
        f"{other}; give what the right option says, or one list alone"
    )


def _with_options(problem: Problem, given: list[str], where: str) -> str:
    """The question, with its row's list of options at the end where they are not there yet."""
    there = options(problem.question)
    if not given:
        if there:
            return problem.question
        raise UserError(
            f"{where}: question {problem.id} has no options: there are no lines 'A) ...' at its "
            f"end, and no list of texts under {' or '.join(OPTIONS)} in its row; write them at the "
            "end of the question, every option on a line of its own, or into such a list, or as "
            '{"text": [...], "label": [...]}'
        )
    if there and (given == list(there) or _are_the_same(there, given)):
        return problem.question
    labels = list(LETTERS[: len(given)])
    own = list(options("\n".join(given))) == labels  # 'A) ...' is what they say themselves
    lines = given if own else [f"{a}) {text}" for a, text in zip(LETTERS, given, strict=False)]
    question = f"{problem.question}\n\n" + "\n".join(lines)
    read = options(question)
    if len(given) not in range(2, len(LETTERS) + 1) or list(read) != labels or "" in read.values():
        raise UserError(
            f"{where}: the {len(given)} options of question {problem.id} cannot be lettered; give "
            f"2 to {len(LETTERS)} texts, none of them empty or with a line like 'A) ...'"
        )
    return question


def _are_the_same(there: dict[str, str], given: Sequence[str]) -> bool:
    """Are the question's own options those of the list, of which it may show the first line?"""
    whole, shown = [_essence(text) for text in given], [_essence(text) for text in there.values()]
    return len(whole) == len(shown) and all(any(w.startswith(s) for w in whole) for s in shown)


def judge(problem: Problem, text: str, finished: bool = True, cut: str = "zero") -> Verdict:
    """The verdict; an answer that names several options, or none, is 'unparsed'."""
    boxed = answers.last_boxes(text[-_TAIL:])
    if not finished and (cut == "zero" or not boxed):
        return Verdict("truncated", 0.0, "cut off at the token limit", boxed[-1] if boxed else "")
    known = options(problem.question)
    labels = "".join(known) or LETTERS
    after = answers.after_thinking(text)
    label, why = _read(after, known, labels) if after is not None else (None, "")
    if (
        label is None
    ):  # a box that names no option is the last one here, too: no thought replaces it
        label, why = _read(text, known, labels)
    if label is None:
        return Verdict("unparsed", 0.0, why)
    if label not in labels:
        return Verdict("wrong", 0.0, "there is no such option", label)
    if label == problem.answer.strip(" ().:").upper():
        return Verdict("correct", 1.0, "same option", label)
    return Verdict("wrong", 0.0, "another option", label)


def _read(text: str, known: dict[str, str], labels: str) -> tuple[str | None, str]:
    """The label an answer names, or why it names none."""
    text = text[-_TAIL:]
    if boxed := answers.last_boxes(text):
        return _from_phrase(boxed[-1], known, labels)
    for pattern in _STATED:
        stated = [m for m in pattern.finditer(text) if not _article(m.group(1), text[m.end() :])]
        if stated:
            last = stated[-1]
            rest_of_line = text[last.start(1) :].partition("\n")[0]
            return _label(last.group(1), rest_of_line, known, labels), ""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return None, "empty"
    for line in (lines[0], lines[-1]) if len(lines) <= 2 else (lines[-1],):
        label, _ = _from_phrase(line.strip(" *_.`\"'"), known, labels)
        if label is not None:
            return label, ""
    return None, "no option named"


def _article(label: str, rest: str) -> bool:
    """'The answer is a whole number': not option A."""
    return label == "a" and re.match(r"\s+[a-z]", rest) is not None


def _from_phrase(phrase: str, known: dict[str, str], labels: str) -> tuple[str | None, str]:
    """'C', '(C)', '\\text{C}', 'C) what it says', or what it says alone."""
    plain = re.sub(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^{}]*)\}", r"\1", phrase).strip(" $.*{}")
    match = re.fullmatch(r"(?:option\s+)?\(?([A-Ja-j1-9])\)?[.):]?", plain, re.IGNORECASE)
    if match:
        return _label(match.group(1), plain, known, labels), ""
    match = re.match(r"\(?([A-J1-9])[).:]\s+\S", plain)
    if match and match.group(1) in labels:
        return match.group(1), ""
    same = _saying(plain, known)
    if len(same) == 1:
        return same[0], ""
    named = {m for m in _NAMED.findall(plain) if m in labels}
    if len(named) > 1:
        return None, f"several options named: {', '.join(sorted(named))}"
    return None, "no option named"


def _label(sign: str, phrase: str, known: dict[str, str], labels: str) -> str:
    """The sign where it is a label; 4 among A to D is the option that says 4, if one does."""
    same = [] if sign.upper() in labels else _saying(phrase, known)
    return same[0] if len(same) == 1 else sign.upper()


def _saying(phrase: str, known: dict[str, str]) -> list[str]:
    """Labels of the options that say just this."""
    said = _essence(phrase)
    return [label for label, text in known.items() if said and _essence(text) == said]


def _in_a_line(text: str) -> str:
    return " ".join(text.split())


def _essence(text: str) -> str:
    """Letters and digits alone; beside digits also what makes another number of them."""
    text = text.replace("\u2212", "-").replace("\u2013", "-")
    signs = r"[^\w.+/^<>-]+|_|\.(?!\d)" if re.search(r"\d", text) else r"[\W_]+"
    return re.sub(signs, "", text).lower()
