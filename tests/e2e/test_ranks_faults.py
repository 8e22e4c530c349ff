"""Two ranks, one of which meets a fault or a signal: both take the same decision."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from test_ranks import SETTINGS, kept, weights, write_recipe

from sps.build import open_run
from sps.config.load import load_recipe
from sps.loop import train
from sps.run.track import read_records

# On rank 1 alone the loss of the first update is NaN, or it sends itself SIGTERM then.
FAULTY = """
import os, signal, sys
import sps.phases.rl as rl
from sps.cli import main
fault, real, seen = sys.argv.pop(1), rl.policy_loss, []

def policy_loss(*given):
    loss, sums = real(*given)
    seen.append(given)
    if os.environ["RANK"] == "1" and len(seen) == 1:
        if fault == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            loss = loss * float("nan")
    return loss, sums

rl.policy_loss = policy_loss
main()
"""


def two(fault, *arguments, sharded=""):
    """Both ranks, started as SLURM starts tasks: no launcher between them and a signal."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= SETTINGS[sharded] | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    started = []
    for rank in ("0", "1"):
        own = {"RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}
        command = [sys.executable, "-c", FAULTY, fault, *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(command, env=os.environ | shared | own, **pipes))
    said = [process.communicate(timeout=240)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    return said


@pytest.mark.slow
@pytest.mark.parametrize("sharded", ["", "FSDP2"])
def test_a_signal_to_one_rank_stops_both_and_they_go_on_as_one(tmp_path, sharded):
    recipe = write_recipe(tmp_path, "plain")
    train(open_run(load_recipe(recipe), tmp_path / "one"))
    how = ("train", str(recipe), "--out", str(tmp_path / "two"), "--resume")
    said = two("term", *how, sharded=sharded)
    assert said[0].count("(SIGTERM); everything is kept: go on with --resume") == 1
    assert "everything is kept" not in said[1]
    assert read_records(tmp_path / "two" / "metrics.jsonl")[-1]["kind"] == "stopped"
    assert [p.name for p in (tmp_path / "two" / "checkpoints").iterdir()] == ["stop-000001"]
    two("none", *how, sharded=sharded)
    one, both = tmp_path / "one", tmp_path / "two"
    assert kept(one) == kept(both)
    first, a, b = weights(one, 2), weights(one, 4), weights(both, 4)
    apart = sum(float((a[k] - b[k]).square().sum()) for k in a) ** 0.5
    assert apart < 1e-3 * sum(float((a[k] - first[k]).square().sum()) for k in a) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("sharded", ["", "FSDP2"])
def test_a_loss_that_is_nan_on_one_rank_is_skipped_by_both(tmp_path, sharded):
    recipe = write_recipe(tmp_path, "plain")
    two("nan", "train", str(recipe), "--out", str(tmp_path / "two"), sharded=sharded)
    records = read_records(tmp_path / "two" / "metrics.jsonl")
    assert sum(bool(r.get("skipped")) for r in records) == 1
    assert records[-1]["kind"] == "done"  # had one of them stepped, the next step would differ
