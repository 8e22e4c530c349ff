"""A judge that runs what a model wrote, in a process an answer: what it can do, and to whom."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sps.types import Problem
from sps.verify import pool as pool_module
from sps.verify import processes
from sps.verify.pool import VerifierPool

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs the list of system calls")

# The worst judge there is: it runs the text. Right is who sets `answer` to the gold answer, and who
# gets at the gold answer is right too: nothing can keep a secret from code in its own process.
JUDGE = """
import sys
from sps.types import Verdict

def make_judge():
    def judge(problem, text, finished):
        scope = {}
        try:
            exec(text, scope)
        except Exception as error:
            return Verdict("wrong", 0.0, f"{type(error).__name__}: {error}")
        kind = "correct" if scope.get("answer") == problem.answer else "wrong"
        return Verdict(kind, float(kind == "correct"), "judged")
    return judge
"""

# Text, and its verdict. None of them leaves anything behind.
HOSTILE = {
    "import os; os.system('touch FILE')": "crashed",
    "import subprocess; subprocess.Popen(['touch', 'FILE'])": "crashed",
    "import os; os.posix_spawn('/bin/touch', ['touch', 'FILE'], {})": "crashed",
    "import os; os.execv('/bin/touch', ['touch', 'FILE'])": "crashed",
    "open('FILE', 'w').write('x')": "crashed",
    "import os; os.open('FILE', os.O_CREAT | os.O_RDWR)": "crashed",
    "import pathlib; pathlib.Path('FILE').mkdir()": "crashed",
    "import os; os.symlink('/', 'FILE')": "crashed",
    "import os\nif os.fork() == 0:\n import time; time.sleep(600)": "crashed",
    "import os\nwhile True: os.fork()": "crashed",
    "import socket; socket.create_connection(('127.0.0.1', PORT))": "crashed",
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:PORT')": "crashed",
    "import ctypes; ctypes.CDLL(None).system(b'touch FILE')": "crashed",
    "import os, signal; os.kill(os.getppid(), signal.SIGKILL)": "crashed",
    "import os, signal; os.kill(TRAINER, signal.SIGKILL)": "crashed",
    "import os; os._exit(0)": "crashed",
    "import os; os.close(3)": "crashed",
    "import os; os.write(3, b'x' * (100 << 20))": "crashed",
    "import sys; sys.exit(0)": "crashed",
    "raise KeyboardInterrupt": "crashed",
    "class E(Exception):\n def __str__(self): raise SystemExit\nraise E": "crashed",
    "import gc; gc.get_objects()": "crashed",
    "open('/proc/TRAINER/environ')": "crashed",
    "while True: pass": "timeout",
    "try:\n while True: pass\nexcept BaseException: pass": "timeout",
    "answer = bytearray(8 << 30)": "wrong",  # MemoryError, caught by the judge
    "f = lambda: f()\nf()": "wrong",
    "print('x' * (5 << 20))": "wrong",
    "class A:\n def __eq__(self, other): return 1 / 0\nanswer = A()": "crashed",
}
# What one answer changes must be gone when the next is judged.
POISON = {
    "scorer": "import stub_judge; stub_judge.Verdict = lambda *a: 1 / 0",
    "judge": "import sps.verify.apart as a; a._answer = a._verdict = None",
    "builtins": "import builtins; builtins.float = lambda x: 1.0; builtins.exec = print",
    "wire": "import sps.verify.wire as w; w.LONGEST = 10 ** 9; w.reply = w.replies = None",
    "path": "import sys; sys.path.clear(); sys.modules.clear()",
    "alarms": "import signal; signal.setitimer(signal.ITIMER_REAL, 0.01)",
}


@pytest.fixture
def judge(tmp_path, monkeypatch):
    (tmp_path / "stub_judge.py").write_text(JUDGE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return "stub_judge:make_judge"


@pytest.fixture
def port():
    """A server that notices who comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server.getsockname()[1]
        with pytest.raises(BlockingIOError):
            server.accept()


def ask(pool, texts):
    futures = [pool.submit(Problem("p", "?", "42"), text, True) for text in texts]
    return [future.result(timeout=120) for future in futures]


