"""How a batch is cut into passes: within the budget, with little padding, alike on all ranks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sps.policy.logprobs import micro_batches, part_sizes
from sps.ranks import Ranks


def test_micro_batches_stay_within_the_budget(ragged, policy):
    parts = list(micro_batches(*ragged, policy.pad_id, budget=24))
    # Lengths 8, 8, 11, 10, 4, 11: 2 rows of 11, then 10 alone, for 8, 8 and 4 fit into 24. Full
    # parts from the longest on (11, 11; 10, 8; 8, 4) would be 58 padded tokens, these are 56.
    assert [p.which_B.tolist() for p in parts] == [[2, 5], [3], [0, 1, 4]]
    assert [p.ids_BL.numel() for p in parts] == [22, 10, 24]


def test_a_part_is_split_where_the_first_rows_of_the_batch_end(ragged, policy):
    (rows,) = micro_batches(*ragged, policy.pad_id, budget=1000)
    prompts, completions = ragged
    for first in range(7):
        own, others = rows.split(first)
        assert own.which_B.tolist() == [*range(first)]
        assert others.which_B.tolist() == [*range(6 - first)]  # counted anew
        for part, texts in ((own, completions[:first]), (others, completions[first:])):
            assert part.length_B.tolist() == part.mask_BT.sum(-1).tolist() == [*map(len, texts)]
            assert part.target_N.tolist() == [token for text in texts for token in text]
            row_N, column_N = part.place
            before = [
                token
                for prompt, text in zip(
                    prompts[:first] if part is own else prompts[first:], texts, strict=True
                )
                for token in [prompt[-1], *text[:-1]]
            ]
            assert part.ids_BL[row_N, column_N].tolist() == before


def test_a_row_longer_than_the_budget_still_comes(ragged, policy):
    parts = list(micro_batches(*ragged, policy.pad_id, budget=1))
    assert [len(p.which_B) for p in parts] == [1] * 6


def cuts(count):
    """Every way to cut rows in order into parts."""
    if count == 0:
        yield []
    for size in range(1, count + 1):
        yield from ([size, *rest] for rest in cuts(count - size))


def widths(lengths, sizes):
    """Padded tokens of each part."""
    starts = np.cumsum([0, *sizes[:-1]])
    return [size * lengths[at] for at, size in zip(starts, sizes, strict=True)]


def within(lengths, sizes, budget):
    """Whether each part fits into the budget, or is one row."""
    parts = zip(widths(lengths, sizes), sizes, strict=True)
    return all(tokens <= budget or size == 1 for tokens, size in parts)


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=9),
    budget=st.integers(1, 200),
    cost=st.integers(0, 60),
)
def test_parts_cost_as_little_as_the_best_of_all_cuts(lengths, budget, cost):
    lengths = sorted(lengths, reverse=True)
    found = part_sizes(np.array(lengths), budget, cost)
    assert sum(found) == len(lengths)
    assert within(lengths, found, budget)
    if len(lengths) * lengths[0] <= budget:
        assert found == [len(lengths)]
        return
    every = [sizes for sizes in cuts(len(lengths)) if within(lengths, sizes, budget)]
    prices = [sum(widths(lengths, sizes)) + cost * len(sizes) for sizes in every]
    assert sum(widths(lengths, found)) + cost * len(found) == min(prices)


@given(
    lengths=st.lists(st.integers(2, 3000), min_size=1, max_size=60),
    budget=st.integers(1, 20000),
    size=st.integers(1, 4),
    sharded=st.booleans(),
)
def test_every_row_comes_once_on_one_rank_and_parts_are_alike_on_all(
    lengths, budget, size, sharded
):
    texts = of_lengths(lengths)
    parts = [list(micro_batches(*texts, 0, budget, ranks=r)) for r in ranks_of(size, sharded)]
    seen = [i for own in parts for rows in own for i in rows.which_B.tolist()]
    assert sorted(seen) == list(range(len(lengths)))
    for own in parts:
        assert all(r.ids_BL.numel() <= budget or len(r.which_B) == 1 for r in own)
        # A rank may have a row less than the first, and no last part for want of it.
        assert len(parts[0]) - 1 <= len(own) <= len(parts[0])
        for rows, firsts in zip(own, parts[0], strict=False):
            assert rows.ids_BL.shape[1] <= firsts.ids_BL.shape[1]
            assert len(firsts.which_B) - 1 <= len(rows.which_B) <= len(firsts.which_B)


def test_parts_of_equal_rows_are_full_and_the_last_has_the_rest():
    assert part_sizes(np.full(7, 10), 39) == [3, 3, 1]
    assert part_sizes(np.full(4, 10), 40) == [4]
    assert part_sizes(np.array([], dtype=np.int64), 40) == []
    assert list(micro_batches([], [], 0, 40)) == []


def test_rows_that_just_fit_are_one_part_whatever_that_pads():
    assert part_sizes(np.array([10, 1, 1, 1]), 40, cost=0) == [4]
    assert part_sizes(np.array([10, 1, 1, 1]), 39, cost=0) == [1, 3]


def test_a_part_more_is_made_where_it_saves_more_than_it_costs():
    # The best two parts are 6000 | 4000, 4000, 2000: 18000 padded tokens. 2000 in a third saves
    # 2000 of them: more than the 1024 of a pass, less than the 4096 where weights are gathered.
    texts = of_lengths([4000, 2000, 6000, 4000])
    (whole,), (sharded,) = ranks_of(1, False), ranks_of(1, True)
    sizes = [
        [len(rows.which_B) for rows in micro_batches(*texts, 0, 12000, ranks=ranks)]
        for ranks in (whole, sharded)
    ]
    assert sizes == [[1, 2, 1], [1, 3]]


def test_ranks_cut_where_the_first_does():
    # Every third row from the longest on: 40, 20, 20, 10 and 30, 20, 20, 10 and 20, 20, 10. The
    # first are 40 | 20, 20 | 10; the third rank by itself would have 20, 20 | 10.
    texts = of_lengths([10, 20, 40, 20, 30, 20, 20, 10, 20, 10, 20])
    shapes = [
        [tuple(rows.ids_BL.shape) for rows in micro_batches(*texts, 0, 40, ranks=ranks)]
        for ranks in ranks_of(3, False)
    ]
    assert shapes == [
        [(1, 40), (2, 20), (1, 10)],
        [(1, 30), (2, 20), (1, 10)],
        [(1, 20), (2, 20)],
    ]


def of_lengths(lengths):
    """Prompts of one token, and completions of the rest."""
    return [np.array([1])] * len(lengths), [np.ones(n - 1, dtype=np.int64) for n in lengths]


def ranks_of(size, sharded):
    """All ranks of a job."""
    for rank in range(size):
        one = Ranks()
        one.rank, one.size, one.sharded = rank, size, sharded
        yield one
