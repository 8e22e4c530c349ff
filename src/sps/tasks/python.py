"""A task in the user's own Python file: `judge`, and if it likes `problems`, `prompt` and `mode`.

The judge runs in killable worker processes. What it raises there is a verdict of kind 'crashed';
everything that can be found out before any work is (`_try_out`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sps.data.config import DataConfig
from sps.errors import RunFailed, UserError
from sps.schema import NonNegative, Seconds, Template
from sps.tasks import Bench, Task, TaskType
from sps.tasks.prompts import Prompt, render
from sps.tasks.questions import preface_of
from sps.tasks.user_code import EXAMPLES, RETURNED, UserCode, load, make_judge, told
from sps.types import Finding, Problem, Verdict
from sps.verify import Pool, Verifier, open_verifier, wire
from sps.verify.limit import TimeIsUp, time_limit

SPLITS = ("train", "validation", "test")
_LOG = logging.getLogger("sps")
# In what is raised by a judge that the sandbox keeps from files, programs or the network.
_KEPT_OUT = ("OSError", "Permission", "Errno", "Connect")


class PythonConfig(DataConfig):
    """A task of your own: a file with `judge(problem, text)`, whose prints go nowhere."""

    type: Literal["python"] = "python"
    path: str | None = None  # the file, such as my_task.py; from the folder sps is started in
    module: str | None = None  # or a module by its name, such as package.module
    # Rewards from 0 to 1 train; at least this much counts as right in Pass@k.
    right: Annotated[float, Field(gt=0, le=1)] = 1.0
    template: Template = "chat"  # of the question, where the file has no prompt()
    time_limit: Seconds = 6.0  # seconds a verdict may take
    workers: NonNegative = 0  # 0: one a core
    # False: the judge may write files, start programs and reach the network; see SECURITY.md.
    sandbox: bool = True

    @model_validator(mode="after")
    def _one_file(self) -> PythonConfig:
        if (self.path is None) == (self.module is None):
            raise ValueError("give path: my_task.py, or module: package.module, and not both")
        return self

    @model_validator(mode="after")
    def _has_data(self) -> PythonConfig:
        return self  # or else the file has problems()


class PythonTask(Task):
    """Problems, and the user's functions on them."""

    name = "python"

    def __init__(
        self,
        code: UserCode,
        splits: dict[str, list[Problem]],
        pool: Pool,
        show: Callable[[Problem], Prompt],
        findings: Callable[[], Sequence[Finding]] = tuple,
    ):
        self.code, self.splits, self.pool, self.source = code, splits, pool, code.file
        self._findings, self._mode, self.seconds = findings, code.get("mode"), pool.time_limit
        self._mode_failed = False  # which is said once
        # All of them now: a prompt() that fails must not end a run in its middle.
        self._prompts = {p.id: show(p) for problems in splits.values() for p in problems}
        self._judge = make_judge(**pool.options)

    def problems(self, split: str) -> list[Problem]:
        """From the file's problems(), or the rows of the data."""
        return self.splits[split]

    def prompt(self, problem: Problem) -> Prompt:
        """From the file's prompt(), or the question in the template."""
        return self._prompts[problem.id]

    def judge(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """In this process, so the time limit is a soft one. Use the pool."""
        from sps.verify.worker import judge_one

        return judge_one(self._judge, self.seconds, problem, text, finished)

    def mode(self, problem: Problem, text: str) -> str | None:
        """From the file's mode(); where that fails, the solution is not told apart."""
        found, failed = self.try_mode(problem, text)
        if failed and not self._mode_failed:
            self._mode_failed = True
            self.warn(
                f"{self.code.key}: mode {failed}, on an answer to {problem.id!r}. Where it fails, "
                "distinct solutions are not told apart; this is said once"
            )
        return found

    def try_mode(self, problem: Problem, text: str) -> tuple[str | None, str]:
        """What mode() says, and how it failed."""
        if self._mode is None:
            return None, ""
        try:
            with time_limit(self.seconds):
                found = self._mode(problem, text)
                return found if found is None else str(found), ""
        except (Exception, SystemExit, TimeIsUp) as error:
            return None, told(error, self.code.file)

    def findings(self) -> Sequence[Finding]:
        """Looked for when asked: it takes a while."""
        return self._findings()


def _make(t: PythonConfig) -> PythonTask:
    code = load(t.path, t.module)
    code.need("judge")
    findings: Callable[[], Sequence[Finding]] = tuple
    if not t.mixed():
        splits = {split: _generated(code, split) for split in SPLITS}
    else:
        from sps.data.splits import read_questions  # pyarrow

        if code.get("problems"):
            raise code.wrong("problems", "problems() is there, and so is task.data: remove one")
        read = read_questions(t, whole=True)
        splits, findings = read.splits, read.findings
    options = {"path": t.path, "module": t.module, "right": t.right, "cut": t.cut}
    return _checked(t, code, splits, options, findings)


def _checked(
    t: PythonConfig,
    code: UserCode,
    splits: dict[str, list[Problem]],
    options: dict[str, Any],
    findings: Callable[[], Sequence[Finding]],
) -> PythonTask:
    _check_problems(code, splits)
    own, instruction, preface = code.get("prompt"), t.instruction or "", preface_of(t)

    def show(problem: Problem) -> Prompt:
        if own is None:
            return render(t.template, problem.question, instruction, problem.meta, preface)
        return _prompt(code, problem, code.call("prompt", problem))

    judge = "sps.tasks.user_code:make_judge"
    pool = Pool(judge, options, t.workers, t.time_limit, locked=t.sandbox)
    task = PythonTask(code, splits, pool, show, findings)
    _try_out(task, replace(pool, workers=1))
    return task


def _bench(asked: Bench) -> PythonTask:
    """`python:FILE`, or `python:FILE:DATA` for all rows of a data file."""
    name, _, data = asked.name.partition(":")[2].partition(":")
    if not name:
        raise UserError(
            f"--bench {asked.name}: write python:my_task.py, or python:my_task.py:rows.jsonl"
        )
    where = {"path" if name.endswith(".py") else "module": name}
    code = load(where.get("path"), where.get("module"))
    code.need("judge")
    if data:
        from sps.data.load import Columns, read_rows, to_problems  # pyarrow

        key = f"--bench {asked.name}"
        problems = to_problems([*read_rows(data, "test", None, key)], Columns(), data, key, True)
    else:
        problems = _generated(code, "test")
    how = {"template": asked.template, "instruction": asked.instruction, "cut": asked.cut}
    how |= {"workers": asked.workers, "time_limit": asked.time_limit, "right": asked.right}
    t = PythonConfig.model_validate({**where, **how})
    options = {"path": None, "module": None, "right": t.right, "cut": t.cut, **where}
    return _checked(t, code, {"test": problems[: asked.limit]}, options, tuple)


TYPE = TaskType(PythonConfig, _make, _bench, generates=True)


def _generated(code: UserCode, split: str) -> list[Problem]:
    """What problems(split) gives; twice, since a resumed run must find the same."""
    if code.get("problems") is None:
        raise UserError(
            f"{code.key}: no problems: name a file of rows with task.data, or write the function "
            "problems(split), which returns rows for 'train', 'validation' and 'test'"
        )
    first, again = (_rows(code, split) for _ in range(2))
    if first != again:
        raise code.wrong(
            "problems",
            f"problems({split!r}) gives others the second time; seed its random numbers, such as "
            "random.Random(split)",
        )
    return first


def _rows(code: UserCode, split: str) -> list[Problem]:
    from sps.data.load import Columns, to_problems  # pyarrow

    found = code.call("problems", split)
    try:
        rows = list(found)
    except TypeError:
        rows = []
    except (Exception, SystemExit) as error:  # of a generator
        raise UserError(f"{code.key}: problems({split!r}) {told(error, code.file)}") from None
    kinds = {type(row) for row in rows}
    if kinds == {Problem}:
        return rows
    if kinds != {dict}:
        what = f"{found!r:.80}" if not rows else f"rows of {', '.join(k.__name__ for k in kinds)}"
        raise code.wrong("problems", f"problems({split!r}) returns {what}, not a list of dicts")
    return to_problems(rows, Columns(), split, f"{code.key}: problems({split!r})", whole=True)


def _check_problems(code: UserCode, splits: dict[str, list[Problem]]) -> None:
    """Of one split each, by id; and such that a worker can be told of them."""
    seen: dict[str, str] = {}
    for split, problems in splits.items():
        for problem in problems:
            if problem.id in seen:
                raise code.wrong(
                    "problems",
                    f"{problem.id!r} is an id of {seen[problem.id]} and again of {split}; a "
                    "problem is of one split, once",
                )
            seen[problem.id] = split
            try:
                wire.request(0, problem, "", True)
            except (TypeError, ValueError) as error:
                raise UserError(f"{code.key}: {error}; make it one of these") from None


def _prompt(code: UserCode, problem: Problem, value: Any) -> Prompt:
    """Text, or chat messages."""
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and value and all(_is_message(m) for m in value):
        return value
    raise code.wrong(
        "prompt",
        f"prompt({problem.id!r}) returned {value!r:.80}, not a text or a list of messages "
        '{"role": "user", "content": "..."}',
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) for key in ("role", "content")
    )


