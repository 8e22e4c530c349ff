"""Any task of reasoning-gym by name, judged by its own verifier. Needs the extra `sps-rl[gym]`.

Some of its verifiers evaluate the answer as Python. Such a task must be named as `unsafe`; then its
answers are screened (screen.py), and belong in a pool with a fresh process an answer.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field, model_validator

from sps.errors import UserError
from sps.schema import Cut, Node, NonNegative, Positive, Seconds, Template
from sps.tasks import Bench, Task, TaskType, answers
from sps.tasks.gym import screen
from sps.tasks.gym.scan import evaluator
from sps.tasks.prompts import TAGGED, Prompt, render
from sps.types import Problem, Verdict
from sps.verify import Pool

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_NONSENSE = "?!"  # the answer to nothing
SOLVED = 0.999  # scores of reasoning-gym are from 0 to 1; some give part of a point for trying


class GymConfig(Node):
    """A task of reasoning-gym, with its own generator and verifier."""

    type: Literal["gym"] = "gym"
    name: str  # as reasoning-gym calls it, such as basic_arithmetic
    settings: dict[str, Any] = Field(default_factory=dict)  # its own settings, such as min_digits
    seed: NonNegative = 0
    train: Positive = 1000
    validation: Positive = 100
    test: Positive = 200
    template: Template = "chat"
    cut: Cut = "zero"
    time_limit: Seconds = 6.0
    workers: NonNegative = 0
    # Tasks that may be used although their verifiers evaluate answers as code; see SECURITY.md.
    unsafe: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _named(self) -> GymConfig:
        if others := [name for name in self.unsafe if name != self.name]:
            raise ValueError(f"unsafe: {others[0]} is not the task of this recipe, {self.name}")
        return self

    @model_validator(mode="after")
    def _own_settings(self) -> GymConfig:
        keys = {"seed": "task.seed", "size": "task.train, task.validation and task.test"}
        for key, own in keys.items():
            if key in self.settings:
                raise ValueError(f"settings.{key}: leave it out and set {own} instead")
        return self


class Gym(Task):
    """Generated problems; the splits are seeded and share no question."""

    def __init__(
        self,
        task: str,
        sizes: dict[str, int],
        seed: int = 0,
        settings: dict[str, Any] | None = None,
        template: str = "chat",
        cut: str = "zero",
        unsafe: Sequence[str] = (),
        workers: int = 0,
        time_limit: float = 6.0,
    ):
        self.unsafe = task in unsafe
        self.name, self.task, self.sizes, self.seed = f"gym:{task}", task, sizes, seed
        self.settings, self.template, self.cut = settings or {}, template, cut
        options = {"task": task, "settings": self.settings, "cut": cut, "unsafe": self.unsafe}
        judge = "sps.tasks.gym.task:make_judge"
        self.pool = Pool(judge, options, workers, time_limit, fresh=self.unsafe)
        self._splits: dict[str, list[Problem]] | None = None

    def problems(self, split: str) -> list[Problem]:
        """Problems of one split; all are generated at once, so that they can be told apart."""
        if self._splits is None:
            self._splits = self._generate()
        return self._splits[split]

    def prompt(self, problem: Problem) -> Prompt:
        """The task's own question, and where to put the answer."""
        return render(self.template, problem.question, TAGGED, problem.meta)

    def judge(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """See `make_judge`; in this process, so not for a task that evaluates answers."""
        return make_judge(self.task, self.settings, self.cut)(problem, text, finished)

    def _generate(self) -> dict[str, list[Problem]]:
        want = sum(self.sizes.values())
        found: dict[str, Problem] = {}
        data = _dataset(self.task, 3 * want, self.seed, **self.settings)
        _check_safe(self.task, self.unsafe)
        for entry in data:
            if len(found) == want:
                break
            name = f"{self.task}-{len(found):06d}"
            meta = {"entry": dict(entry)}
            found.setdefault(
                entry["question"], Problem(name, entry["question"], str(entry["answer"]), meta)
            )
        if len(found) < want:
            raise UserError(
                f"task.name: {self.task} has only {len(found)} different problems with these "
                f"settings, and {want} are asked for; ask for fewer"
            )
        self._check_verifier(data, list(found.values())[:8])
        problems, splits, at = list(found.values()), {}, 0
        for split, size in self.sizes.items():
            splits[split], at = problems[at : at + size], at + size
        return splits

    def _check_verifier(self, data: Any, problems: list[Problem]) -> None:
        """A verifier that takes anything for right would teach just that."""
        for problem in problems:
            with suppress(Exception):  # as in the pool, a verdict of 'crashed': not right
                if data.score_answer(_NONSENSE, problem.meta["entry"]) >= SOLVED:
                    break
        else:
            return
        raise UserError(
            f"task.name: reasoning-gym's verifier of {self.task} takes {_NONSENSE!r} for a right "
            "answer, as it does any other; choose another task"
        )


def _make(t: GymConfig) -> Gym:
    sizes = {"train": t.train, "validation": t.validation, "test": t.test}
    how = (t.template, t.cut, t.unsafe, t.workers, t.time_limit)
    return Gym(t.name, sizes, t.seed, t.settings, *how)


def _bench(asked: Bench) -> Gym:
    name, sizes = asked.name.partition(":")[2], {"test": asked.limit or 100}
    how = (asked.template, asked.cut, asked.unsafe, asked.workers, asked.time_limit)
    return Gym(name, sizes, 1, None, *how)


TYPE = TaskType(GymConfig, _make, _bench, generates=True, needs=("reasoning_gym",))


def make_judge(
    task: str, settings: dict[str, Any], cut: str = "zero", unsafe: bool = False
) -> Callable[[Problem, str, bool], Verdict]:
    """The last <answer>...</answer> counts, or else the last box; of what follows </think> first.

    With `unsafe` an answer is scored only if it is plain mathematics, or the gold answer itself.
    """
    data = _dataset(task, 1, 0, **settings)
    _check_safe(task, unsafe)
    if unsafe:  # what a scorer loads at its first use is then there for every process forked off
        data.score_answer(data[0]["answer"], data[0])

    def judge(problem: Problem, text: str, finished: bool) -> Verdict:
        given = _given(answers.after_thinking(text) or "")
        if given is None:
            given = _given(text)
        if not finished and (cut == "zero" or given is None):
            return Verdict("truncated", 0.0, "cut off at the token limit", given or "")
        if given is None:
            return Verdict("unparsed", 0.0, "no <answer> and no box")
        if unsafe and given != problem.answer and not screen.plain(given):
            return Verdict("wrong", 0.0, "refused: not plain mathematics", given)
        score = float(data.score_answer(given, problem.meta["entry"]))
        kind = "correct" if score >= SOLVED else "wrong"
        return Verdict(kind, float(kind == "correct"), f"score {score:.3g}", given)

    return judge


def _given(text: str) -> str | None:
    tagged, boxed = _TAG.findall(text), answers.last_boxes(text)
    return tagged[-1].strip() if tagged else boxed[-1] if boxed else None


def _check_safe(task: str, unsafe: bool) -> None:
    from reasoning_gym.factory import DATASETS

    if not unsafe and (where := evaluator(DATASETS[task][0])):
        raise UserError(
            f"task.name: reasoning-gym's verifier of {task} may run an answer as code ({where}): "
            f"what a model writes could run on this machine. Choose another task, or allow it by "
            f"name with task.unsafe: [{task}] in a recipe, --unsafe {task} in sps eval: then only "
            "answers that are plain mathematics are scored, each in a locked-down process of its "
            "own (SECURITY.md)"
        )


def _dataset(task: str, size: int, seed: int, **settings: Any) -> Any:
    return _cached(task, size, seed, json.dumps(settings, sort_keys=True))


@lru_cache(maxsize=8)
def _cached(task: str, size: int, seed: int, settings: str) -> Any:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise UserError(
            "task.type gym needs reasoning-gym, which is missing; run: pip install 'sps-rl[gym]'"
        ) from None
    if task not in DATASETS:
        raise UserError(_unknown(task, list(DATASETS)))
    try:
        return reasoning_gym.create_dataset(task, size=size, seed=seed, **json.loads(settings))
    except (TypeError, AssertionError, ValueError) as error:
        raise UserError(f"task.settings: {task} does not take them: {error}") from None


def _unknown(task: str, known: list[str]) -> str:
    near = difflib.get_close_matches(task, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(known))}"
    return f"task.name: reasoning-gym has no task {task!r}; {hint}"
