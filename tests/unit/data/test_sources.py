"""Several data sets in one recipe."""

import json
from collections import Counter

import pytest

from sps.config.load import parse_recipe
from sps.data.splits import read_questions, sources_of
from sps.errors import UserError


@pytest.fixture
def files(tmp_path):
    """Two files of 30 and 100 questions; the first of each is the same question."""

    def write(name, count, column):
        rows = [{column: f"{name} {i}?", "answer": i} for i in range(1, count)]
        rows.insert(0, {column: "the same?", "answer": 7})
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write("few", 30, "question"), write("many", 100, "what")


def read(files, *weights, **keys):
    columns = [{}, {"question": "what"}]
    sources = [
        {"data": data, "weight": weight, "columns": names}
        for data, weight, names in zip(files, weights, columns, strict=True)
    ]
    tree = {"type": "math", "sources": sources, "validation": 5, "test": 5, **keys}
    return read_questions(parse_recipe({"task": tree}, "r.yaml").task)


def counts(problems):
    return Counter(p.id.partition("/")[0] for p in problems)


def test_weights_are_shares_of_the_largest_mixture_without_repeats(files):
    # 30 and 99 questions once the repeated one is gone: 1 to 2 is 30 and 60.
    found = read(files, 1, 2)
    everything = [p for split in found.splits.values() for p in split]
    assert counts(everything) == {"few": 30, "many": 60}
    assert len({p.question for p in everything}) == 90
    assert [d.id for d in found.dropped] == ["many/many-000000"]
    # 3 to 1: the few are what there is too little of.
    assert counts(p for s in read(files, 3, 1).splits.values() for p in s) == {
        "few": 30,
        "many": 10,
    }


def test_a_mixture_is_the_same_every_time_and_another_with_another_seed(files):
    assert read(files, 1, 1).splits == read(files, 1, 1).splits
    assert read(files, 1, 1).splits != read(files, 1, 1, seed=1).splits


def test_faults_name_the_source(files, tmp_path):
    gone = (files[0], str(tmp_path / "gone.jsonl"))
    with pytest.raises(UserError, match=r"task\.sources: gone: there is no file"):
        read(gone, 1, 1)
    with pytest.raises(UserError, match=r"sources\.0\.weight: .*greater than 0"):
        read(files, 0, 1)
    with pytest.raises(UserError, match="give data for one data set, or sources"):
        read(files, 1, 1, data=files[0])
    with pytest.raises(UserError, match="columns: with sources, give it in the one"):
        read(files, 1, 1, columns={"id": "x"})


def test_two_files_of_one_name_are_told_apart(files, tmp_path):
    (tmp_path / "other").mkdir()
    same = tmp_path / "other" / "few.jsonl"
    same.write_text('{"what": "another?", "answer": 1}\n' * 1 + '{"what": "third?", "answer": 1}\n')
    (everything,) = [read((files[0], str(same)), 15, 1, validation=1, test=1).splits]
    assert set(counts(p for s in everything.values() for p in s)) == {"few-1", "few-2"}


def test_each_problem_knows_its_source(files):
    found = read(files, 1, 1)
    numbers = sources_of(found.config, found.splits["train"])
    assert numbers == [["few", "many"].index(p.id.partition("/")[0]) for p in found.splits["train"]]
    assert {*numbers} == {0, 1}
    tree = {"type": "math", "data": files[0], "validation": 5, "test": 5}
    alone = read_questions(parse_recipe({"task": tree}, "r.yaml").task)
    assert {*sources_of(alone.config, alone.splits["train"])} == {0}


def test_what_the_weights_leave_out_is_said(files):
    (found,) = [f for f in read(files, 1, 2).findings() if f.key == "sources"]
    assert found.rows == [["few", 30, 30], ["many", 60, 99]]
    assert "30 of 30 of few, 60 of 99 of many" in found.text
    assert not [f for f in read(files, 30, 99).findings() if f.key == "sources"]
