"""A whole run, RL phases and IRL phases in turn, against the same by hand."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import test_irl_oracle
import test_rl_oracle
from made_run import open_made_run, save_model

from sps.loop import train
from sps.types import Rollout


@pytest.mark.parametrize("state", ["fresh", "kept"])
def test_a_run_is_the_one_by_hand(state, tmp_path):
    """Two phases of 2 RL steps and 3 IRL steps: each optimizer goes on where it was."""
    save_model(tmp_path / "model")
    seen = Listening()
    run, tree = open_made_run(
        tmp_path / "model",
        tmp_path / "run",
        listeners=[seen],
        rl__steps=4,
        irl__optimizer_state=state,
        irl__lr=None,
    )
    seen.start(run, tree)
    train(run)
    assert (seen.rl.step, seen.phases, seen.wanted) == (4, 2, [])
    assert run.policy.version == 4 + 2 * 3


class Listening:
    """Takes each step by hand when the run says that it took it."""

    def start(self, run, tree):
        self.run, self.phases, self.wanted = run, 0, []
        self.rl = test_rl_oracle.ByHand(run, tree, last=4)
        self.irl = test_irl_oracle.ByHand(run, tree)
        self.irl.learner = self.irl.fresh(self.rl.learner.model, own=False)  # one policy for both

    def __call__(self, record):
        if record["kind"] == "rl":
            self.rl.check(record["step"], record, settled=True)
        elif record["kind"] == "irl" and "kept" in record:
            self.phases += 1
            steps = (2 * self.phases - 1, 2 * self.phases)
            kept, self.wanted = self.irl.phase(self.phases, [self.drawn(step) for step in steps])
            assert (record["kept"], record["lr"]) == (len(kept), pytest.approx(self.irl.rate))
        elif record["kind"] == "irl":
            want = self.wanted.pop(0)
            assert {k: record[k] for k in want} == pytest.approx(want, rel=2e-4)
            self.rl.inverse += 1
            if not self.wanted:
                model = self.run.policy.model
                oracle.assert_same_weights(model, self.rl.learner, self.rl.start)

    def drawn(self, step):
        """The rollouts of a step, from what the engine gave."""
        groups = self.rl.groups(self.run.engine.calls[step - 1])
        return [
            rollout_of(row, verdict, step, g, s)
            for g, group in enumerate(groups)
            for s, (verdict, row) in enumerate(group)
        ]


def rollout_of(row, verdict, step, group, sample):
    ids = [np.array(part, dtype=np.int32) for part in (row.prompt, row.ids)]
    logprobs = np.array(row.engine, dtype=np.float32)
    return Rollout(row.name, *ids, logprobs, row.reward, verdict, step, 0, group, sample)
