"""Triton kernels of a decode step: norms, and the products that are worth fusing.

Axes: B rows being decoded, D width of the residual, F width of the feed-forward part, K parts that
a sum is split into. Tensors are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

from sps.rollout.cuda.device import processors, shared_memory

_TILE = 64  # side of a product's tile
_FEW = 32  # rows
_SMALL = 1024  # length of a sum up to which a model is small
_ROOMY = 160 * 1024  # bytes of shared memory, as an A100 has; the tiles below need them


@triton.jit
def _add_norm(
    x, residual, weight, out, eps, size, rows,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    real = at < size
    value = tl.load(residual + row * size + at, mask=real, other=0.0)
    if PARTS > 0:
        more = tl.load(x + row * size + at, mask=real, other=0.0)
        for part in tl.static_range(1, PARTS):
            more += tl.load(x + (part * rows + row) * size + at, mask=real, other=0.0)
        value = value + more.to(out.dtype.element_ty)  # rounded, as a product's result is
        tl.store(residual + row * size + at, value, mask=real)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    normed = (wide * scale).to(value.dtype)
    weights = tl.load(weight + at, mask=real, other=0.0)
    tl.store(out + row * size + at, normed * weights, mask=real)


def add_norm(
    x: Tensor | None, residual_BD: Tensor, weight_D: Tensor, eps: float, dtype: torch.dtype
) -> Tensor:
    """residual += x in place, and its RMSNorm as the model's own code computes it.

    x is [B, D], or [K, B, D]: the parts of a product, in float32, that are added up here.
    """
    rows, size = residual_BD.shape
    out_BD = torch.empty_like(residual_BD, dtype=dtype)
    block = triton.next_power_of_2(size)
    parts = 0 if x is None else x.numel() // residual_BD.numel()
    _add_norm[(rows,)](
        residual_BD if x is None else x, residual_BD, weight_D, out_BD, eps, size, rows,
        PARTS=parts, BLOCK=block, num_warps=4 if block <= 1024 else 8,
    )  # fmt: skip
    return out_BD


@dataclass(frozen=True)
class Tiles:
    """How a product with few rows is divided: it takes the time to read its weights."""

    wide: int  # weight rows a program
    deep: int  # of the sum, a turn
    parts: int  # that the sum is split into
    warps: int
    stages: int


def no_tiles(rows: int, size: int, depth: int, kind: str) -> Tiles | None:
    """cuBLAS for every product."""
    return None


def few_rows(rows: int, size: int, depth: int, kind: str) -> Tiles | None:
    """Our own kernel where it was faster than cuBLAS on an H200: few rows of a large model.

    Kinds: `whole`; `parts`, which may be added up later; `silu`; `bias`.
    """
    # A little more than one program for each multiprocessor would take twice the time of one.
    uneven = processors() < size // 64 < 1.5 * processors()
    most = 2 * _FEW if uneven and kind == "silu" else _FEW  # cuBLAS takes two kernels for silu
    if rows > most or depth <= _SMALL or size % 128 or depth % 128 or kind == "bias":
        return None
    if shared_memory() < _ROOMY:
        return None
    if kind == "parts":
        split = next((n for n in (4, 7, 2) if depth % (128 * n) == 0), 0)
        return Tiles(64, 128, split, 4, 4) if split else None
    if uneven:
        return Tiles(128, 64, 1, 4, 5)
    return Tiles(64, 128, 1, 4, 4)


tiles_for: Callable[[int, int, int, str], Tiles | None] = few_rows


@triton.jit
def _product(
    x, weight, out, rows, K, N, each,
    SILU: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of x @ weight.T, or of silu(x @ gate.T) * (x @ up.T); weights are the left operand,

    so that the tensor cores' 64 rows are all weights, however few rows x has.
    """
    at_N = tl.program_id(0) * BN + tl.arange(0, BN)
    part, at_M = tl.program_id(1), tl.program_id(2) * BM + tl.arange(0, BM)
    at_K = part * each + tl.arange(0, BK)
    there = (at_M < rows)[None, :]
    xs = x + at_M[None, :] * K + at_K[:, None]
    ws = weight + at_N.to(tl.int64)[:, None] * K + at_K[None, :]
    acc = tl.zeros([BN, BM], tl.float32)
    up = tl.zeros([BN, BM], tl.float32)
    for k in range(0, each, BK):
        some = tl.load(xs + k, mask=there, other=0.0)
        acc = tl.dot(tl.load(ws + k), some, acc, input_precision="ieee")
        if SILU:
            up = tl.dot(tl.load(ws + N.to(tl.int64) * K + k), some, up, input_precision="ieee")
    kind = out.dtype.element_ty
    result = acc.to(kind)
    if SILU:
        gate = result.to(tl.float32)
        result = (gate * tl.sigmoid(gate)).to(kind) * up.to(kind)
    place = (part * rows + at_M[None, :]).to(tl.int64) * N + at_N[:, None]
    tl.store(out + place, result, mask=there)


