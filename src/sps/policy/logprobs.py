"""Log-probabilities of given completions, never holding [tokens x vocabulary] for all tokens.

Axes: B sequences, L prompt + completion tokens, T completion tokens, N those of all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sps.logits import logit_change, scaled_logits
from sps.ranks import ALONE, Ranks

_LOGITS_AT_ONCE = 2**28  # numbers in the largest logits tensor: 512 MiB in bf16
# What a pass costs besides its tokens, in tokens. With sharded weights it gathers them, too: by
# arithmetic 1,200 tokens more within a node, 11,000 between nodes if nothing hid it.
_PASS, _SHARDED_PASS = 1024, 4096
_WHOLE = 16_384  # padded tokens that are never cut


@dataclass(frozen=True)
class Rows:
    """Sequences padded on the right, so that a plain causal mask is the right one."""

    ids_BL: Tensor
    place: tuple[Tensor, Tensor]  # (row, column) whose output predicts each completion token
    target_N: Tensor  # those tokens
    mask_BT: Tensor  # which places of a [B, T] rectangle are real completion tokens
    which_B: np.ndarray  # position of each row in the batch it was cut from, in order
    length_B: np.ndarray  # completion tokens of each row

    def split(self, first: int) -> tuple[Rows, Rows]:
        """The rows of the first so many of the batch, and the others, which are counted anew."""
        row = int(np.searchsorted(self.which_B, first))
        token = int(self.length_B[:row].sum())
        others = self._cut(slice(row, None), slice(token, None))
        place = others.place[0] - row, others.place[1]
        others = replace(others, place=place, which_B=others.which_B - first)
        return self._cut(slice(row), slice(token)), others

    def _cut(self, rows: slice, tokens: slice) -> Rows:
        place = self.place[0][tokens], self.place[1][tokens]
        of_rows = self.mask_BT[rows], self.which_B[rows], self.length_B[rows]
        return Rows(self.ids_BL[rows], place, self.target_N[tokens], *of_rows)


def micro_batches(
    prompts: Sequence[np.ndarray],
    completions: Sequence[np.ndarray],
    pad_id: int,
    budget: int,
    device: torch.device | str = "cpu",
    ranks: Ranks = ALONE,
) -> Iterator[Rows]:
    """Cut this rank's share of a batch into parts of at most `budget` padded tokens.

    Similar lengths go together, in a part and over the ranks.
    """
    length_B = np.array([len(p) + len(c) for p, c in zip(prompts, completions, strict=True)])
    order = np.argsort(-length_B, kind="stable").tolist()
    # Every rank cuts where the first does, whose rows are the longest: sharded ranks, which pass
    # forward in step, have passes of one size and equally many.
    cost = _SHARDED_PASS if ranks.sharded else _PASS
    sizes = part_sizes(length_B[order[:: ranks.size]], budget, cost)
    own, at = ranks.shard(order), 0
    for size in sizes:
        which = np.sort(np.array(own[at : at + size]))
        at += size
        if len(which):  # a rank may have one row less than the first
            yield _rows(
                [prompts[i] for i in which], [completions[i] for i in which], which, pad_id, device
            )


def part_sizes(length_B: np.ndarray, budget: int, cost: int = _PASS) -> list[int]:
    """How many rows each part has, of rows from the longest to the shortest.

    Of all ways to cut them into parts of at most `budget` padded tokens, the one with the fewest
    padded tokens, where a part costs as many as `cost` besides; one part of few tokens. A row
    longer than the budget is a part of its own.
    """
    count = len(length_B)
    if count and count * int(length_B[0]) <= min(budget, _WHOLE):
        return [count]
    # least[i]: padded tokens and costs of the rows from i on, if they are cut best.
    least, first = np.zeros(count + 1, dtype=np.int64), np.ones(count, dtype=np.int64)
    for i in range(count - 1, -1, -1):
        width = int(length_B[i])
        size = np.arange(min(count - i, max(1, budget // width)), 0, -1)  # of equals the largest
        total = size * width + least[i + size]
        best = int(total.argmin())
        least[i], first[i] = total[best] + cost, size[best]
    sizes, at = [], 0
    while at < count:
        sizes.append(int(first[at]))
        at += sizes[-1]
    return sizes


def _rows(prompts, completions, which, pad_id, device) -> Rows:
    width = max(len(p) + len(c) for p, c in zip(prompts, completions, strict=True))
    tokens = max(len(c) for c in completions)
    ids_BL = np.full((len(which), width), pad_id, dtype=np.int64)
    mask_BT = np.zeros((len(which), tokens), dtype=bool)
    columns, targets = [], []
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        end = len(prompt) + len(completion)
        ids_BL[row, : len(prompt)], ids_BL[row, len(prompt) : end] = prompt, completion
        mask_BT[row, : len(completion)] = True
        columns.append(np.arange(len(prompt) - 1, end - 1))
        targets.append(completion)
    row_N = torch.from_numpy(mask_BT.nonzero()[0]).to(device)
    column_N = torch.from_numpy(np.concatenate(columns)).to(device)
    target_N = torch.from_numpy(np.concatenate(targets).astype(np.int64)).to(device)
    ids = torch.from_numpy(ids_BL).to(device)
    mask = torch.from_numpy(mask_BT).to(device)
    return Rows(ids, (row_N, column_N), target_N, mask, which, mask_BT.sum(-1))


class Scorer(nn.Module):
    """The training pass of a model as one module: FSDP gathers weights around its forward."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(
        self,
        rows: Rows,
        temperature: float = 1.0,
        entropy_grad: bool = False,
        greedy: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each completion token, row after row.

        With `greedy`, the likeliest tokens in their places and the log-probabilities of those.
        """
        model = self.model
        with compute(model):
            hidden_BLD = model.base_model(input_ids=rows.ids_BL, use_cache=False).last_hidden_state
            hidden_ND = hidden_BLD[rows.place]
            if not greedy:
                return _head(model, hidden_ND, rows, temperature, entropy_grad)
            # A factor, a soft cap or a temperature would not change which one is largest.
            head = model.get_output_embeddings()
            size = max(1, _LOGITS_AT_ONCE // head.out_features)
            token_N = torch.cat([head(piece).argmax(-1) for piece in hidden_ND.split(size)])
            likeliest = replace(rows, target_N=token_N)
            return token_N, _head(model, hidden_ND, likeliest, temperature, False)[0]


def token_logprobs(
    scorer: Scorer, rows: Rows, temperature: float = 1.0, entropy_grad: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy at each completion token, as [B, T] with 0 where there is none.

    Both are of the distribution that was sampled from: logits divided by the temperature.
    """
    logp_N, entropy_N = scorer(rows, temperature, entropy_grad)
    return _rectangle(logp_N, rows.mask_BT), _rectangle(entropy_N, rows.mask_BT)