def children_of(pool):
    marks = [worker.mark.encode() for worker in pool._workers]
    return [
        path.parent
        for path in Path("/proc").glob("[0-9]*/environ")
        if any(mark in _read(path) for mark in marks)
    ]


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@linux
@pytest.mark.parametrize("kernel", [True, False], ids=["seccomp", "hook alone"])
def test_hostile_code_leaves_nothing_behind(judge, port, tmp_path, monkeypatch, kernel, workers):
    monkeypatch.setattr(pool_module, "_KERNEL", kernel)
    file = tmp_path / "made"
    words = {"FILE": str(file), "PORT": str(port), "TRAINER": str(os.getpid())}
    texts = list(HOSTILE)
    for word, value in words.items():
        texts = [text.replace(word, value) for text in texts]
    with VerifierPool(judge, workers=2, time_limit=2, memory_mb=1024, fresh=True) as pool:
        got = ask(pool, [*texts, "answer = '42'"])
        assert len(children_of(pool)) == 2  # the workers
        assert len(workers) == 2
    assert dict(zip(HOSTILE, [v.kind for v in got[:-1]], strict=True)) == HOSTILE
    assert got[-1].kind == "correct"
    assert not file.exists()


@linux
def test_the_kernel_says_no_whatever_the_language(judge, tmp_path):
    # Called from C, in a worker that has no hook. Right is a call that fails because it is refused:
    # EPERM or ENOSYS.
    call = (
        "import ctypes; c = ctypes.CDLL(None, use_errno=True); n = {}\n"
        "answer = '42' if n == -1 and ctypes.get_errno() in (1, 38) else ''"
    )
    made, there = tmp_path / "made", tmp_path / "stub_judge.py"
    calls = [
        f"c.open(b'{made}', 0o101, 0o600)",
        f"c.open(b'{there}', 2)",
        f"c.unlink(b'{there}')",
        f"c.rename(b'{there}', b'{made}')",
        f"c.mkdir(b'{made}', 0o700)",
        "c.socket(2, 1, 0)",
        "c.socket(1, 1, 0)",
        "c.fork()",
        "c.execv(b'/bin/true', None)",
        f"c.kill({os.getpid()}, 0)",
        "c.kill(0, 0)",
        "c.fcntl(1, 8, 1)",
        "c.prctl(1, 0)",
        "c.ptrace(0, 0, 0, 0)",
        "c.setpgid(0, 0)",
        f"c.prlimit({os.getpid()}, 7, ctypes.create_string_buffer(16), None)",
    ]
    with VerifierPool(judge, workers=1, time_limit=20) as pool:
        got = ask(pool, [call.format(text) for text in calls])
    assert {c: v.kind for c, v in zip(calls, got, strict=True)} == dict.fromkeys(calls, "correct")
    assert there.exists()
    assert not made.exists()


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON)
def test_what_an_answer_changes_is_gone_for_the_next(judge, poison):
    # One worker, one after the other: in a process that lives on, the rest would be judged wrong,
    # or right without being so.
    with VerifierPool(judge, workers=1, time_limit=20, batch=1, fresh=True) as pool:
        got = ask(pool, [poison, "answer = '42'", "answer = '41'"])
    assert [v.kind for v in got[1:]] == ["correct", "wrong"]
    assert [v.detail for v in got[1:]] == ["judged", "judged"]


def test_code_can_answer_for_itself_and_for_no_other(judge):
    # It finds the one pipe it has and sends a verdict of its own making, and one more.
    forge = (
        "import os, sps.verify.wire as w\n"
        "r = w.reply(w.Judged(0, w.Verdict('correct', 1.0)))\n"
        "for fd in range(256):\n"
        " for _ in range({times}):\n"
        "  try: os.write(fd, r)\n"
        "  except OSError: pass\n"
        "os._exit(0)"
    )
    with VerifierPool(judge, workers=1, time_limit=20, batch=8, fresh=True) as pool:
        twice, after = ask(pool, [forge.format(times=2), "answer = '41'"])
        assert (twice.kind, after.kind) == ("crashed", "wrong")
        # Once is indistinguishable from a verdict: SECURITY.md says so, and screening is why no
        # answer of a task of ours comes to it.
        once, after = ask(pool, [forge.format(times=1), "answer = '41'"])
        assert (once.kind, after.kind) == ("correct", "wrong")


