"""The evaluation store and what is counted from it."""

from __future__ import annotations

import json
import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sps.errors import UserError
from sps.evaluation.scores import count_scores, load_scores, read_scores
from sps.ranks import Ranks
from sps.store import evals
from sps.store.evals import EvalStore


def row(problem: str, sample: int, verdict: str = "wrong") -> dict:
    return {
        "problem_id": problem,
        "sample": sample,
        "text": "1 + 1",
        "length": 4,
        "finished": True,
        "sum_logprob": -2.0,
        "verdict": verdict,
        "detail": verdict,
        "answer": "2",
    }


def test_eval_store_reads_back_what_it_flushed(tmp_path):
    store = EvalStore(tmp_path)
    store.append(row("a", 0))
    assert store.read() == []
    store.flush()
    again = EvalStore(tmp_path)  # a new process goes on in a new part
    again.append(row("a", 1, "correct"))
    again.flush()
    assert again.read() == [row("a", 0), row("a", 1, "correct")]
    assert len(list(tmp_path.glob("part-*.parquet"))) == 2


def parts(folder):
    return sorted(path.name for path in folder.glob("*"))


def test_eval_store_writes_a_part_when_it_is_full_or_old(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(evals.time, "monotonic", lambda: now)
    monkeypatch.setattr(evals, "_ROWS", 3)
    store = EvalStore(tmp_path)
    for sample in range(2):
        store.append(row("a", sample))
    assert parts(tmp_path) == []
    store.append(row("a", 2))
    assert parts(tmp_path) == ["part-00000.parquet"]
    now = 102.0  # the part is two seconds old, which is not yet old
    store.append(row("a", 3))
    assert len(parts(tmp_path)) == 1
    now = 102.1
    store.append(row("a", 4))
    store.append(row("a", 5))  # the clock starts again
    assert parts(tmp_path) == ["part-00000.parquet", "part-00001.parquet"]
    store.flush()
    assert [r["sample"] for r in store.read()] == [0, 1, 2, 3, 4, 5]
    store.flush()  # nothing waits: nothing is written
    assert len(parts(tmp_path)) == 3


def test_eval_store_of_a_rank_numbers_its_parts_apart(tmp_path):
    second = Ranks()
    second.rank, second.size = 1, 3
    store = EvalStore(tmp_path / "new" / "folder", second)
    for sample in range(2):
        store.append(row("a", sample))
        store.flush()
    assert parts(store.folder) == ["part-00001.parquet", "part-00004.parquet"]
    again = EvalStore(store.folder, second)  # 4 was the last, so the next round of three
    again.append(row("a", 2))
    again.flush()
    assert parts(store.folder)[-1] == "part-00007.parquet"


def test_eval_store_replaces_all_parts_by_one_file_in_order(tmp_path):
    store = EvalStore(tmp_path)
    for name, sample in [("b", 0), ("a", 1), ("a", 0)]:
        store.append(row(name, sample))
        store.flush()
    store.append(row("c", 0))  # waits, and is in nobody's place
    store.replace([r | {"verdict": "correct"} for r in store.read()])
    assert parts(tmp_path) == ["samples.parquet"]
    assert [(r["problem_id"], r["sample"]) for r in store.read()] == [("a", 0), ("a", 1), ("b", 0)]
    store.append(row("a", 2))
    store.append(row("a", 0))  # known already: what is joined counts
    store.flush()
    assert parts(tmp_path) == ["part-00000.parquet", "samples.parquet"]
    assert [r["verdict"] for r in store.read()] == ["correct"] * 3 + ["wrong"]


def test_samples_are_on_the_disk_as_one_file_before_their_parts_go(tmp_path, disk_calls):
    store = EvalStore(tmp_path / "evals")
    for sample in range(2):
        store.append(row("a", sample))
        store.flush()
    assert disk_calls == []  # a part waits for no disk
    store.replace(store.read())
    assert disk_calls == [
        "sync samples.draft",
        "sync evals",
        "drop part-00000.parquet",
        "drop part-00001.parquet",
    ]


def test_scores_by_hand():
    rows = [row("a", s, "correct" if s < 1 else "wrong") for s in range(4)]
    rows += [row("b", s, "unparsed") for s in range(4)]
    scores = count_scores(["a", "b"], 4, rows, greedy=-3.5)
    assert scores.correct_Q.tolist() == [1, 0]
    # Pass@2 of a: 1 - C(3,2)/C(4,2) = 1/2; of b: 0.
    assert scores.per_question(2).tolist() == pytest.approx([0.5, 0.0])
    assert scores.pass_at_k(4)[0] == pytest.approx(0.5)
    assert scores.report_ks() == [1, 2, 4]
    assert scores.kinds == {"correct": 1, "wrong": 3, "unparsed": 4}
    assert scores.mean_logprob == pytest.approx(-0.5)  # 8 samples of -2 over 32 tokens
    assert scores.mean_length == 4


def test_scores_survive_their_summary():
    rows = [row("a", s, "correct") for s in range(3)]
    scores = count_scores(["a", "b"], 3, rows, greedy=-3.5)
    again = read_scores(scores.summary())
    assert again.summary() == scores.summary()
    assert np.array_equal(again.correct_Q, scores.correct_Q)
    assert again.report_ks() == [1, 2, 3]


def test_stray_files_among_the_samples_are_ignored_and_said(tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(logging.getLogger("sps"), "warning", said.append)
    store = EvalStore(tmp_path)
    store.append(row("a", 0))
    store.flush()
    for name in ("part-a.parquet", "part-1.parquet", "notes.parquet"):
        (tmp_path / name).write_bytes(b"?")
    (tmp_path / "part-00007.parquet").mkdir()
    again = EvalStore(tmp_path)
    again.append(row("a", 1))
    again.flush()
    assert again.read() == [row("a", 0), row("a", 1)]
    assert said == [
        f"{tmp_path}: notes.parquet, part-00007.parquet, part-1.parquet: no samples of the "
        "evaluation; ignored"
    ]


@pytest.mark.parametrize("damage", [b"", b"PAR1", slice(-30), "columns"])
def test_damaged_samples_are_one_sentence_with_the_fix(tmp_path, damage):
    store = EvalStore(tmp_path)
    store.append(row("a", 0))
    store.flush()
    path = tmp_path / "part-00000.parquet"
    if damage == "columns":
        pq.write_table(pa.table({"problem_id": ["a"], "sample": [0]}), path)
    else:
        path.write_bytes(path.read_bytes()[damage] if isinstance(damage, slice) else damage)
    with pytest.raises(UserError, match=r"part-00000\.parquet: the samples cannot .* drawn again$"):
        EvalStore(tmp_path).read()


def test_damaged_scores_are_one_sentence_with_the_fix(tmp_path):
    whole = count_scores(["a"], 2, [row("a", 0), row("a", 1, "correct")], None).summary()
    path = tmp_path / "test.json"
    path.write_text(json.dumps(whole))
    assert load_scores(path).summary() == whole
    wrong = [{"n": 0}, {"n": "x"}, {"n": 10**12}, {"per_question": {"a": 3}}, {"kinds": None}]
    wrong += [
        {"per_question": {}},
        {"per_question": [1]},
        {"per_question": {"a": None}},
        {"mean_logprob": {}},
    ]
    texts = ["{", "[]", "[" * 100_000, json.dumps(whole)[:-9]]
    for text in [*texts, *(json.dumps(whole | part) for part in wrong)]:
        path.write_text(text)
        with pytest.raises(UserError, match=r"test\.json cannot be read .* made again"):
            load_scores(path)
