"""Everything that flows between the parts. Frozen, and described field by field.

Axes used in tensor names throughout the code base:
    P problems, G samples a problem, B = P*G sequences, T completion tokens, L prompt + completion
    tokens, V vocabulary, K kept rollouts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Verdict kinds that every task shares. A task may say more in Verdict.detail.
KINDS = ("correct", "wrong", "unparsed", "truncated", "timeout", "crashed")
FAILED = ("timeout", "crashed")  # the kinds that blame the judge, not the answer


@dataclass(frozen=True)
class Problem:
    """One question with a checkable answer."""

    id: str  # unique within its task
    question: str  # what is asked, without any prompt template
    answer: Any  # the gold answer as the task's judge reads it: text, but in a user's own task
    meta: Mapping[str, Any] = field(default_factory=dict)  # level, source, ...

    @property
    def answer_text(self) -> str:
        """The answer to show or to compare: as it is, or as JSON where that can say it."""
        if isinstance(self.answer, str):
            return self.answer
        try:
            return json.dumps(self.answer, ensure_ascii=False)
        except (TypeError, ValueError):
            return repr(self.answer)


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn."""

    n: int  # samples a problem
    max_new_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0  # 1 keeps all tokens
    top_k: int = 0  # 0 keeps all tokens
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """One prompt to complete, and which of its samples to draw.

    The random numbers of a sample depend on (Sampling.seed, index, sample number) alone, never on
    the batch it shares, so a resumed job draws what an uninterrupted one would have drawn.
    """

    index: int  # comes back on each completion; part of the seed
    prompt_ids: tuple[int, ...]
    samples: tuple[int, ...]  # sample numbers to draw, usually 0 .. n-1


@dataclass(frozen=True)
class Completion:
    """One sampled answer."""

    index: int  # of the request
    sample: int  # number within the request
    ids: np.ndarray  # int32 [T], the end token included when there is one
    logprobs: np.ndarray  # float32 [T], under the sampling distribution before top-p and top-k
    finished: bool  # False: cut off at max_new_tokens


@dataclass(frozen=True)
class Verdict:
    """The judgement of one completion. A reward of 0 always has a kind that says why."""

    kind: str  # one of KINDS
    reward: float  # 1.0 correct, else 0.0; a judge of the user's own may give parts of a point
    detail: str = ""  # the task's own word for it, such as 'wrong_target'
    answer: str = ""  # what was read as the answer


@dataclass(frozen=True)
class Finding:
    """Something wrong with a task's data, put on record once a run."""

    key: str  # of `rows` in the record: 'duplicates', 'overlaps'
    kind: str  # of the record, such as 'warning'
    text: str
    rows: list[list[Any]]


@dataclass(frozen=True)
class Rollout:
    """A completion of the RL phase with its verdict: one row of the store."""

    problem_id: str
    prompt_ids: np.ndarray  # int32
    ids: np.ndarray  # int32 [T]
    logprobs: np.ndarray  # float32 [T], under the policy that sampled it
    reward: float  # as the loss saw it (verdict's reward plus any shaping)
    verdict: Verdict
    step: int  # RL step that drew it, from 1
    policy_version: int  # optimizer steps the sampling policy had seen
    group: int  # number of its group within the step
    sample: int  # number within its group
    finished: bool = True  # False: cut off at max_new_tokens

    @property
    def mean_logprob(self) -> float:
        """Length-normalised log-likelihood."""
        return float(self.logprobs.mean()) if len(self.logprobs) else 0.0

    @property
    def sum_logprob(self) -> float:
        """Log-likelihood of the whole trajectory."""
        return float(self.logprobs.sum())


Group = list[Rollout]  # the n rollouts of one problem in one step
Metrics = dict[str, float]