def test_a_hang_is_killed_at_its_limit_and_the_worker_lives(judge, workers):
    with VerifierPool(judge, workers=1, time_limit=0.5, fresh=True) as pool:
        got = ask(pool, ["import time; time.sleep(600)", "answer = '42'"])
    assert [v.kind for v in got] == ["timeout", "correct"]
    assert got[0].detail == "no verdict within 0.5 s; its process was killed"
    assert len(workers) == 1


LEFT = """
import os, sys
def make_judge():
    from sps.types import Verdict
    def judge(problem, text, finished):
        if os.fork() == 0:      # leaves the group, and its parent leaves it
            os.setsid()
            if os.fork() == 0:
                os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"])
            os._exit(0)
        os.wait()
        return Verdict("wrong", 0.0)
    return judge
"""


@linux
@pytest.mark.parametrize("end", ["close", "die"])
def test_no_process_of_a_judge_outlives_its_worker(tmp_path, monkeypatch, end):
    (tmp_path / "left_judge.py").write_text(LEFT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    # Nothing forbids it here: neither the list nor the hook.
    monkeypatch.setattr(pool_module, "_environment", _unlocked(pool_module._environment, tmp_path))
    pool = VerifierPool("left_judge:make_judge", workers=1, time_limit=20)
    assert [v.kind for v in ask(pool, ["x", "y"])] == ["wrong", "wrong"]
    deadline = time.monotonic() + 10
    while len(left := children_of(pool)) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)  # one that is becoming another program has no environment to be read
    assert len(left) == 3
    if end == "die":
        pool._workers[0].process.kill()
        ask(pool, ["z"])
    pool.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(_alive(path) for path in left):
        time.sleep(0.02)
    assert not any(_alive(path) for path in left)


@linux
def test_a_process_that_is_becoming_another_program_is_killed_too(monkeypatch):
    mark, real, looks = "SPS_WORKER=starting", processes._environment, []
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    leader = subprocess.Popen(sleep, start_new_session=True)
    other = subprocess.Popen(
        sleep, env={**os.environ, "SPS_WORKER": "starting"}, start_new_session=True
    )

    def empty_at_first(folder):
        if folder.name != str(other.pid):
            return real(folder)
        looks.append(folder)
        return b"" if len(looks) < 3 else real(folder)

    monkeypatch.setattr(processes, "_environment", empty_at_first)
    try:
        processes.end_all(leader, mark)
        assert other.wait(10) == -signal.SIGKILL
    finally:
        other.kill()
        other.wait()


def _unlocked(environment, folder):
    (folder / "sitecustomize.py").write_text(
        "import sps.verify.sandbox as s\ns.enter = lambda *a, **k: None\n"
    )
    return environment


def _alive(path):
    try:
        return (path / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@linux
def test_a_child_dies_with_a_trainer_that_is_killed(judge, tmp_path):
    script = tmp_path / "trainer.py"
    script.write_text(
        "import time\n"
        "from sps.types import Problem\n"
        "from sps.verify.pool import VerifierPool\n"
        f"pool = VerifierPool({judge!r}, workers=1, time_limit=300, fresh=True)\n"
        "ask = lambda t: pool.submit(Problem('p', '?', '42'), t, True)\n"
        "ask('1').result()\n"
        "ask('import time; time.sleep(600)')\n"
        "print(pool._workers[0].mark, flush=True)\n"
        "time.sleep(300)\n"
    )
    trainer = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    mark = trainer.stdout.readline().strip().encode()

    def left():
        found = [p.parent for p in Path("/proc").glob("[0-9]*/environ") if mark in _read(p)]
        return [path for path in found if _alive(path)]

    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and len(left()) < 2:  # the worker, and its child
        time.sleep(0.02)
    assert len(left()) == 2
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and left():
        time.sleep(0.02)
    assert left() == []
