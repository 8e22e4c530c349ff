"""Memory that runs out while drawing: nothing is lost, and nothing is drawn twice."""

import numpy as np
import pytest
import torch

from sps.errors import RunFailed
from sps.rollout import retry as again
from sps.rollout.retry import draw_all
from sps.types import Completion, Request, Sampling

REQUESTS = [Request(i, (1, 2), (0, 1, 2)) for i in range(3)]


class Engine:
    """Runs out of memory in the middle of a draw while it has more than `fits` rows at once."""

    def __init__(self, fits):
        self.max_rows, self.fits, self.shrunk = 64, fits, 0

    def draw(self, requests, sampling):
        rows = [(r.index, s) for r in requests for s in r.samples]
        for number, (index, sample) in enumerate(rows):
            if self.max_rows > self.fits and number == 2:
                raise torch.OutOfMemoryError
            yield Completion(index, sample, np.array([5]), np.array([-1.0]), True)

    def shrink(self):
        self.shrunk += 1


def test_what_was_drawn_is_kept_and_the_rest_is_drawn_with_fewer_rows(monkeypatch):
    engine, said = Engine(fits=16), []
    monkeypatch.setattr(again._LOG, "warning", lambda text, rows: said.append(text % rows))
    done = list(draw_all(engine, REQUESTS, Sampling(3, 1)))
    assert [(c.index, c.sample) for c in done] == [(i, s) for i in range(3) for s in range(3)]
    assert (engine.max_rows, engine.shrunk) == (16, 2)
    assert said == [f"memory ran out; {rows} sequences are drawn at once now" for rows in (32, 16)]


def test_one_sequence_that_does_not_fit_is_a_failed_run(monkeypatch):
    monkeypatch.setattr(again, "held_by_others", lambda: " Others hold 9 GiB.")
    many = [Request(0, (1,), tuple(range(100)))]
    with pytest.raises(RunFailed, match=r"not even one sequence fits.*\. Others hold 9 GiB\.$"):
        list(draw_all(Engine(fits=0), many, Sampling(100, 1)))
