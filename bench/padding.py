"""The table of docs/scaling.md: padding of the training passes, by budget and batch.

Lengths are those of reasoning: 200 prompt tokens and a geometric answer, mean 900, at most 3072.
Arithmetic alone, nothing is run: python -m bench padding
"""

from __future__ import annotations

import numpy as np

from sps.policy.logprobs import part_sizes

PROMPT, MEAN, MOST, SEEDS = 200, 900, 3072, 20


def filled_from_the_longest(length_B: np.ndarray, budget: int) -> list[int]:
    """The rule that `part_sizes` took the place of: each part as full as it gets."""
    sizes, at = [], 0
    while at < len(length_B):
        sizes.append(min(len(length_B) - at, max(1, budget // int(length_B[at]))))
        at += sizes[-1]
    return sizes


def padded(length_B: np.ndarray, sizes: list[int]) -> int:
    """Tokens computed of rows from the longest to the shortest."""
    starts = np.cumsum([0, *sizes[:-1]])
    return int((np.array(sizes) * length_B[starts]).sum())


def measure(rows: int, gpus: int, budget: int, seed: int) -> list[float]:
    """Share of padding, and passes of the GPU with most, by the earlier rule and by this one."""
    answers = np.minimum(np.random.default_rng(seed).geometric(1 / MEAN, rows), MOST)
    length_B = np.sort(PROMPT + answers)[::-1]
    shares = [length_B[rank::gpus] for rank in range(gpus)]
    earlier = [filled_from_the_longest(share, budget) for share in shares]
    now = [part_sizes(shares[0], budget)] * gpus  # all ranks cut where the first does
    out: list[float] = []
    for cuts in (earlier, now):
        tokens = sum(padded(share, sizes) for share, sizes in zip(shares, cuts, strict=True))
        out += [1 - length_B.sum() / tokens, max(len(sizes) for sizes in cuts)]
    return out


def main() -> None:
    """Means over seeds, as Markdown."""
    print("| rollouts | GPUs | `rl.micro_tokens` | padding before | passes | padding | passes |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for prompts, gpus in ((16, 1), (64, 1), (16, 8), (64, 8)):
        for budget in (16384, 32768, 65536):
            found = [measure(prompts * 8, gpus, budget, seed) for seed in range(SEEDS)]
            old, old_passes, new, new_passes = np.mean(found, axis=0)
            cells = f"{old:.1%} | {old_passes:.1f} | {new:.1%} | {new_passes:.1f} |"
            print(f"| {prompts} x 8 | {gpus} | {budget} | {cells}")
