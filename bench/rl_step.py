"""RL steps/s against TRL's GRPOTrainer: same model, prompts, batch, lengths and reward."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import torch

from bench.sides import TRL, alternate, report, row
from sps.build import ensure_base, make_task, open_run
from sps.config.load import load_recipe
from sps.phases.rl import rl_phase
from sps.phases.schedule import Phase

STEPS = 20


def main() -> None:
    """16 prompts x 8 completions of up to 20 tokens with the embedded policy."""
    with tempfile.TemporaryDirectory() as folder:
        own = ["evaluation.every=0", f"threads={torch.get_num_threads()}"]  # as many as TRL has
        recipe = load_recipe("recipes/demo/countdown_grpo.yaml", own)
        run = open_run(recipe, Path(folder) / "ours")
        at = 1

        def ours() -> float:
            nonlocal at
            for _ in rl_phase(run, Phase(1, at, at, at + STEPS - 1)):
                pass
            at += STEPS
            return STEPS

        trainer = _trl(recipe, Path(folder) / "trl")

        def trl() -> float:
            trainer.train()  # starts over each time: STEPS steps
            return STEPS

        rates = alternate({"sps": ours, "trl": trl}, repeats=5)
    report("rl_step", [row("RL step, embedded policy, 16 x 8", rates, "steps/s")])


def _trl(recipe, folder):
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    warnings.simplefilter("ignore")
    base = ensure_base(recipe)
    task = make_task(recipe)
    problems = {p.question: p for p in task.problems("train")}

    def reward(prompts, completions, **_):
        pairs = zip(prompts, completions, strict=True)
        return [task.judge(problems[p], text, True).reward for p, text in pairs]

    settings = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=recipe.rollout.prompts * recipe.rollout.n,
        num_generations=recipe.rollout.n,
        max_completion_length=recipe.rollout.max_new_tokens,
        learning_rate=recipe.rl.lr,
        lr_scheduler_type="constant",
        max_steps=STEPS,
        bf16=False,
        use_cpu=True,
        **TRL,
    )
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(base),
        processing_class=AutoTokenizer.from_pretrained(base),
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": q} for q in problems]),
    )
