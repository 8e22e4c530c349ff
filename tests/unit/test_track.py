"""The record of a run."""

from __future__ import annotations

import json

from sps.run.track import Track, read_records


def test_records_are_written_in_order_and_handed_to_listeners(tmp_path):
    heard = []
    track = Track(tmp_path / "metrics.jsonl", [heard.append])
    track.log("rl", 1, loss=0.5)
    track.log("eval", 2, name="validation")
    records = read_records(tmp_path / "metrics.jsonl")
    assert records == heard
    assert [(r["kind"], r["step"]) for r in records] == [("rl", 1), ("eval", 2)]
    assert records[0]["loss"] == 0.5
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == records


def test_forget_after_drops_later_steps_only(tmp_path):
    track = Track(tmp_path / "metrics.jsonl")
    for step in (1, 2, 2, 3, 4):
        track.log("rl", step)
    track.forget_after(2)
    track.log("rl", 3, again=True)
    records = read_records(track.path)
    assert [r["step"] for r in records] == [1, 2, 2, 3]
    assert records[-1]["again"] is True


def test_a_line_cut_short_is_left_out(tmp_path):
    track = Track(tmp_path / "metrics.jsonl")
    track.log("rl", 1)
    with track.path.open("ab") as file:
        file.write(b'{"kind": "rl", "st\xe2')
    assert [r["step"] for r in read_records(track.path)] == [1]
    track.forget_after(1)
    track.log("rl", 2)
    assert [r["step"] for r in read_records(track.path)] == [1, 2]


def test_no_file_is_no_records(tmp_path):
    assert read_records(tmp_path / "absent.jsonl") == []


def test_lines_that_are_no_records_are_left_out(tmp_path):
    good = '{"kind": "rl", "step": 1}'
    bad = ["3", "null", "[]", '{"kind": "rl"}', '{"step": 1}', '{"kind": 1, "step": 1}', "",
           '{"kind": "rl", "step": "1"}', '{"kind": "rl", "step": true}', "[" * 100_000,
           '{"kind": "rl", "step": ' + "1" * 5000 + "}", "\x00", "\u2028",
           '{"kind": "rl", "step": -1}', '{"kind": "rl", "step": 1000000000}']  # fmt: skip
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join([good, *bad, good]) + "\n", encoding="utf-8")
    assert read_records(path) == [{"kind": "rl", "step": 1}] * 2
    assert read_records(tmp_path) == []
