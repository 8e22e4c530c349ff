"""Nested subsets, hold-outs, and questions that leak."""

import pytest

from sps.data.overlap import find_overlaps, held_out_summary, summary
from sps.data.subset import hold_out
from sps.errors import UserError
from sps.types import Problem

MANY = [Problem(f"p{i}", f"question {i}", str(i)) for i in range(46_000)]


def subset(size, seed):
    return hold_out(MANY, {}, size, seed)["train"]


def ids(problems):
    return {p.id for p in problems}


def test_subsets_of_a_seed_are_nested_and_reproducible():
    small, middle, large = (subset(n, seed=1) for n in (3000, 5000, 10_000))
    assert (len(small), len(middle), len(large)) == (3000, 5000, 10_000)
    assert ids(small) < ids(middle) < ids(large)
    assert subset(3000, seed=1) == small
    # Two subsets of 3000 of 46000 share 3000 * 3000 / 46000 = 196 on average, sd about 13.
    assert 130 < len(ids(small) & ids(subset(3000, seed=2))) < 262


def test_subsets_are_uniform():
    # Of 10000 draws over ten equal tenths each holds 1000, sd 27 (hypergeometric).
    tenths = [0] * 10
    for problem in subset(10_000, seed=5):
        tenths[int(problem.id[1:]) // 4600] += 1
    assert all(880 < n < 1120 for n in tenths)


def test_hold_outs_are_disjoint_and_the_same_for_every_subset():
    sizes = {"validation": 100, "test": 50}
    a, b = (hold_out(MANY, sizes, n, seed=0) for n in (3000, 5000))
    assert ids(a["validation"]) == ids(b["validation"])
    assert ids(a["train"]) < ids(b["train"])
    assert not ids(b["train"]) & (ids(b["validation"]) | ids(b["test"]))
    everything = hold_out(MANY, sizes, None, seed=0)
    assert sum(map(len, everything.values())) == 46_000


def test_asking_for_too_many_is_an_error():
    with pytest.raises(UserError, match="46000 problems: too few"):
        subset(50_000, seed=0)
    with pytest.raises(UserError, match="too few"):
        hold_out(MANY[:100], {"validation": 90}, 20, seed=0)


TEXT = "Find the number of ordered pairs of positive integers a and b such that a times b is 2024"


def test_exact_and_near_duplicates_are_found():
    bench = {"aime24": [Problem("aime24/1", TEXT, "16"), Problem("aime24/2", "What is 2?", "2")]}
    train = [
        Problem("same", TEXT.upper().replace(" ", "  ") + ".", "16"),
        Problem("near", TEXT.replace("2024", "2025, and then tell their sum"), "9"),
        Problem("other", "Find the number of ordered pairs of cats and dogs that sing", "1"),
        Problem("short", "What is 3?", "3"),
    ]
    found = find_overlaps(train, bench)
    assert [(o.train_id, o.test_id, o.kind) for o in found] == [
        ("same", "aime24/1", "exact"),
        ("near", "aime24/1", "near"),
    ]
    # 19 words make 12 runs of 8; changing the last word spoils one of them: 11 of 12 are shared.
    assert found[1].share == pytest.approx(11 / 12)
    assert "2 training questions occur in benchmarks (aime24: 1 exact; aime24: 1 near)" in summary(
        found, bench
    )
    assert summary([], bench) == "no training question occurs in aime24"


def test_questions_of_one_form_are_counted_once_and_named_in_one_order():
    def rows(*numbers):
        return [Problem(f"r{n:02}", TEXT.replace("2024", str(n)), "") for n in numbers]

    found = find_overlaps(rows(*range(4)), {"test": rows(*range(10, 30))})
    assert len(found) == 4 * 20
    assert [o.test_id for o in found] == [f"r{n}" for n in range(10, 30)] * 4
    text = held_out_summary(found)
    assert text.startswith(
        "4 training and validation questions are nearly the same as held-out ones (test: 20 near), "
        "such as r00 and r10, r00 and r11, r00 and r12, r00 and r13, r00 and r14: "
    )
    assert text.endswith("task.overlap: off looks for none")
