"""Triton kernels of a decode step: what lies between its matrix products, each fused into one pass.

Axes: B rows being decoded, S slots of the cache, P prompts, H key/value heads, R query heads that
share each, L prompt tokens, T own tokens, D width of a head, V vocabulary. Tensors are contiguous.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


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
    first = x_BD if x_BD is not None else residual_BD
    _add_norm[(rows,)](
        first,
        residual_BD,
        weight_D,
        out_BD,
        eps,
        size,
        ADD=x_BD is not None,
        BLOCK=block,
        num_warps=4 if block <= 1024 else 8,
    )
    return out_BD


@triton.jit
def _silu_mul(both, out, size, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    real = at < size
    gate = tl.load(both + row * 2 * size + at, mask=real, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * size + size + at, mask=real, other=0.0)
    turned = (gate * tl.sigmoid(gate)).to(up.dtype)
    tl.store(out + row * size + at, turned * up, mask=real)


def silu_mul(both_BF: Tensor) -> Tensor:
    """silu(gate) * up of joined projections."""
    rows, size = both_BF.shape[0], both_BF.shape[1] // 2
    out = both_BF.new_empty(rows, size)
    _silu_mul[(rows, triton.cdiv(size, 1024))](both_BF, out, size, BLOCK=1024, num_warps=4)
    return out


@triton.jit
def _half(source, weight, eps, D: tl.constexpr, NORM: tl.constexpr):
    """Both halves of one head, normed when the model norms queries and keys."""
    at = tl.arange(0, D // 2)
    first = tl.load(source + at).to(tl.float32)
    second = tl.load(source + D // 2 + at).to(tl.float32)
    if NORM:
        scale = tl.rsqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / D + eps)
        kind = source.dtype.element_ty
        first = ((first * scale).to(kind) * tl.load(weight + at)).to(tl.float32)
        second = ((second * scale).to(kind) * tl.load(weight + D // 2 + at)).to(tl.float32)
    return first, second


@triton.jit
def _rotate_store(
    qkv, cos, sin, position, slot, own, live, q_norm, k_norm, eps, keys, values, T,
    HEADS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, D // 2)
    source = qkv + (row * (HEADS + 2 * SHARED) + head) * D
    place = tl.load(slot + row).to(tl.int64)
    when = tl.load(own + row).to(tl.int64)
    # A row that is done may still name a slot that by now belongs to another row.
    awake = (tl.load(live + row) > 0) & (at >= 0)
    if head < HEADS + SHARED:
        weight = q_norm
        if head >= HEADS:
            weight = k_norm
        first, second = _half(source, weight, eps, D, NORM)
        turn = tl.load(position + row).to(tl.int64) * D
        c = tl.load(cos + turn + at).to(tl.float32)
        s = tl.load(sin + turn + at).to(tl.float32)
        kind = source.dtype.element_ty
        low, high = (first * c - second * s).to(kind), (second * c + first * s).to(kind)
        target = source
        if head >= HEADS:
            target = keys + ((place * SHARED + head - HEADS) * T + when) * D
        tl.store(target + at, low, mask=awake)
        tl.store(target + D // 2 + at, high, mask=awake)
    else:
        target = values + ((place * SHARED + head - HEADS - SHARED) * T + when) * D
        tl.store(target + at, tl.load(source + at), mask=awake)
        tl.store(target + D // 2 + at, tl.load(source + D // 2 + at), mask=awake)


def rotate_store(
    qkv_BX: Tensor,
    table: tuple[Tensor, Tensor],
    position_B: Tensor,
    slot_B: Tensor,
    own_B: Tensor,
    live_B: Tensor,
    cache: tuple[Tensor, Tensor],
    heads: int,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> None:
    """Turn the queries in place; turn the keys and store them, with the values, at own_B."""
    keys, values = cache
    _, shared, room, width = keys.shape
    q_norm, k_norm = norms or (qkv_BX, qkv_BX)
    _rotate_store[(len(qkv_BX), heads + 2 * shared)](
        qkv_BX, *table, position_B, slot_B, own_B, live_B, q_norm, k_norm, eps, keys, values, room,
        HEADS=heads, SHARED=shared, D=width, NORM=norms is not None, num_warps=1,
    )  # fmt: skip


@triton.jit
def _walk(q, keys, values, length, best, total, out, scale,
          D: tl.constexpr, R: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """Online softmax of [R, D] queries over `length` keys from a base address."""
    at_D = tl.arange(0, D)
    for start in range(0, length, N):
        at_N = start + tl.arange(0, N)
        seen = at_N < length
        k = tl.load(keys + at_N[:, None] * D + at_D[None, :], mask=seen[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        top = tl.maximum(best, tl.max(scores, 1))
        shrink = tl.exp2(best - top)
        mass = tl.exp2(scores - top[:, None])
        total = total * shrink + tl.sum(mass, 1)
        v = tl.load(values + at_N[:, None] * D + at_D[None, :], mask=seen[:, None], other=0.0)
        out = out * shrink[:, None] + tl.dot(mass.to(v.dtype), v)
        best = top
    return best, total, out


@triton.jit
def _attend(
    qkv, prefix_keys, prefix_values, prompt, prompt_length, keys, values, slot, own, live, out,
    scale, L, T, HEADS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr,
    R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group: tl.constexpr = HEADS // SHARED
    at_R, at_D = tl.arange(0, R), tl.arange(0, D)
    place = (row * (HEADS + 2 * SHARED) + head * group + at_R[:, None]) * D + at_D[None, :]
    real = (at_R < group)[:, None]
    q = tl.load(qkv + place, mask=real, other=0.0)
    best = tl.full([R], float("-inf"), tl.float32)
    total = tl.zeros([R], tl.float32)
    mixed = tl.zeros([R, D], tl.float32)
    awake = tl.load(live + row)  # a row that is done reads nothing
    whose = tl.load(prompt + row).to(tl.int64)
    start = (whose * SHARED + head) * L * D
    length = tl.load(prompt_length + whose) * awake
    best, total, mixed = _walk(
        q, prefix_keys + start, prefix_values + start, length, best, total, mixed, scale, D, R, N
    )
    start = (tl.load(slot + row).to(tl.int64) * SHARED + head) * T * D
    length = (tl.load(own + row) + 1) * awake
    best, total, mixed = _walk(
        q, keys + start, values + start, length, best, total, mixed, scale, D, R, N
    )
    mixed = mixed / tl.maximum(total, 1e-20)[:, None]
    target = (row * HEADS + head * group + at_R[:, None]) * D + at_D[None, :]
    tl.store(out + target, mixed.to(q.dtype), mask=real)


def attend(
    qkv_BX: Tensor,
    prefix: tuple[Tensor, Tensor],
    prompt_B: Tensor,
    length_P: Tensor,
    cache: tuple[Tensor, Tensor],
    slot_B: Tensor,
    own_B: Tensor,
    live_B: Tensor,
    heads: int,
) -> Tensor:
    """One query a row against its prompt, stored once a group, and its own tokens 0 .. own_B.

    Each key/value head is read once for the R query heads that share it.
    """
    shared, width = prefix[0].shape[1], prefix[0].shape[3]
    rows, repeat = len(qkv_BX), triton.next_power_of_2(heads // shared)
    out_BX = qkv_BX.new_empty(rows, heads * width)
    _attend[(rows, shared)](
        qkv_BX, *prefix, prompt_B, length_P, *cache, slot_B, own_B, live_B, out_BX,
        width**-0.5 * 1.4426950408889634, prefix[0].shape[2], cache[0].shape[2],
        HEADS=heads, SHARED=shared, D=width, R=max(16, repeat), N=64, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out_BX


@triton.jit
def _draw(
    logits, key, own, temperature, token, logprob, V, GREEDY: tl.constexpr, BLOCK: tl.constexpr
):
    """Gumbel-max over the row, its random numbers from (key, position, token) alone."""
    row = tl.program_id(0).to(tl.int64)
    seed = tl.load(key + row) + tl.load(own + row).to(tl.int64) * 0x5851F42D4C957F2D
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_x = tl.zeros([BLOCK], tl.float32)
    best_at = tl.zeros([BLOCK], tl.int32)
    for start in range(0, V, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row * V + at, mask=at < V, other=float("-inf")).to(tl.float32)
        x = x / temperature
        higher = tl.maximum(top, x)
        # a lane that has seen nothing but -inf must not compute -inf - -inf
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        mass = mass * tl.exp(top - safe) + tl.exp(x - safe)
        top = higher
        score = x
        if not GREEDY:
            u = tl.maximum(tl.rand(seed, at), 1e-10)
            score = x - tl.log(-tl.log(u))
        wins = score > best
        best = tl.where(wins, score, best)
        best_x = tl.where(wins, x, best_x)
        best_at = tl.where(wins, at, best_at)
    peak = tl.max(top, 0)
    total = tl.sum(mass * tl.exp(top - peak), 0)
    winner = tl.max(best, 0)
    chosen = tl.min(tl.where(best == winner, best_at, 2147483647), 0)
    x = tl.sum(tl.where((best == winner) & (best_at == chosen), best_x, 0.0), 0)
    tl.store(token + row, chosen.to(tl.int64))
    tl.store(logprob + row, x - peak - tl.log(total))


def draw(logits_BV: Tensor, key_B: Tensor, own_B: Tensor, temperature: float) -> tuple[Tensor, ...]:
    """A token a row and its log-probability, in one pass over the logits; 0 is greedy."""
    rows, size = logits_BV.shape
    token_B = torch.empty(rows, dtype=torch.int64, device=logits_BV.device)
    logprob_B = torch.empty(rows, dtype=torch.float32, device=logits_BV.device)
    _draw[(rows,)](
        logits_BV, key_B, own_B, temperature or 1.0, token_B, logprob_B, size,
        GREEDY=temperature == 0, BLOCK=min(4096, triton.next_power_of_2(size)), num_warps=8,
    )  # fmt: skip
    return token_B, logprob_B
