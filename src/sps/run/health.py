"""What a run's record says of its health: skipped updates, a judge or a policy that broke.

It is given every record, also those read back when a run is resumed, so that it then knows what an
uninterrupted run would know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sps.types import FAILED

# A judge is at fault that failed at every answer of so many draws in a row which was not cut off:
# at most of all answers, or so often.
_DRAWS, _FAILURES = 3, 48
_RIGHTLESS = 50  # steps without a right answer that are warned of; fewer where a phase has fewer
_SKIPPED = (
    "the update was skipped: its loss, gradient or log-probabilities are not finite (NaN or "
    "infinite). After rl.max_skipped such updates in a row the run ends"
)
_WIDER = 3.0, 1.0  # an entropy so many times, and so many nats above, that of the first step


class Health:
    """Skipped updates, a judge that only fails, steps without a right answer, and an entropy that
    blows up."""

    def __init__(self, phase: int, answers: int = 1, draw: int = 1) -> None:
        """`answers` are those of a step, `draw` the steps that learn from one draw."""
        self.skipped = 0  # updates in a row
        self.worst = 0  # the most of them since the run was last looked at
        self.failing = 0  # steps in a row in which the judge failed at every answer
        self._failures = 0.0  # in these steps
        self._answers, self._draw = answers, draw
        self._rightless = 0  # steps in a row
        self._limit = max(1, min(_RIGHTLESS, phase))
        self._entropy: float | None = None  # of the first step that has one
        self._wide = 0  # the phase in which that was said

    def saw(self, kind: str, record: Mapping[str, Any]) -> list[str]:
        """Take one record; what there is to warn of."""
        if kind not in ("rl", "irl"):
            return []
        before = self.skipped
        values = [record[name] for name in ("loss", "grad_norm", "logprob") if name in record]
        if record.get("skipped") or not all(map(math.isfinite, values)):
            self.skipped += 1
            self.worst = max(self.worst, self.skipped)
        elif values and record.get("used", 1):  # else there was no update
            self.skipped = 0
        said = [_SKIPPED] if (before, self.skipped) == (0, 1) else []
        if kind == "rl":
            self._judge(record)
            said += filter(None, (self._no_right(record), self._blown_up(record)))
        return said

    @property
    def judge_is_at_fault(self) -> bool:
        """Whether it failed at every answer, often enough."""
        most = self._failures > self.failing * self._answers / 2
        often = most or self._failures >= _FAILURES
        return often and self.failing >= _DRAWS * self._draw  # a draw has no more steps than this

    def _judge(self, record: Mapping[str, Any]) -> None:
        share = sum(record.get(f"verdict/{kind}", 0.0) for kind in FAILED)
        only = _only_failed(record)
        self.failing = self.failing + 1 if only else 0
        self._failures = self._failures + share * self._answers if only else 0.0

    def _no_right(self, record: Mapping[str, Any]) -> str:
        self._rightless = 0 if record["reward"] else self._rightless + 1
        times, rest = divmod(self._rightless, self._limit)
        if rest or times not in (1, 2, 4, 8, 16, 32, 64):  # said again each time it has doubled
            return ""
        return (
            f"no answer was right in the last {self._rightless} steps: there is nothing to learn "
            "from. If some were right before, the policy is broken: go back to an earlier "
            "checkpoint with a lower rl.lr; else take easier problems, or raise rollout.n"
        )

    def _blown_up(self, record: Mapping[str, Any]) -> str:
        now = record.get("entropy")
        if now is None or not math.isfinite(now):
            return ""
        if self._entropy is None:
            self._entropy = now
        times, nats = _WIDER
        if now < max(times * self._entropy, self._entropy + nats) or self._wide == record["phase"]:
            return ""
        self._wide = record["phase"]
        return (
            f"the entropy is {now:.2f} nats a token, at the first step it was {self._entropy:.2f}: "
            "the policy is diverging. Lower rl.lr, or rl.entropy where there is one"
        )


def _only_failed(record: Mapping[str, Any]) -> bool:
    """Whether all verdicts of a step but those of answers that were cut off are the judge's own
    failures; a kind that did not occur is not in the record."""
    kinds = {name.removeprefix("verdict/") for name in record if name.startswith("verdict/")}
    judged = kinds - {"truncated"}
    return bool(judged) and judged <= {*FAILED}
