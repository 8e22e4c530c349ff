"""SPS inside TRL: a callback for GRPOTrainer, on public hooks alone.

    sps = SPSCallback(every=50, steps=4, keep=3)
    trainer = GRPOTrainer(model, ..., reward_funcs=sps.watch(reward), callbacks=[sps])

TRL draws, judges and reinforces as ever. The callback records each generation batch, scores it
before it is learnt from, and every so many optimizer steps takes an IRL phase, as `sps train` does.

reward function        prompts, completion ids, rewards           -> record
on_pre_optimizer_step  likelihood under the policy that drew them -> record; the gradient of memory
on_step_end            every `every` steps: record -> select -> IRL steps; the record starts anew
"""

import importlib.util

from sps.errors import UserError

if importlib.util.find_spec("trl") is None:
    raise UserError("sps.integrations.trl: TRL is not installed; install the extra: sps-rl[trl]")

from sps.integrations.trl.callback import SPSCallback

__all__ = ["SPSCallback"]
