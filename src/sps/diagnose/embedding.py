"""Similarity of answers in a model's own space: an extra, for it needs the model.

An answer is the mean of the last hidden states of its tokens under the policy that the run began
with, brought to length 1; the similarity of two answers is their cosine. The same policy reads
every row, so rows of runs with the same base compare. Axes: N answers, D hidden size.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sps.diagnose.mass import fitting_threads
from sps.policy.load import Policy

_BATCH = 64
_TOKENS = 1024  # of a long answer


def mean_cosine(unit_ND: np.ndarray) -> float | None:
    """Mean over pairs of unit vectors: (|sum|^2 - N) / (N (N - 1)).

    A vector of zeros, an empty answer, is like none: its own square is 0, not 1.
    """
    n = len(unit_ND)
    if n < 2:
        return None
    total_D = unit_ND.sum(0)
    return float((total_D @ total_D - (unit_ND**2).sum()) / (n * (n - 1)))


@torch.no_grad()
def embed(policy: Policy, texts: Sequence[str]) -> np.ndarray:
    """Unit vectors [N, D]; an empty text is a vector of zeros."""
    out = []
    for start in range(0, len(texts), _BATCH):
        ids = [policy.encode(t)[:_TOKENS] for t in texts[start : start + _BATCH]]
        width = max(1, max(len(i) for i in ids))
        ids_BL = torch.tensor([[*i, *[policy.pad_id] * (width - len(i))] for i in ids])
        real_BL = torch.arange(width)[None] < torch.tensor([len(i) for i in ids])[:, None]
        # Padding is on the right, so a causal model never looks at it from a real token.
        hidden_BLD = policy.model.base_model(input_ids=ids_BL, use_cache=False).last_hidden_state
        sum_BD = torch.where(real_BL[..., None], hidden_BLD.float(), 0.0).sum(1)
        out.append(torch.nn.functional.normalize(sum_BD, dim=-1))
    return torch.cat(out).numpy()


def cosine_similarity(
    policy: Policy, rows: Iterable[Mapping[str, Any]], samples: int = 8, questions: int = 50
) -> float | None:
    """Mean over questions of the mean cosine of their answers, on a seeded draw of both."""
    answers: dict[str, list[str]] = {}
    for row in rows:
        answers.setdefault(row["problem_id"], []).append(row["text"])
    draw = random.Random(0)
    chosen = sorted(answers)
    chosen = sorted(draw.sample(chosen, questions)) if len(chosen) > questions else chosen
    drawn = [
        draw.sample(answers[q], samples) if len(answers[q]) > samples else answers[q]
        for q in chosen
    ]
    if not drawn:
        return None
    with fitting_threads(policy.model):
        unit_ND = embed(policy, [text for texts in drawn for text in texts])
    ends = np.cumsum([len(texts) for texts in drawn])[:-1]
    found = [mean_cosine(part) for part in np.split(unit_ND, ends)]
    values = [value for value in found if value is not None]
    return float(np.mean(values)) if values else None
