"""The pool: verdicts whatever happens, and nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from sps.errors import RunFailed
from sps.types import Problem, Verdict
from sps.verify import pool as pool_module
from sps.verify.pool import VerifierPool

JUDGE = """
import ctypes, mmap, os, signal, time
from sps.types import Verdict

KEPT = []

def make_judge(word="right"):
    def judge(problem, text, finished):
        if text == "sleep":      # holds no lock: its own alarm ends it
            time.sleep(60)
        if text == "hang":       # deaf to its alarm: only a kill ends it
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
            time.sleep(600)
        if text == "die":
            os._exit(7)
        if text == "segfault":
            ctypes.string_at(0)
        if text == "raise":
            raise ValueError("no such thing")
        if text == "memory":
            "x" * (1 << 33)
        if text == "leak":
            KEPT.append(mmap.mmap(-1, 60 << 20))
            mmap.mmap(-1, 120 << 20).close()
        print("noise on standard output")
        kind = "correct" if text == word else "wrong"
        return Verdict(kind, float(kind == "correct"), str(os.getpid()), text)
    return judge

def broken():
    raise ImportError("libmissing.so")
"""


@pytest.fixture
def judge(tmp_path, monkeypatch):
    (tmp_path / "stub_judge.py").write_text(JUDGE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return "stub_judge:make_judge"


def ask(pool, texts):
    problem = Problem("p", "?", "!")
    futures = [pool.submit(problem, text, True) for text in texts]
    return [future.result(timeout=60) for future in futures]


def test_pool_gives_every_sample_its_own_verdict(judge, workers):
    with VerifierPool(judge, {"word": "yes"}, workers=2, time_limit=5) as pool:
        verdicts = ask(pool, ["yes", "no"] * 100)
    assert [v.kind for v in verdicts] == ["correct", "wrong"] * 100
    assert [v.answer for v in verdicts] == ["yes", "no"] * 100
    assert len(workers) == 2


def test_a_hang_costs_its_own_limit_and_one_restart(judge, workers):
    with VerifierPool(judge, workers=1, time_limit=1.0, batch=8) as pool:
        ask(pool, ["right"])  # the worker is up
        began = time.monotonic()
        verdicts = ask(pool, ["right", "hang", "right", "right"])
        took = time.monotonic() - began
    assert [v.kind for v in verdicts] == ["correct", "timeout", "correct", "correct"]
    assert len(workers) == 2
    # 1 s limit + 1 s grace, then the start of a new worker; twice the limit would be a second hang.
    assert 2.0 <= took < 30


def test_a_sleep_is_interrupted_without_a_restart(judge, workers):
    with VerifierPool(judge, workers=1, time_limit=0.5) as pool:
        verdicts = ask(pool, ["sleep", "right"])
    assert [v.kind for v in verdicts] == ["timeout", "correct"]
    assert verdicts[0].detail == "no verdict within 0.5 s"
    assert len(workers) == 1


def test_a_death_is_a_crash_that_says_how(judge, workers):
    with VerifierPool(judge, workers=1, time_limit=20) as pool:
        verdicts = ask(pool, ["right", "die", "right", "segfault", "right"])
    assert [v.kind for v in verdicts] == ["correct", "crashed", "correct", "crashed", "correct"]
    assert "ended with code 7" in verdicts[1].detail
    assert f"signal {signal.SIGSEGV.value}" in verdicts[3].detail
    assert len(workers) == 3


def test_an_exception_is_a_crash_without_a_restart(judge, workers):
    with VerifierPool(judge, workers=1, time_limit=20) as pool:
        verdicts = ask(pool, ["raise", "right"])
    assert [v.kind for v in verdicts] == ["crashed", "correct"]
    assert verdicts[0].detail == "ValueError: no such thing"
    assert len(workers) == 1


def test_a_memory_bomb_is_tried_in_a_new_worker_and_then_a_crash(judge, workers):
    with VerifierPool(judge, workers=1, time_limit=20, memory_mb=1024) as pool:
        verdicts = ask(pool, ["right", "memory", "right"])
    assert [v.kind for v in verdicts] == ["correct", "crashed", "correct"]
    assert verdicts[1].detail == "MemoryError: more than the 1024 MB that a worker may use"
    assert len(workers) == 3  # a new one after each try
    assert len({verdicts[0].detail, verdicts[2].detail}) == 2  # process ids


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_whose_memory_fills_up_is_replaced_before_an_honest_answer_fails(judge, workers):
    # Each answer leaves 60 MB behind and needs 120 MB for a moment: 1024 MB hold a few of them.
    with VerifierPool(judge, workers=1, time_limit=20, memory_mb=1024) as pool:
        verdicts = ask(pool, ["leak"] * 40)
    assert [v.kind for v in verdicts] == ["wrong"] * 40
    assert len(workers) >= 4


def test_a_worker_without_room_for_its_judge_says_so(judge):
    pool = VerifierPool(judge, workers=1, memory_mb=16)
    with pytest.raises(RunFailed, match=r"the judge alone takes \d+ MB of the 16 MB"):
        pool.submit(Problem("p", "?", "!"), "x", True).result(timeout=60)
    pool.close()


def test_a_judge_that_cannot_start_is_said_and_nobody_waits(judge):
    pool = VerifierPool("stub_judge:broken", workers=1)
    future = pool.submit(Problem("p", "?", "!"), "x", True)
    with pytest.raises(RunFailed, match=r"libmissing\.so"):
        future.result(timeout=60)
    with pytest.raises(RunFailed, match=r"libmissing\.so"):
        pool.submit(Problem("p", "?", "!"), "x", True)
    pool.close()


def test_a_pool_that_fails_judges_only_the_answer_that_killed_a_worker(judge, monkeypatch):
    pool = VerifierPool(judge, workers=1, time_limit=20)
    ask(pool, ["right"])  # the worker is up, and will be the last
    monkeypatch.setattr(pool, "_start", lambda: os.close(-1))

    def send(text):
        """On a busy machine the pool may have failed before the last are handed in."""
        try:
            return pool.submit(Problem("p", "?", "!"), text, True)
        except RunFailed as error:
            late = Future()
            late.set_exception(error)
            return late

    futures = [send(text) for text in ["die", "right", "right"]]
    assert futures[0].result(timeout=20).kind == "crashed"
    for future in futures[1:]:
        with pytest.raises(RunFailed, match=r"pool failed: OSError: .* Bad file descriptor"):
            future.result(timeout=20)
    pool.close()


def test_a_worker_that_died_before_it_took_its_batch_costs_no_answer(judge, monkeypatch, workers):
    write, died = pool_module._write, []

    def dies_once(fd, data):
        if not died:
            died.append(fd)
            raise BrokenPipeError
        return write(fd, data)

    monkeypatch.setattr(pool_module, "_write", dies_once)
    with VerifierPool(judge, workers=1, time_limit=20) as pool:
        assert [v.kind for v in ask(pool, ["right", "no"])] == ["correct", "wrong"]
    assert len(workers) == 2


def test_submit_waits_while_the_queue_is_full(judge):
    with VerifierPool(judge, workers=1, time_limit=0.5, pending=2, batch=1) as pool:
        ask(pool, ["right"])
        began = time.monotonic()
        futures = [
            pool.submit(Problem("p", "?", "!"), t, True) for t in ["sleep", "right", "right"]
        ]
        # Two may wait: the third got in only when the first was settled, after its 0.5 s.
        assert time.monotonic() - began >= 0.4
        assert [f.result(timeout=20).kind for f in futures] == ["timeout", "correct", "correct"]


def test_close_settles_what_still_waits(judge):
    pool = VerifierPool(judge, workers=1, time_limit=30, batch=1)
    futures = [pool.submit(Problem("p", "?", "!"), "sleep", True) for _ in range(3)]
    pool.close()
    assert {f.result(timeout=1).kind for f in futures} == {"crashed"}
    assert all("closed" in f.result().detail for f in futures)
    with pytest.raises(RunFailed):
        pool.submit(Problem("p", "?", "!"), "x", True)


PARENT = """
import sys, time
from sps.types import Problem
from sps.verify.pool import VerifierPool
pool = VerifierPool("stub_judge:make_judge", workers=2, time_limit=300)
seen = {pool.submit(Problem("p", "?", "!"), "right", True).result().detail for _ in range(20)}
futures = [pool.submit(Problem("p", "?", "!"), "hang", True) for _ in range(2)]
print(*(w.process.pid for w in pool._workers), flush=True)
time.sleep(300)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_die_with_a_parent_that_is_killed(judge, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT))
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    time.sleep(0.5)  # both are inside a judge that never returns
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(_alive(pid) for pid in workers):
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in workers)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_hostile_mathematics_is_judged_and_kills_nothing():
    deep = "\\frac{1}{" * 200 + "2" + "}" * 200
    texts = {
        "a" * 1_000_000: "unparsed",
        "\\boxed{" + "(" * 5000 + "1" + ")" * 5000 + "}": "unparsed",
        "\\boxed{" + deep + "}": "unparsed",
        "\\boxed{9^{9^{9^{9}}}}": "wrong",
        "\\boxed{10^{1000000000000}}": "wrong",
        "\\boxed{123456789!}": "wrong",
        "\\boxed{\0\0\0}": "unparsed",
        "\\boxed{": "unparsed",
        "\\boxed{}": "unparsed",
        "\ud800 \\boxed{7}": "correct",
        "\\boxed{\u0667}": "correct",  # an Arabic 7
        "": "unparsed",
        "$" * 2000: "unparsed",
    }
    with VerifierPool("sps.tasks.math.judge:make_judge", workers=2, time_limit=10) as pool:
        futures = {t: pool.submit(Problem("p", "?", "7"), t, True) for t in texts}
        got = {t: f.result(timeout=120) for t, f in futures.items()}
    assert {t[:40]: v.kind for t, v in got.items()} == {t[:40]: k for t, k in texts.items()}
    assert all(
        isinstance(v, Verdict) and v.reward == float(v.kind == "correct") for v in got.values()
    )
