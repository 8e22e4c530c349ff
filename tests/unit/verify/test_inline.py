"""Judging in place."""

from __future__ import annotations

from sps.types import Problem, Verdict
from sps.verify import InlineVerifier

PROBLEM = Problem("p", "1 + 1", "2")


def test_inline_verifier_hands_on_the_verdict():
    def judge(problem, text, finished):
        return Verdict("correct" if (text, finished) == (problem.answer, True) else "wrong", 0.5)

    verifier = InlineVerifier(judge)
    assert verifier.submit(PROBLEM, "2", True).result() == Verdict("correct", 0.5)
    assert verifier.submit(PROBLEM, "2", False).result() == Verdict("wrong", 0.5)


def test_a_judge_that_raises_is_a_verdict_that_says_so():
    def judge(problem, text, finished):
        raise ValueError("cannot read " + "x" * 500)

    verdict = InlineVerifier(judge).submit(PROBLEM, "2", True).result()
    assert (verdict.kind, verdict.reward) == ("crashed", 0.0)
    assert verdict.detail.startswith("ValueError: cannot read xxx")
    assert len(verdict.detail) == 200
