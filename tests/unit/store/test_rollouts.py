"""The rollout store: nothing lost, nothing twice, readable by anyone."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sps.errors import UserError
from sps.store.rollouts import SCHEMA, RolloutStore, to_arrays
from sps.types import Rollout, Verdict


def rollouts(step: int, groups: int = 2, samples: int = 3) -> list[Rollout]:
    """Sample s of group g: tokens [g, s, step], each of log-probability -(10 g + s + step / 10)."""
    return [
        Rollout(
            problem_id=f"p{group}",
            prompt_ids=np.array([7, 8], dtype=np.int32),
            ids=np.array([group, sample, step][: 3 - sample % 2], dtype=np.int32),
            logprobs=np.full(3 - sample % 2, -(10 * group + sample + step / 10), dtype=np.float32),
            reward=float(sample == 0),
            verdict=Verdict("correct", 1.0, "correct", "9")
            if sample == 0
            else Verdict("wrong", 0.0, "wrong_target", "8"),
            step=step,
            policy_version=step - 1,
            group=group,
            sample=sample,
            finished=sample != 2,
        )
        for group in range(groups)
        for sample in range(samples)
    ]


def keys(table) -> list[tuple[int, int, int]]:
    columns = (table[c].to_pylist() for c in ("step", "group", "sample"))
    return sorted(zip(*columns, strict=True))


def all_keys(*steps: int) -> list[tuple[int, int, int]]:
    return [(step, group, sample) for step in steps for group in range(2) for sample in range(3)]


@pytest.fixture
def store(tmp_path):
    store = RolloutStore(tmp_path / "rollouts")
    for step in (1, 2, 3, 4):
        store.append(step, rollouts(step))
    return store


def test_what_was_appended_is_read_back(store):
    row = next(
        r for r in store.read().to_pylist() if (r["step"], r["group"], r["sample"]) == (2, 1, 1)
    )
    assert row["problem_id"] == "p1"
    assert row["policy_version"] == 1
    assert row["prompt_ids"] == [7, 8]
    assert row["ids"] == [1, 1]
    assert row["logprobs"] == pytest.approx([-11.2, -11.2], rel=1e-6)
    assert row["mean_logprob"] == pytest.approx(-11.2, rel=1e-6)
    assert row["sum_logprob"] == pytest.approx(-22.4, rel=1e-6)
    assert (row["length"], row["finished"], row["reward"]) == (2, True, 0.0)
    assert (row["verdict"], row["detail"], row["answer"]) == ("wrong", "wrong_target", "8")
    assert row["kept"] is False


def test_steps_are_read_by_range(store):
    assert keys(store.read(2, 3)) == all_keys(2, 3)
    assert keys(store.read()) == all_keys(1, 2, 3, 4)
    assert keys(store.light(4, 9)) == all_keys(4)
    assert keys(store.light(2, 3)) == all_keys(2, 3)
    assert "ids" not in store.light(1, 4).column_names


def test_appending_a_step_again_replaces_it(store):
    store.append(4, rollouts(4, groups=1))
    assert keys(store.read(4, 4)) == [(4, 0, 0), (4, 0, 1), (4, 0, 2)]


def test_close_phase_merges_marks_and_orders_by_likelihood(store):
    kept = {(1, 0, 2), (2, 1, 0)}
    store.close_phase(1, 2, kept)
    assert keys(store.read()) == all_keys(1, 2, 3, 4)
    table = store.read(1, 2)
    assert keys(table.filter(table["kept"])) == sorted(kept)
    assert sorted(p.name for p in store.folder.iterdir()) == [
        "phase-000001-000002.parquet",
        "step-000003.parquet",
        "step-000004.parquet",
    ]
    likelihood = pq.read_table(store.folder / "phase-000001-000002.parquet")["mean_logprob"]
    assert likelihood.to_pylist() == sorted(likelihood.to_pylist())


def test_read_below_a_likelihood(store):
    store.close_phase(1, 2, set())
    # Group 1 is at -10 and lower, group 0 at -2.4 and higher.
    assert keys(store.read(where=pc.field("mean_logprob") < -9.0)) == [
        k for k in all_keys(1, 2, 3, 4) if k[1] == 1
    ]
    assert len(store.read(where=pc.field("mean_logprob") < -100.0)) == 0
    store.append(5, rollouts(5, groups=1))  # at -0.5, -1.5 and -2.5, which float32 holds exactly
    assert [
        r["mean_logprob"]
        for r in store.read(5, 5, where=pc.field("mean_logprob") < -1.5).to_pylist()
    ] == [-2.5]


def test_read_below_a_likelihood_skips_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("sps.store.rollouts._ROW_GROUP", 6)
    store = RolloutStore(tmp_path / "rollouts")
    store.append(1, rollouts(1, groups=6))
    store.close_phase(1, 1, set())
    file = pq.ParquetFile(store.folder / "phase-000001-000001.parquet")
    column = file.schema_arrow.get_field_index("mean_logprob")
    spans = [file.metadata.row_group(i).column(column).statistics for i in range(3)]
    # 18 rows ordered by likelihood, 6 a row group: spans do not overlap, so a reader that wants
    # the least likely third looks at one of them.
    assert [file.metadata.row_group(i).num_rows for i in range(3)] == [6, 6, 6]
    assert spans[0].max < spans[1].min <= spans[1].max < spans[2].min


def test_a_phase_is_merged_of_what_lies_within_it(store):
    store.close_phase(1, 2, set())
    store.close_phase(2, 3, set())  # the first phase began before, and stays
    assert sorted(p.name for p in store.folder.iterdir()) == [
        "phase-000001-000002.parquet",
        "phase-000002-000003.parquet",
        "step-000004.parquet",
    ]


def test_files_have_the_types_that_are_promised_also_without_a_rollout(tmp_path):
    store = RolloutStore(tmp_path / "a" / "new" / "folder")
    store.append(1, rollouts(1))
    store.append(2, [])
    again = RolloutStore(store.folder)  # which is there already
    for path in again.folder.iterdir():
        assert pq.read_schema(path).equals(SCHEMA)
    assert keys(again.read()) == all_keys(1)
    assert keys(again.read(2, 2)) == []


def test_a_merge_that_was_cut_short_shows_nothing_twice(store):
    before = {p.name: p.read_bytes() for p in store.folder.glob("step-*.parquet")}
    store.close_phase(1, 3, {(1, 0, 0)})
    for (
        name,
        content,
    ) in before.items():  # killed after the merged file was there, before the rest went
        (store.folder / name).write_bytes(content)
    assert keys(store.read()) == all_keys(1, 2, 3, 4)
    store.close_phase(1, 3, {(2, 0, 0)})  # and the resumed run merges again
    assert keys(store.read()) == all_keys(1, 2, 3, 4)
    table = store.read()
    assert keys(table.filter(table["kept"])) == [(2, 0, 0)]


def test_what_replaces_others_is_on_the_disk_before_they_go(store, disk_calls):
    store.append(5, rollouts(5))
    assert disk_calls == []  # a step waits for no disk
    store.close_phase(1, 3, set())
    assert disk_calls[:2] == ["sync phase-000001-000003.draft", "sync rollouts"]
    assert sorted(disk_calls[2:]) == [f"drop step-00000{step}.parquet" for step in (1, 2, 3)]
    disk_calls.clear()
    store.forget_after(2)
    own = [call for call in disk_calls if "step" not in call]
    assert own[:2] == ["sync phase-000001-000002.draft", "sync rollouts"]
    assert own[2:] == ["drop phase-000001-000003.parquet"]


def test_a_half_written_file_is_not_read(store):
    (store.folder / "step-000005.draft").write_bytes(b"PAR1 half")
    assert keys(store.read()) == all_keys(1, 2, 3, 4)


def test_forget_after_drops_later_steps(store):
    store.forget_after(2)
    assert keys(store.read()) == all_keys(1, 2)
    store.append(3, rollouts(3))
    assert keys(store.read()) == all_keys(1, 2, 3)


def test_forget_after_cuts_back_a_closed_phase(store):
    store.close_phase(1, 3, {(1, 0, 0)})
    store.forget_after(2)
    assert keys(store.read()) == all_keys(1, 2)


def test_a_phase_closed_again_after_a_cut_shows_nothing_twice(store):
    # Checkpoint at 2, phase 1-3 closed, killed; resumed at 2, 3 drawn again, phase closed again.
    store.close_phase(1, 3, {(1, 0, 0)})
    store.forget_after(2)
    store.append(3, rollouts(3))
    store.close_phase(1, 3, {(3, 0, 0)})
    assert keys(store.read()) == all_keys(1, 2, 3)
    table = store.read()
    assert keys(table.filter(table["kept"])) == [(3, 0, 0)]
    store.append(4, rollouts(4))
    store.close_phase(4, 4, set())
    assert keys(store.read()) == all_keys(1, 2, 3, 4)


def test_a_cut_that_was_cut_short_shows_nothing_twice(store):
    store.close_phase(1, 3, set())
    whole = (store.folder / "phase-000001-000003.parquet").read_bytes()
    store.forget_after(2)
    (store.folder / "phase-000001-000003.parquet").write_bytes(whole)  # killed before it went
    assert keys(store.read()) == all_keys(1, 2, 3)
    store.forget_after(2)
    assert keys(store.read()) == all_keys(1, 2)


def test_any_parquet_tool_reads_it(store):
    store.close_phase(1, 2, {(1, 1, 1)})
    rows = [r for path in store.folder.glob("*.parquet") for r in pq.read_table(path).to_pylist()]
    assert len(rows) == 24
    assert {r["verdict"] for r in rows} == {"correct", "wrong"}
    assert sum(r["kept"] for r in rows) == 1


def test_empty_store_reads_as_an_empty_table(tmp_path):
    store = RolloutStore(tmp_path / "new")
    assert len(store.read()) == 0
    assert store.light(1, 5).column_names[0] == "step"
    assert "ids" not in store.light(1, 5).column_names
    store.close_phase(1, 5, set())
    assert not list(store.folder.iterdir())


def test_to_arrays_keeps_rows_apart(store):
    table = store.read(1, 2)
    for part in (table, table.slice(3, 5), table.filter(table["finished"])):
        arrays = [a.tolist() for a in to_arrays(part, "ids")]
        assert arrays == part["ids"].to_pylist()


@pytest.fixture
def said(monkeypatch) -> list[str]:
    """What the store says, however others have set up logging."""
    heard: list[str] = []
    monkeypatch.setattr(logging.getLogger("sps"), "warning", heard.append)
    return heard


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"\x07" * 999),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "magic alone": lambda path: path.write_bytes(b"PAR1"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_matters_only_to_those_who_need_it(store, said, damage):
    store.close_phase(1, 2, set())
    damage(store.folder / "phase-000001-000002.parquet")
    assert keys(store.read(3, 4)) == keys(store.light(3, 9)) == all_keys(3, 4)
    store.close_phase(3, 4, {(3, 0, 0)})
    again = RolloutStore(store.folder)
    assert len(said) == 1
    assert said[0].endswith(
        "phase-000001-000002.parquet is damaged; skipped as long as its steps are not needed"
    )
    with pytest.raises(UserError, match=r"phase-000001-000002\.parquet: .* step 1 to 2 are needed"):
        again.read(2, 3)


def test_a_file_without_the_columns_of_the_store_is_not_filled_up(store):
    path = store.folder / "step-000002.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["reward"]), path)
    with pytest.raises(UserError, match=r"step-000002\.parquet: the rollouts of step 2 are needed"):
        store.light(1, 4)


def test_a_flipped_bit_is_no_other_number(store):
    path = store.folder / "step-000002.parquet"
    whole = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(0).column(8)
    assert column.path_in_schema == "mean_logprob"
    end = column.data_page_offset + column.total_compressed_size
    whole[end - 2] ^= 16  # of the last value
    path.write_bytes(whole)
    with pytest.raises(UserError, match=r"step-000002\.parquet: .* cannot be read"):
        store.light(1, 4)


def test_a_phase_opens_its_own_files_alone(store, monkeypatch):
    store.close_phase(1, 2, set())
    opened, read = [], pq.read_table
    spy = lambda path, **how: [opened.append(path.name), read(path, **how)][1]  # noqa: E731
    monkeypatch.setattr("sps.store.rollouts.pq.read_table", spy)
    store.light(3, 3)
    store.read(1, 2)
    assert opened == ["step-000003.parquet", "phase-000001-000002.parquet"]


def test_stray_files_are_ignored_and_said(store, said):
    for name in ("notes.parquet", "step-7.parquet", "phase-000009-000003.parquet"):
        pq.write_table(pa.table({"a": [1]}), store.folder / name)
    (store.folder / "step-000008.parquet").mkdir()
    again = RolloutStore(store.folder)
    assert keys(again.read()) == all_keys(1, 2, 3, 4)
    again.close_phase(1, 4, set())
    again.forget_after(0)
    assert sorted(p.name for p in store.folder.iterdir()) == [
        "notes.parquet",
        "phase-000009-000003.parquet",
        "step-000008.parquet",
        "step-7.parquet",
    ]
    assert said == [
        f"{store.folder}: notes.parquet, phase-000009-000003.parquet, step-000008.parquet and "
        "1 more: not a file of the rollout store; ignored"
    ]
