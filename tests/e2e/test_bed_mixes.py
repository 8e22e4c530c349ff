"""Mixes of a bed lie between the base and the end of the run, at their shares."""

from __future__ import annotations

import pytest
import torch
from small_runs import recipe_of, run

from bench import bed_mixes
from sps.build import make_policy

pytestmark = pytest.mark.usefixtures("one_cache")


def weights(policy):
    return torch.cat([w.detach().double().flatten() for w in policy.model.parameters()])


def test_mixes_are_as_far_from_the_base_as_their_share(tmp_path, monkeypatch):
    recipe = recipe_of()
    run(recipe, tmp_path / "run")
    steps = recipe.rl.steps
    base = weights(make_policy(recipe))
    last = weights(make_policy(recipe, str(tmp_path / "run" / "checkpoints" / f"step-{steps:06d}")))

    class Scores:
        def __init__(self, policy):
            self.mixed = weights(policy)

        def summary(self):
            return {"share": float((self.mixed - base).norm() / (last - base).norm())}

    monkeypatch.setattr(bed_mixes, "evaluate", lambda policy, engine, job: Scores(policy))
    found = bed_mixes.mixes(tmp_path / "run")
    assert list(found) == [1, 2, 3, 4, 5]  # of 6 steps
    for share, told in zip(bed_mixes.SHARES, found.values(), strict=True):
        assert told["share"] == pytest.approx(share, rel=1e-3)
