"""What every Verifier promises, whatever a judge does."""

import os

import pytest

from sps.types import KINDS, Problem, Verdict
from sps.verify import InlineVerifier, Pool, open_verifier

JUDGE = """
from sps.types import Verdict

def make_judge(word="right"):
    def judge(problem, text, finished):
        if text == "raise":
            raise ValueError("no such thing")
        kind = "correct" if finished and text == word + problem.answer else "wrong"
        return Verdict(kind, float(kind == "correct"), problem.id, text[:20])
    return judge
"""
PROBLEMS = [Problem(f"p{i}", "?", str(i), {"level": i, "tags": ["a"]}) for i in range(20)]
ODD = ["", "\x00", "\ud800 half a pair", "line\r\nline\u2028", "x" * 100_000, "'\"\\", "\U0001f600"]


class Task:
    """As far as a verifier knows one."""

    def __init__(self, judge, pool):
        self.judge, self.pool = judge, pool


@pytest.fixture(scope="module", params=["inline", "pool", "fresh"])
def verifier(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    (folder / "contract_judge.py").write_text(JUDGE)
    names: dict = {}
    exec(JUDGE, names)
    pool = Pool("contract_judge:make_judge", {"word": "so "}, 1, 20.0, request.param == "fresh")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        inline = request.param == "inline"
        made = open_verifier(Task(names["make_judge"]("so "), None if inline else pool))
        yield made
        made.close()


def test_the_table_of_tasks_says_which(verifier, request):
    inline = "inline" in request.node.callspec.id
    assert isinstance(verifier, InlineVerifier) == inline


def test_each_verdict_is_of_its_own_sample(verifier):
    futures = [verifier.submit(p, f"so {i % 7}", i % 5 > 0) for i, p in enumerate(PROBLEMS)]
    for i, (p, future) in enumerate(zip(PROBLEMS, futures, strict=True)):
        right = i < 7 and i % 5 > 0
        want = Verdict("correct" if right else "wrong", float(right), p.id, f"so {i % 7}")
        assert future.result(60) == want


def test_a_judge_that_raises_is_a_verdict(verifier):
    verdict = verifier.submit(PROBLEMS[0], "raise", True).result(60)
    assert (verdict.kind, verdict.reward) == ("crashed", 0.0)
    assert "no such thing" in verdict.detail
    assert verifier.submit(PROBLEMS[1], "so 1", True).result(60).kind == "correct"


def test_any_text_has_a_verdict(verifier):
    for future in [verifier.submit(PROBLEMS[0], text, True) for text in ODD]:
        verdict = future.result(60)
        assert verdict.kind in KINDS
        assert verdict.reward == 0.0
