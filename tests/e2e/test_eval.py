"""`sps eval` as a process: killed, resumed, regraded, compared; and a real language model."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from sps.policy.checkpoint import save_checkpoint
from sps.policy.embedded import SHIPPED
from sps.policy.load import load_policy

# The store writes ten times a second, so that a kill finds something stored and something not.
DRIVER = """
import sys
from sps.store import evals
evals._SECONDS = 0.1
from sps.cli import main
main()
"""


def command(model, out, *more):
    given = [str(model), "--out", str(out), "--template", "plain", *map(str, more)]
    return [sys.executable, "-c", DRIVER, "eval", *given]


def run(model, out, *more):
    done = subprocess.run(command(model, out, *more), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((Path(out) / "results.json").read_text())


@pytest.fixture(scope="module")
def base():
    return next(path.parent for path in sorted(SHIPPED.glob("*/config.json")))


WORK = ("--bench", "countdown", "--n", 16, "--limit", 40, "--max-rows", 4, "--max-new-tokens", 20)


@pytest.fixture(scope="module")
def whole(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(base, folder, *WORK)


def stored(folder):
    files = sorted((folder / "countdown").glob("*.parquet"))
    return [row for f in files for row in pq.read_table(f).to_pylist()]


def test_an_evaluation_killed_again_and_again_ends_with_the_same_table(base, whole, tmp_path):
    rng, seen, kills = random.Random(3), 0, 0
    for _ in range(2):
        process = subprocess.Popen(
            command(base, tmp_path, *WORK), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 120
        while process.poll() is None and len(stored(tmp_path)) <= seen:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.4))
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        rows = stored(tmp_path)
        assert len(rows) > seen
        assert len({(r["problem_id"], r["sample"]) for r in rows}) == len(rows)  # none drawn twice
        seen = len(rows)
    assert kills >= 1
    again = run(base, tmp_path, *WORK)
    folder, results = whole
    assert again["benchmarks"] == results["benchmarks"]
    for ours, theirs in zip(stored(tmp_path), stored(folder), strict=True):  # text for text
        # Rows share a batch with others than before, so sums may differ in their last bits.
        assert ours.pop("sum_logprob") == pytest.approx(theirs.pop("sum_logprob"), abs=1e-3)
        assert ours == theirs
    assert (tmp_path / "table.md").read_text() == (folder / "table.md").read_text()


def test_the_table_counts_what_is_stored(whole):
    folder, results = whole
    rows, found = stored(folder), results["benchmarks"]["countdown"]
    right = sum(row["verdict"] == "correct" for row in rows)
    assert len(rows) == 40 * 16
    assert found["avg"][0] == pytest.approx(right / 640)
    assert sum(found["kinds"].values()) == 640
    assert sum(found["buckets"].values()) == 40
    assert 0 < right < 640  # the embedded policy solves some


def test_regrade_of_the_same_answers_changes_nothing(whole):
    folder, results = whole
    before = stored(folder)
    base_name = json.loads((folder / "eval.json").read_text())["model"]
    again = run(base_name, folder, *WORK, "--regrade")
    assert again["benchmarks"] == results["benchmarks"]
    assert stored(folder) == before


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--bench", "aime24", "--data-dir", "nowhere"), "there is no aime_2024.jsonl in nowhere"),
        (("--bench", "countdwn"), "benchmark 'countdwn' is not known"),
    ],
)
def test_bad_input_ends_with_code_2_and_one_paragraph(base, tmp_path, more, message):
    done = subprocess.run(
        command(base, tmp_path, *more), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_tokenizer_without_a_chat_template_names_the_fix(base, tmp_path):
    given = [str(base), "--bench", "countdown", "--out", str(tmp_path), "--template", "chat"]
    data = tmp_path / "data"
    data.mkdir()
    (data / "aime_2024.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\n')
    given[2] = "aime24"
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, "eval", *given, "--data-dir", str(data)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no chat template" in done.stderr
    assert "--template" in done.stderr
    given[given.index("chat")] = "plain"  # nothing was drawn: the fix goes into the same folder
    more = ("--data-dir", str(data), "--n", "2", "--max-new-tokens", "4")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, "eval", *given, *more],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_smollm2_evaluates_on_gsm8k_from_gguf(tmp_path):
    model = os.environ.get("SPS_SMOLLM2")
    data = os.environ.get("SPS_DATA", Path(__file__).parents[3] / "shared" / "data")
    if not model or not Path(model).exists():
        pytest.skip("SPS_SMOLLM2 does not name a SmolLM2-135M-Instruct .gguf file")
    if not (Path(data) / "gsm8k_test.jsonl").exists():
        pytest.skip("SPS_DATA does not name a folder with gsm8k_test.jsonl")
    given = ["--bench", "gsm8k", "--n", 2, "--limit", 4, "--max-new-tokens", 128]
    found = run(model, tmp_path, *given, "--data-dir", data, "--template", "chat", "--cut", "judge")
    scores = found["benchmarks"]["gsm8k"]
    assert scores["questions"] == 4
    assert sum(scores["kinds"].values()) == 8
    assert set(scores["kinds"]) <= {"correct", "wrong", "unparsed", "truncated"}
    rows = pq.read_table(tmp_path / "gsm8k" / "samples.parquet").to_pylist()
    # A language model, not noise: its texts are words, and tokens have a likelihood above chance.
    assert all(len(row["text"].split()) > 10 for row in rows)
    assert -2.0 < scores["mean_logprob"] < 0.0  # chance is -log(49152) = -10.8


@pytest.mark.slow
def test_a_policy_from_gguf_can_be_saved_and_loaded_again(tmp_path):
    model = os.environ.get("SPS_SMOLLM2")
    if not model or not Path(model).exists():
        pytest.skip("SPS_SMOLLM2 does not name a SmolLM2-135M-Instruct .gguf file")
    policy = load_policy(model)
    save_checkpoint(tmp_path / "step-000001", policy, {"step": 1}, {})
    again = load_policy(str(tmp_path / "step-000001"))
    pairs = zip(policy.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert again.encode("12 boxes") == policy.encode("12 boxes")
