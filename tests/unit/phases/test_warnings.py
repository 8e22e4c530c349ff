"""What is said of a step, and from which number on."""

from __future__ import annotations

import pytest
import torch

from sps.errors import RunFailed
from sps.phases.warnings import check_gap, cut_off_warning, gap_warning, memory_warning


def test_a_gap_is_warned_of_above_the_limit():
    assert gap_warning({}, 0.0) == ""
    assert gap_warning({"engine_gap": 0.02}, 0.02) == ""
    assert "0.0201 nats a token" in gap_warning({"engine_gap": 0.0201}, 0.02)


@pytest.mark.parametrize(
    ("limit", "dtype", "most"),
    [(None, torch.float32, 0.05), (None, torch.bfloat16, 0.3), (0.7, torch.float32, 0.7)],
)
def test_a_gap_ends_the_run_above_what_rounding_explains(limit, dtype, most):
    check_gap({}, limit, dtype)
    check_gap({"engine_gap": most}, limit, dtype)
    with pytest.raises(RunFailed, match=f"cannot explain more than {most:g}"):
        check_gap({"engine_gap": most + 1e-6}, limit, dtype)


def test_memory_that_ran_out_says_what_is_smaller_now():
    assert memory_warning({}, 512) == memory_warning({"out_of_memory": 0}, 512) == ""
    passes, rows = "passes are now of 512 tokens", "64 sequences are drawn at once now"
    assert memory_warning({"out_of_memory": 1}, 512) == f"memory ran out; {passes}"
    assert memory_warning({"rows_at_once": 64}, 512) == f"memory ran out; {rows}"
    both = {"rows_at_once": 64, "out_of_memory": 2}
    assert memory_warning(both, 512) == f"memory ran out; {rows}, {passes}"


def test_texts_without_an_end_are_warned_of_above_a_twentieth():
    assert cut_off_warning({}, 9) == cut_off_warning({"kept_cut_off": 0.05}, 9) == ""
    assert cut_off_warning({"kept_cut_off": 0.06}, 9).startswith("6% of the rollouts")
