"""Does the cost of a phase grow with the run? A million rollouts, an evaluation, 10,000 steps.

Each reading is a process of its own, so that its peak memory is its own; what importing takes is
not counted. `python -m bench.store [steps]`: of the rollouts, 2500 by default.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sps.evaluation.scores import count_scores
from sps.run.track import Track, read_records
from sps.store.evals import EvalStore
from sps.store.rollouts import RolloutStore
from sps.types import Rollout, Verdict

STEPS, PHASE = 2500, 50  # RL steps, and those of a phase
GROUPS, SAMPLES, TOKENS = 25, 16, 20  # rollouts of a step
QUESTIONS, N = 1000, 128  # of the evaluation
TINY = 10_000  # steps of one small group


def rollouts(step: int, groups: int, samples: int, rng: np.random.Generator) -> list[Rollout]:
    """Short rollouts with likelihoods of every size."""
    ids = np.arange(TOKENS, dtype=np.int32)
    logprobs = -rng.exponential(size=(groups, samples, TOKENS)).astype(np.float32)
    right = Verdict("correct", 1.0, "correct", "9"), Verdict("wrong", 0.0, "wrong_target", "8")
    return [
        Rollout(f"p{g}", ids, ids, logprobs[g, s], float(s == 0), right[s > 0], step, step, g, s)
        for g in range(groups)
        for s in range(samples)
    ]


def fill(folder: Path, steps: int) -> list[dict[str, Any]]:
    """A run of `steps` steps; the first and the last phase are read before they are closed."""
    store, rng, rows = RolloutStore(folder), np.random.default_rng(0), []
    for step in range(1, steps + 1):
        store.append(step, rollouts(step, GROUPS, SAMPLES, rng))
        if step % PHASE:
            continue
        first = step - PHASE + 1
        if step in (PHASE, steps):
            rows += [_apart(kind, folder, first, step) for kind in ("light", "full")]
        store.close_phase(first, step, {(first, 0, 0)})
    return rows


def light(store: RolloutStore, first: int, last: int) -> int:
    """What L2TE reads of a phase."""
    return len(store.light(first, last))


def full(store: RolloutStore, first: int, last: int) -> int:
    """A phase with its tokens."""
    return len(store.read(first, last))


def evaluation(folder: RolloutStore, *_: int) -> int:
    """Samples to scores: stored part by part, joined, read back and counted."""
    store = EvalStore(folder.folder / "evaluation")
    common = {"text": "so x = 1. " * 40, "length": 120, "finished": True, "sum_logprob": -30.0}
    for question in range(QUESTIONS):
        for sample in range(N):
            kind = "correct" if sample % 3 == 0 else "wrong"
            key = {"problem_id": f"q{question}", "sample": sample}
            store.append({**key, **common, "verdict": kind, "detail": kind, "answer": "1"})
    store.flush()
    store.replace(store.read())
    ids = [f"q{i}" for i in range(QUESTIONS)]
    scores = count_scores(ids, N, store.read(), None)
    assert scores.correct_Q.sum() == QUESTIONS * -(-N // 3)
    return QUESTIONS * N


def tiny_steps(folder: Path) -> dict[str, Any]:
    """Records and rollouts of very many steps: what one takes in the end and in the beginning."""
    store, track = RolloutStore(folder / "rollouts"), Track(folder / "metrics.jsonl")
    rng, seconds, cpu, most = np.random.default_rng(0), [], [], 0
    for step in range(1, TINY + 1):
        drawn = rollouts(step, 1, 8, rng)
        began, busy = time.perf_counter(), time.process_time()
        store.append(step, drawn)
        track.log("rl", step, **{f"metric/{i}": 0.125 * i for i in range(40)})
        if step % 100 == 0:
            most = max(most, len(list(store.folder.iterdir())))
            store.close_phase(step - 99, step, set())
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - busy)
    began = time.perf_counter()
    assert len(read_records(track.path)) == TINY
    return {
        "what": f"{TINY} steps of 8 rollouts, phases of 100",
        "first_ms": 1000 * statistics.mean(seconds[:500]),
        "last_ms": 1000 * statistics.mean(seconds[-500:]),
        "first_cpu_ms": 1000 * statistics.mean(cpu[:500]),
        "last_cpu_ms": 1000 * statistics.mean(cpu[-500:]),
        "files_most": most,
        "files_end": len(list(store.folder.iterdir())),
        "read_records_seconds": time.perf_counter() - began,
    }


WORK: dict[str, Callable[..., int]] = {"light": light, "full": full, "evaluation": evaluation}


def _apart(kind: str, folder: Path, first: int = 0, last: int = 0) -> dict[str, Any]:
    """One kind of work in a process of its own."""
    command = [sys.executable, "-m", "bench.store", kind, str(folder), str(first), str(last)]
    row = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    print(row)
    return row


def _measure(kind: str, folder: Path, first: int, last: int) -> None:
    import pyarrow.dataset

    assert pyarrow.dataset  # imported by the first read otherwise, at its cost
    store = RolloutStore(folder)  # once a run
    before, seconds, cpu = _peak(), [], []
    for _ in range(1 if kind == "evaluation" else 3):
        began, busy = time.perf_counter(), time.process_time()
        rows = WORK[kind](store, first, last)
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - busy)
    found = {"what": kind, "steps": [first, last], "rows": rows}
    found |= {"seconds": statistics.median(seconds), "cpu_seconds": statistics.median(cpu)}
    found |= {"peak_mib": (_peak() - before) / 1024}
    found = {key: round(v, 3) if isinstance(v, float) else v for key, v in found.items()}
    sys.stdout.write(json.dumps(found))


def _peak() -> int:
    """KiB of memory at the most. Not ru_maxrss, which begins with the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def main(steps: int = STEPS) -> None:
    """All of it, below a temporary folder."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        began = time.perf_counter()
        rows = fill(folder / "rollouts", steps)
        count = steps * GROUPS * SAMPLES
        rows.append({"what": f"write {count} rollouts", "seconds": time.perf_counter() - began})
        rows.append(_apart("evaluation", folder))
        rows.append(tiny_steps(folder / "tiny"))
        print(rows[-3], rows[-1], sep="\n")
    from bench.sides import RESULTS, machine

    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "store.json").write_text(json.dumps({**machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    given = sys.argv[1:]
    if given and given[0] in WORK:
        _measure(given[0], Path(given[1]), int(given[2]), int(given[3]))
    else:
        main(*map(int, given))