def _try_out(task: PythonTask, pool: Pool) -> None:
    """Judge a few texts in a worker, as the run will: what fails at all of them is a mistake."""
    asked = [
        (problems[0], text)
        for problems in task.splits.values()
        for text in dict.fromkeys(("", "0", problems[0].answer_text))
    ]
    try:
        with closing(open_verifier(_Trial(task, pool))) as verifier:
            found = [_tried(task, verifier, *one) for one in asked]
            _warn_of_types(task, verifier, list(zip(asked, found, strict=True)))
    except RunFailed as error:
        raise UserError(f"{task.code.key}: {error}") from None
    if all(verdict.kind == "crashed" for verdict in found):
        problem, detail = asked[-1][0], found[-1].detail
        named = f"judge {detail}" if detail.startswith("raised") else f"judge: {detail}"
        said = f"{named}, {_those(asked)}; return False for what it cannot read"
        if "raised KeyError" in detail and ".meta" in detail:
            said += f"; problem.meta has the columns of its row: {', '.join(problem.meta)}"
        if pool.locked and any(word in detail for word in _KEPT_OUT):
            said += "; task.sandbox: false lets a judge write files, start programs and use sockets"
        raise task.code.wrong("judge", said, _example(problem))
    _try_mode(task, [one for one, v in zip(asked, found, strict=True) if v.kind == "correct"])


