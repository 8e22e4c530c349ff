"""Sharded ranks pass forward in step: one with fewer rows does idle passes, to no effect."""

import torch
from small_runs import recipe_of

from sps.build import open_run
from sps.loop import train
from sps.ranks import Ranks


class Behind(Ranks):
    """A rank that has two passes less to do than another."""

    sharded = True
    idle = 0

    def maximum(self, count: int) -> int:
        self.idle += 2
        return count + 2


def test_idle_passes_change_nothing(tmp_path, monkeypatch):
    recipe = recipe_of(
        rl__algorithm={"type": "grpo", "beta": 0.05}, irl__selector={"under": "policy"}
    )
    monkeypatch.setenv("SPS_CACHE", str(tmp_path / "cache"))
    weights, ranks = [], Behind()
    for name, own in (("plain", None), ("behind", ranks)):
        run = open_run(recipe, tmp_path / name)
        if own:
            run.ranks = own
            monkeypatch.setattr("sps.lifecycle.after_step.save_checkpoint", lambda *_: None)
        train(run)
        weights.append([p.detach().clone() for p in run.policy.model.parameters()])
    assert ranks.idle > 10
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
