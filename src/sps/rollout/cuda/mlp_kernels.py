"""Triton kernels of a decode step: norms, and the products that are worth fusing.

Axes: B rows being decoded, D width of the residual, F width of the feed-forward part.
Tensors are contiguous.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

_TILE = 64  # side of a product's tile


@triton.jit
def _add_norm(x, residual, weight, out, eps, size, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    real = at < size
    value = tl.load(residual + row * size + at, mask=real, other=0.0)
    if ADD:
        value = value + tl.load(x + row * size + at, mask=real, other=0.0)
        tl.store(residual + row * size + at, value, mask=real)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    normed = (wide * scale).to(value.dtype)
    weights = tl.load(weight + at, mask=real, other=0.0)
    tl.store(out + row * size + at, normed * weights, mask=real)


def add_norm(
    x_BD: Tensor | None, residual_BD: Tensor, weight_D: Tensor, eps: float, dtype: torch.dtype
) -> Tensor:
    """residual += x in place, and its RMSNorm as the model's own code computes it."""
    rows, size = residual_BD.shape
    out_BD = torch.empty_like(residual_BD, dtype=dtype)
    block = triton.next_power_of_2(size)
    _add_norm[(rows,)](
        residual_BD if x_BD is None else x_BD, residual_BD, weight_D, out_BD, eps, size,
        ADD=x_BD is not None, BLOCK=block, num_warps=4 if block <= 1024 else 8,
    )  # fmt: skip
    return out_BD


@triton.jit
def _silu_product(x, weight, out, rows, K, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A tile of silu(x @ gate.T) * (x @ up.T), rounded where three kernels would round."""
    at_M = tl.program_id(0) * BM + tl.arange(0, BM)
    at_N = tl.program_id(1) * BN + tl.arange(0, BN)
    at_K = tl.arange(0, BK)
    there = (at_M < rows)[:, None]
    xs, gates = x + at_M[:, None] * K + at_K[None, :], weight + at_N[None, :] * K + at_K[:, None]
    gate, up = tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32)
    for k in range(0, K, BK):
        part = tl.load(xs + k, mask=there, other=0.0)
        gate = tl.dot(part, tl.load(gates + k), gate)
        up = tl.dot(part, tl.load(gates + N * K + k), up)
    kind = out.dtype.element_ty
    gate = gate.to(kind).to(tl.float32)
    mixed = (gate * tl.sigmoid(gate)).to(kind) * up.to(kind)
    tl.store(out + at_M[:, None] * N + at_N[None, :], mixed, mask=there)


@triton.jit
def _silu_mul(both, out, size, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    real = at < size
    gate = tl.load(both + row * 2 * size + at, mask=real, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * size + size + at, mask=real, other=0.0)
    turned = (gate * tl.sigmoid(gate)).to(up.dtype)
    tl.store(out + row * size + at, turned * up, mask=real)


def silu_product(x_BD: Tensor, gate_up_FD: Tensor) -> Tensor:
    """silu(gate) * up of joined projections; one kernel for a small model, else two."""
    (rows, depth), size = x_BD.shape, len(gate_up_FD) // 2
    out_BF = x_BD.new_empty(rows, size)
    if depth <= 1024 and depth % _TILE == 0 and size % _TILE == 0:
        narrow = _TILE if rows > 256 else _TILE // 2
        _silu_product[(triton.cdiv(rows, _TILE), size // narrow)](
            x_BD, gate_up_FD, out_BF, rows, depth, size,
            BM=_TILE, BN=narrow, BK=_TILE, num_warps=4, num_stages=3 if rows > 256 else 6,
        )  # fmt: skip
        return out_BF
    both_BF = linear(x_BD, gate_up_FD)
    _silu_mul[(rows, triton.cdiv(size, 1024))](both_BF, out_BF, size, BLOCK=1024, num_warps=4)
    return out_BF