def _try_mode(task: PythonTask, right: list[tuple[Problem, str]]) -> None:
    """Ask mode() of right answers, as the run will; without any, of the first problem's texts."""
    problem = task.splits["test"][0]
    asked = right or [(problem, text) for text in ("", "0", problem.answer_text)]
    failed = [task.try_mode(*one)[1] for one in asked]
    if not all(failed):
        return
    if right:
        said = f"mode {failed[-1]}, {_those(right)}, which judge finds right"
        raise task.code.wrong("mode", f"{said}; return None for what it cannot read")
    task.warn(
        f"{task.code.key}: mode {failed[-1]}, {_those(asked)}; return None for what it cannot read"
    )


def _those(asked: Sequence[tuple[Problem, str]]) -> str:
    """'tried with 6 texts, such as "0" and "Paris"': those that say most."""
    texts = sorted(dict.fromkeys(text for _, text in asked), key=len)[-2:]
    return f"tried with {len(asked)} texts, such as {' and '.join(f'{t!r:.60}' for t in texts)}"


def _example(problem: Problem) -> str:
    """A judge to begin with, of the answer or, where rows have none, of another column."""
    if problem.answer != "":
        return EXAMPLES["judge"]
    columns = [
        key for key in problem.meta if problem.meta[key] not in (problem.question, problem.id)
    ]
    gold = f"str(problem.meta[{columns[0]!r}])" if columns else '"right"'
    return f"def judge(problem, text): return text.strip() == {gold}"


def _warn_of_types(
    task: PythonTask, verifier: Verifier, tried: Sequence[tuple[tuple[Problem, str], Verdict]]
) -> None:
    """A text never equals a number. Said only where the answer in the other type is found right:
    what a judge wants may be another thing than the answer."""
    golds = [
        (problem, text, other, verdict.kind)
        for (problem, text), verdict in tried
        if text == problem.answer_text and (other := _in_the_other_type(problem)) is not None
    ]
    if any(kind == "correct" for *_, kind in golds):
        return
    for problem, text, other, _ in golds:
        asked = replace(problem, answer=other)
        if verifier.submit(asked, text, True).result().kind == "correct":
            is_text = isinstance(problem.answer, str)
            _LOG.warning(
                "%s: judge does not find %r right, which is its problem's answer; that is a %s "
                "there, and no %s. Compare with %s(problem.answer)",
                task.code.key,
                text,
                *(("text", "number", "float") if is_text else ("number", "text", "str")),
            )
            return


def _in_the_other_type(problem: Problem) -> str | float | None:
    """A number's text, or the number that a text is, as those of a .csv file; None: neither."""
    answer = problem.answer
    if isinstance(answer, int | float):
        return problem.answer_text
    if not isinstance(answer, str):
        return None
    try:
        found = float(answer)
        return None if not math.isfinite(found) else int(answer) if answer.isdecimal() else found
    except ValueError:
        return None


def _tried(task: PythonTask, verifier: Verifier, problem: Problem, text: str) -> Verdict:
    verdict = verifier.submit(problem, text, True).result()
    if verdict.detail.startswith(RETURNED):
        raise task.code.wrong("judge", verdict.detail)
    if verdict.kind == "timeout":
        how = "make it faster, or set task.time_limit"
        raise task.code.wrong("judge", f"judge({text!r:.60}): {verdict.detail}; {how}")
    return verdict


class _Trial:
    """The task with a pool of one worker."""

    pool: Pool | None

    def __init__(self, task: PythonTask, pool: Pool):
        self.judge, self.pool = task.judge, pool