def product(
    x_BD: Tensor, weight_FD: Tensor, bias_F: Tensor | None = None, parts: bool = False
) -> Tensor:
    """x @ weight.T + bias, [B, F]; with `parts` maybe [K, B, F] in float32, to be added up."""
    (rows, depth), size = x_BD.shape, len(weight_FD)
    kind = "parts" if parts else "whole" if bias_F is None else "bias"
    tiles = tiles_for(rows, size, depth, kind)
    return linear(x_BD, weight_FD, bias_F) if tiles is None else tiled(x_BD, weight_FD, tiles)


def tiled(x_BD: Tensor, weight_FD: Tensor, how: Tiles) -> Tensor:
    """`product` by our own kernel; sizes must be multiples of the tiles."""
    rows, size = len(x_BD), len(weight_FD)
    shape = (rows, size) if how.parts == 1 else (how.parts, rows, size)
    out = x_BD.new_empty(shape, dtype=x_BD.dtype if how.parts == 1 else torch.float32)
    _run(x_BD, weight_FD, out, size, how, silu=False)
    return out


def _run(x_BD: Tensor, weight: Tensor, out: Tensor, size: int, how: Tiles, silu: bool) -> None:
    rows, depth = x_BD.shape
    most = max(16, min(128, triton.next_power_of_2(rows)))
    assert size % how.wide == 0
    assert depth % (how.parts * how.deep) == 0
    _product[(size // how.wide, how.parts, triton.cdiv(rows, most))](
        x_BD, weight, out, rows, depth, size, depth // how.parts,
        SILU=silu, BM=most, BN=how.wide, BK=how.deep, num_warps=how.warps, num_stages=how.stages,
    )  # fmt: skip


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
        gate = tl.dot(part, tl.load(gates + k), gate, input_precision="ieee")
        up = tl.dot(part, tl.load(gates + N * K + k), up, input_precision="ieee")
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
    tiles = tiles_for(rows, size, depth, "silu")
    if tiles is not None:
        _run(x_BD, gate_up_FD, out_BF, size, tiles, silu=True)
        return out_BF
    if depth <= _SMALL and depth % _TILE == 0 and size % _TILE == 0:
        narrow = _TILE if rows > 256 else _TILE // 2
        _silu_product[(triton.cdiv(rows, _TILE), size // narrow)](
            x_BD, gate_up_FD, out_BF, rows, depth, size,
            BM=_TILE, BN=narrow, BK=_TILE, num_warps=4, num_stages=3 if rows > 256 else 6,
        )  # fmt: skip
        return out_BF
    both_BF = linear(x_BD, gate_up_FD)
    _silu_mul[(rows, triton.cdiv(size, 1024))](both_BF, out_BF, size, BLOCK=1024, num_warps=4)
    return out_BF
