"""GRPO with TRL on Countdown, and SPS in two lines of it. Runs on a CPU, with nothing to download.

python examples/trl_sps.py --steps 100 --every 50
"""

from __future__ import annotations

import argparse
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from sps.build import ensure_base, make_task
from sps.config.recipe import Recipe
from sps.integrations.trl import SPSCallback


def main() -> None:
    """Train the embedded policy, say what each IRL phase did, and save the model."""
    options = read_options()
    recipe = Recipe()  # Countdown and the embedded policy are its defaults
    task = make_task(recipe)
    problems = {problem.question: problem for problem in task.problems("train")}

    def reward(prompts, completions, **_):
        pairs = zip(prompts, completions, strict=True)
        return [task.judge(problems[prompt], text, True).reward for prompt, text in pairs]

    sps = SPSCallback(every=options.every, steps=4, keep=3)
    trainer = GRPOTrainer(
        str(ensure_base(recipe)),
        reward_funcs=sps.watch(reward),
        callbacks=[sps],
        args=GRPOConfig(
            output_dir=str(options.out),
            max_steps=options.steps,
            per_device_train_batch_size=128,
            num_generations=8,
            max_completion_length=20,
            learning_rate=1e-4,
            lr_scheduler_type="constant",
            seed=options.seed,
            gradient_checkpointing=False,
            bf16=False,
            save_strategy="no",
            report_to=[],
        ),
        train_dataset=Dataset.from_list([{"prompt": question} for question in problems]),
    )
    trainer.train()
    for record in sps.history:
        if record["kind"] == "meter":
            print(
                f"step {record['step']}: the IRL phase moved the policy by "
                f"{record['relative_update']:.1e} of its size, KL {record['kl']:.1e} a token"
            )
    trainer.save_model(str(options.out / "model"))


def read_options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps of GRPO")
    parser.add_argument("--every", type=int, default=50, help="steps between IRL phases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/trl"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
