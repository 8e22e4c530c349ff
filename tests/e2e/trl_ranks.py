"""One rank of a run of TRL with SPS in it; test_trl.py launches two, and reads what they leave."""

import sys
from dataclasses import astuple
from pathlib import Path

import torch
from trl_runs import Before, make_trainer, odd

from sps.integrations.trl import SPSCallback
from sps.phases import irl

folder = Path(sys.argv[1])
torch.set_num_threads(1)
sps = SPSCallback(every=2, steps=2, keep=2, lr=1e-3, batch=5)
before, learnt, rows, step = Before(sps), [], [], irl.forward_kl_step


def noted(policy, optimizer, prompts, completions, *rest, **how):
    """Ours, and a note of what it was given."""
    pairs = zip(prompts, completions, strict=True)
    learnt.append([(p.tolist(), c.tolist()) for p, c in pairs])
    count = policy.scorer.register_forward_pre_hook(lambda _, given: rows.extend(given[0].which_B))
    try:
        return step(policy, optimizer, prompts, completions, *rest, **how)
    finally:
        count.remove()


irl.forward_kl_step = noted
# 12 rollouts in groups of 4: the second group has two on each rank.
trainer = make_trainer(folder, sps.watch(odd), [before, sps], per_device_train_batch_size=6)
trainer.train()
weights, record = before.phases[-1]
left = {
    "before": weights,
    "after": trainer.model.state_dict(),
    "record": [astuple(batch) for batch in record],
    "learnt": learnt,
    "rows": len(rows),
    "history": sps.history,
}
# Memory, and gradients that DDP has averaged before it is added.
sps = SPSCallback(steps=0, memory={"weight": 0.7, "share": 9.0})
settings = {"loss_type": "grpo", "adam_epsilon": 1e-2, "lr_scheduler_type": "constant"}
settings |= {"learning_rate": 2e-2, "max_grad_norm": 100.0, "per_device_train_batch_size": 3}
watched = sps.watch(odd)
trainer = make_trainer(
    folder / "memory", watched, [sps], gradient_accumulation_steps=2, max_steps=3, **settings
)
trainer.train()
left |= {
    "remembering": trainer.model.state_dict(),
    "drawn": [drawn for training, drawn in trainer.seen if training],
    "memory": sps.history,
}
torch.save(left, folder / f"rank-{sps.ranks.rank}.pt")
