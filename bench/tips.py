"""How often rounding tips a draw: the same random numbers, logits that differ by a little.

python -m bench.tips MODEL --questions data/gsm8k_train.jsonl

Where one uniform number falls among the cumulated probabilities, each of the many borders near it
may move past it. The engines draw by the Gumbel-max rule. The least that any way of drawing could
have is the total variation between the two distributions. Computed in float64, of the model's own
texts at temperature 1, with Gaussian noise on the logits as large as float32 and bf16 have.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from sps.policy.load import load_policy
from sps.tasks.prompts import BOXED, chat

NOISE = {"float32": 5e-6, "bf16": 0.01}


@torch.no_grad()
def logits_of(policy: Any, question: str, tokens: int) -> torch.Tensor:
    """At the last tokens of a text of the model's own [tokens, vocabulary]."""
    ids = torch.tensor([policy.encode(chat(question, BOXED, ""))])
    for _ in range(tokens):
        p = policy.model(ids).logits[0, -1].double().softmax(-1)
        ids = torch.cat([ids, torch.multinomial(p, 1)[None]], 1)
    return policy.model(ids).logits[0, -tokens - 1 : -1].double()


def tips(logits_TV: torch.Tensor, noise: float) -> tuple[float, float, float]:
    """Mean chance of another token: by cumulated probabilities, by the Gumbel-max rule, and the
    least possible."""
    p_TV = logits_TV.softmax(-1)
    q_TV = (logits_TV + noise * torch.randn_like(logits_TV)).softmax(-1)
    ends_p, ends_q = p_TV.cumsum(-1), q_TV.cumsum(-1)
    both = torch.minimum(ends_p, ends_q) - torch.maximum(ends_p - p_TV, ends_q - q_TV)
    least = (p_TV - q_TV).abs().sum(-1) / 2
    one = 1 - both.clamp(min=0).sum(-1)
    return float(one.mean()), float((1 - same(p_TV, q_TV)).mean()), float(least.mean())


def same(p_TV: torch.Tensor, q_TV: torch.Tensor) -> torch.Tensor:
    """The chance that both draw one token by the same Gumbel numbers: it is i with probability
    1 / sum_j max(p_j / p_i, q_j / q_i), here summed in the order of q / p."""
    order_TV = (q_TV / p_TV).argsort(-1)
    p_TV, q_TV = p_TV.gather(-1, order_TV), q_TV.gather(-1, order_TV)
    below_TV, above_TV = p_TV.cumsum(-1), q_TV.flip(-1).cumsum(-1).flip(-1) - q_TV
    return (1 / (below_TV / p_TV + above_TV / q_TV)).sum(-1)


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--first", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=40)
    options = parser.parse_args()
    torch.manual_seed(0)
    policy = load_policy(options.model, dtype="float32", device="cpu")
    lines = options.questions.read_text(encoding="utf-8").splitlines()[: options.first]
    logits_TV = torch.cat(
        [logits_of(policy, json.loads(line)["problem"], options.tokens) for line in lines]
    )
    for name, noise in NOISE.items():
        one, gumbel, least = tips(logits_TV, noise)
        print(
            f"{name}: noise {noise:g}, of {len(logits_TV)} draws {gumbel:.2e} tip; by cumulated "
            f"probabilities {one:.2e}, least {least:.2e}"
        )


if __name__ == "__main__":
    main()