@torch.no_grad()
def greedy_probs(
    scorer: Scorer, rows: Rows, token_N: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The likeliest token where each completion token stands, and its probability.

    With `token_N`, the probability of those tokens instead: what a later policy gives them.
    """
    if token_N is None:
        token_N, logp_N = scorer(rows, greedy=True)
    else:
        logp_N, _ = scorer(replace(rows, target_N=token_N))
    return token_N, logp_N.exp()


def compute(model: Any) -> Any:
    """Autocast to the dtype the policy computes in; its weights stay in float32.

    A pass uses a weight once, so a cache of the converted ones would only hold them all.
    """
    kind = getattr(model, "compute_dtype", torch.float32)
    enabled = kind != torch.float32
    return torch.autocast(model.device.type, kind, enabled=enabled, cache_enabled=False)


def _head(
    model: Any, hidden_ND: Tensor, rows: Rows, temperature: float, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    head, (factor, cap) = model.get_output_embeddings(), logit_change(model.config)
    plain = type(head) is nn.Linear and head.bias is None and not cap  # an adapter is not
    plain = plain and not hasattr(head.weight, "ds_tensor")  # DeepSpeed gathers for a call alone
    if hidden_ND.is_cuda and torch.is_autocast_enabled() and plain:
        from sps.policy.fused_head import chosen  # needs triton, which CPUs may lack

        given = (hidden_ND, head.weight, rows.target_N)
        return chosen(*given, temperature / factor, _LOGITS_AT_ONCE)
    size = max(1, _LOGITS_AT_ONCE // head.out_features)
    pieces = list(zip(hidden_ND.split(size), rows.target_N.split(size), strict=True))
    arguments = (head, model.config, temperature, entropy_grad)
    if len(pieces) == 1:
        return _chosen(*pieces[0], *arguments)
    # Logits of a piece live only while it is worked on, forwards and backwards.
    outs = [checkpoint(_chosen, h, t, *arguments, use_reentrant=False) for h, t in pieces]
    logp_N, entropy_N = (torch.cat(part) for part in zip(*outs, strict=True))
    return logp_N, entropy_N


def _chosen(hidden_ND, target_N, head, config, temperature, entropy_grad):
    logits_NV = scaled_logits(head(hidden_ND).float(), config)
    logp_NV = (logits_NV / temperature if temperature != 1 else logits_NV).log_softmax(-1)
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        entropy_N = -(logp_NV.exp() * logp_NV).sum(-1)
    return logp_NV.gather(-1, target_N[:, None]).sum(-1), entropy_N  # sum: not a view, for FSDP


def _rectangle(value_N: Tensor, mask_BT: Tensor) -> Tensor:
    """Real tokens run row by row through the mask, just as they were gathered."""
    return value_N.new_zeros(mask_BT.shape).masked_scatter(mask_BT, value_N)
