"""Small runs of TRL's GRPOTrainer, with SPS in them or not."""

from __future__ import annotations

import copy
from typing import Any

from conftest import make_policy
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from sps.integrations.trl import SPSCallback

CHAT = (
    "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}{{ tail or '=' }}{% endif %}"
)


def odd(completion_ids, **_):
    """A reward that a random policy gets half of the time."""
    return [float(sum(ids) % 2) for ids in completion_ids]


class Seen(GRPOTrainer):
    """Keeps what TRL learns from: rows of prompt and completion, for training and evaluation."""

    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        rows = []
        for number in range(len(inputs)):
            parts = [
                out[f"{part}_ids"][number][out[f"{part}_mask"][number].bool()].tolist()
                for part in ("prompt", "completion")
            ]
            rows.append(tuple(map(tuple, parts)))
        self.seen = [*getattr(self, "seen", []), (self.model.training, rows)]
        return out


class Before(TrainerCallback):
    """Copies the weights before each step, and weights and record before each IRL phase."""

    def __init__(self, sps: SPSCallback):
        self.sps, self.steps, self.phases = sps, [], []

    def on_step_begin(self, args, state, control, model=None, **_):
        self.steps.append(copy.deepcopy(model.state_dict()))

    def on_step_end(self, args, state, control, model=None, **_):
        if state.global_step % self.sps.settings.every == 0:
            self.phases.append((copy.deepcopy(model.state_dict()), copy.deepcopy(self.sps.record)))


def make_trainer(folder, reward, callbacks=(), chat=False, peft=None, dropout=0.0, **settings):
    """2 steps of 4 prompts x 4 completions, unless the settings say otherwise."""
    policy = make_policy()
    policy.model.generation_config.eos_token_id = [*range(1, 20)]  # completions of many lengths
    policy.model.config.attention_dropout = dropout
    for layer in policy.model.model.layers:
        layer.self_attn.attention_dropout = dropout
    questions: list[Any] = [
        " ".join(map(str, range(1, 3 + i % 4))) + f" -> {i} :" for i in range(16)
    ]
    if chat:
        policy.tokenizer.chat_template = CHAT
        questions = [[{"role": "user", "content": question}] for question in questions]
    data = Dataset.from_list([{"prompt": question} for question in questions])
    given: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "max_completion_length": 8,
        "learning_rate": 1e-3,
        "max_steps": 2,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        **settings,
    }
    return Seen(
        model=policy.model,
        processing_class=policy.tokenizer,
        reward_funcs=reward,
        args=GRPOConfig(**given),
        train_dataset=data,
        eval_dataset=data.select(range(4)),
        callbacks=list(callbacks),
        peft_config=peft,
    )
