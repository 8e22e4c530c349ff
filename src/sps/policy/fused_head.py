"""The output layer on a GPU: log-probability and entropy of chosen tokens from bf16 logits.

Logits of a piece of the tokens live only while it is worked on. Forward reads them once; backward
computes them again and turns them into their own gradient in place. Nothing is ever held in float32
for [tokens x vocabulary].

Axes: N tokens, D hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _read(logits, target, scale, logp, entropy, lse, V, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    pull = tl.zeros([BLOCK], tl.float32)  # sum of exp(x - top) * x
    for start in range(0, V, BLOCK):
        at = start + tl.arange(0, BLOCK)
        real = at < V
        x = tl.load(logits + row * V + at, mask=real, other=float("-inf")).to(tl.float32) * scale
        higher = tl.maximum(top, x)
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        shrink, part = tl.exp(top - safe), tl.exp(x - safe)
        mass = mass * shrink + part
        pull = pull * shrink + tl.where(real, part * x, 0.0)
        top = higher
    peak = tl.max(top, 0)
    weight = tl.exp(top - peak)
    total = tl.sum(mass * weight, 0)
    logsum = peak + tl.log(total)
    chosen = tl.load(logits + row * V + tl.load(target + row)).to(tl.float32) * scale
    tl.store(lse + row, logsum)
    tl.store(logp + row, chosen - logsum)
    tl.store(entropy + row, logsum - tl.sum(pull * weight, 0) / total)


@triton.jit
def _turn(logits, target, scale, lse, entropy, d_logp, d_entropy, V, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    real = at < V
    x = tl.load(logits + row * V + at, mask=real, other=float("-inf")).to(tl.float32) * scale
    logp = x - tl.load(lse + row)
    p = tl.exp(logp)
    hit = (at == tl.load(target + row)).to(tl.float32)
    grad = tl.load(d_logp + row) * (hit - p)
    grad -= tl.load(d_entropy + row) * tl.where(p > 0, p * (logp + tl.load(entropy + row)), 0.0)
    tl.store(logits + row * V + at, (grad * scale).to(logits.dtype.element_ty), mask=real)


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND, weight_VD, target_N, scale, piece):
        size = weight_VD.shape[0]
        half_VD = weight_VD.to(torch.bfloat16)
        stats = hidden_ND.new_empty(3, len(hidden_ND), dtype=torch.float32)
        for at in range(0, len(hidden_ND), piece):
            some = slice(at, at + piece)
            logits_NV = hidden_ND[some].to(torch.bfloat16) @ half_VD.t()
            logp, entropy, lse = (s[some] for s in stats)
            _read[(len(logits_NV),)](
                logits_NV, target_N[some], scale, logp, entropy, lse, size, BLOCK=4096, num_warps=8
            )
        ctx.save_for_backward(hidden_ND, weight_VD, target_N, stats)
        ctx.scale, ctx.piece = scale, piece
        return stats[0], stats[1]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        d_logp_N, d_entropy_N = grads
        hidden_ND, weight_VD, target_N, stats = ctx.saved_tensors
        half_VD = weight_VD.to(torch.bfloat16)
        d_hidden_ND = torch.empty_like(hidden_ND)
        # None below adapters, where it is frozen.
        d_weight_VD = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
        d_logp_N, d_entropy_N = d_logp_N.contiguous(), d_entropy_N.contiguous()
        for at in range(0, len(hidden_ND), ctx.piece):
            some = slice(at, at + ctx.piece)
            half_ND = hidden_ND[some].to(torch.bfloat16)
            logits_NV = half_ND @ half_VD.t()
            _turn[(len(logits_NV), triton.cdiv(len(half_VD), 4096))](
                logits_NV, target_N[some], ctx.scale, stats[2, some], stats[1, some],
                d_logp_N[some], d_entropy_N[some], len(half_VD), BLOCK=4096, num_warps=8,
            )  # fmt: skip
            d_hidden_ND[some] = logits_NV @ half_VD
            if d_weight_VD is not None:
                d_weight_VD += logits_NV.t() @ half_ND
        return d_hidden_ND, d_weight_VD, None, None, None


def chosen(
    hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor, temperature: float, numbers: int
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy at each token; at most `numbers` logits are held at once."""
    piece = max(1, numbers // weight_VD.shape[0])
    return _Chosen.apply(hidden_ND, weight_VD, target_N, 1 / temperature, piece)
