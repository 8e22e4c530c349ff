"""Triton kernels of a decode step: attention over a cache of pages.

A page holds the keys and values of PAGE tokens. A slot lists the pages of its prompt, which all
samples of a group share, and then those of its own tokens.

Axes: B rows being decoded, S slots, M pages of a slot, H key/value heads, R query heads that share
each, K parts that the keys of a row are split into, D width of a head. Tensors are contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sps.rollout.cuda.device import processors, shared_memory
from sps.rollout.cuda.state import State

_PROGRAMS = 4  # on each multiprocessor, which keep a GPU busy
_LONG = 1024  # tokens of a row from which it is worth splitting
_BESIDE = 16 * 1024  # bytes of shared memory that go to other things than keys and values


@dataclass(frozen=True)
class Plan:
    """How the work of one step's attention is divided; fixed in a captured graph."""

    parts: int  # that a row's keys are split into at most
    keys: int  # keys a turn; PAGE is a multiple of it
    turns: int  # that a part has at least, unless the keys end
    warps: int
    stages: int  # turns whose loads are under way, and the one that computes


def plan_for(rows: int, shared: int, width: int, longest: int) -> Plan:
    """Few long rows are split so that all multiprocessors have work; many are not."""
    programs, fast = rows * shared, width == 128  # of other widths small programs are not measured
    split = _PROGRAMS * processors() // programs if longest >= _LONG else 1
    parts = max(1, min(16 if fast and programs >= 16 else 32, split))
    if fast and (parts > 1 or programs >= processors()):
        return Plan(parts, 32, 2, 1, 3)  # several hide one another's waiting
    few = programs < 1000 or width > 64
    keys, stages = (64, 4) if few else (32, 3)
    fit = 1 + (shared_memory() - _BESIDE) // (2 * keys * width * 2)  # keys and values in bf16
    return Plan(parts, keys, 2, 1 if width <= 64 else 2, max(2, min(stages, fit)))


@triton.jit
def _turned(source, where, real, weight, cos, sin, eps, D: tl.constexpr, NORM: tl.constexpr):
    """Both halves of heads, [.., D / 2] each, rotated; normed before when the model norms them."""
    at = tl.arange(0, D // 2)[None, :]
    left = tl.load(source + where + at, mask=real, other=0.0)
    right = tl.load(source + where + D // 2 + at, mask=real, other=0.0)
    kind = left.dtype
    left, right = left.to(tl.float32), right.to(tl.float32)
    if NORM:
        scale = tl.rsqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / D + eps)[:, None]
        left = ((left * scale).to(kind) * tl.load(weight + at)).to(tl.float32)
        right = ((right * scale).to(kind) * tl.load(weight + D // 2 + at)).to(tl.float32)
    return (left * cos - right * sin).to(kind), (right * cos + left * sin).to(kind)


@triton.jit
def _turn(cos, sin, position, D: tl.constexpr):
    """Cosine and sine of a position's rotation, [1, D / 2] each; both halves of a head share it."""
    at = position.to(tl.int64) * D + tl.arange(0, D // 2)[None, :]
    return tl.load(cos + at), tl.load(sin + at)


@triton.jit
def _store_new(
    source, pages, place, awake, keys, values, k_norm, cos_D, sin_D, eps, head,
    HEADS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, NORM: tl.constexpr,
    PAGE: tl.constexpr,
):  # fmt: skip
    """The new token's key, in two halves, and value of a head, which are stored at `place`."""
    at_D, at_H = tl.arange(0, D)[None, :], tl.arange(0, D // 2)[None, :]
    new = (HEADS + head) * D
    left, right = _turned(source, new, True, k_norm, cos_D, sin_D, eps, D, NORM)
    v = tl.load(source + new + SHARED * D + at_D)
    page = tl.load(pages + place // PAGE).to(tl.int64)
    into = ((page * SHARED + head) * PAGE + place % PAGE) * D
    # A row that is done may still name a slot, or pages, that belong to another row by now.
    tl.store(keys + into + at_H, left, mask=awake > 0)
    tl.store(keys + into + D // 2 + at_H, right, mask=awake > 0)
    tl.store(values + into + at_D, v, mask=awake > 0)
    return left.to(tl.float32), right.to(tl.float32), v.to(tl.float32)


@triton.jit(do_not_specialize=["M"])
def _store(
    qkv, cos, sin, k_norm, eps, keys, values, table, M, slot, prompt, prompt_length, own, live,
    HEADS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, NORM: tl.constexpr,
    PAGE: tl.constexpr,
):  # fmt: skip
    """The new tokens' keys and values alone, for rows that see those of other rows."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    awake, before = tl.load(live + row), tl.load(own + row)
    behind = tl.load(prompt_length + tl.load(prompt + row))
    pages = table + tl.load(slot + row).to(tl.int64) * M
    cos_D, sin_D = _turn(cos, sin, behind + before, D)
    _store_new(
        qkv + row * (HEADS + 2 * SHARED) * D, pages + tl.cdiv(behind, PAGE), before, awake, keys,
        values, k_norm, cos_D, sin_D, eps, head, HEADS, SHARED, D, NORM, PAGE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M", "parts", "turns"])  # compiled once for all numbers of rows
def _attend(
    qkv, cos, sin, q_norm, k_norm, eps, keys, values, table, M, slot, prompt, prompt_length,
    own, live, out, tops, totals, scale, parts, turns,
    HEADS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, NORM: tl.constexpr,
    R: tl.constexpr, N: tl.constexpr, PAGE: tl.constexpr, SPLIT: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """One part of the keys that a row sees, for the query heads that share a key/value head: `out`,
    or, where there are parts, its sum before division, the largest score and the sum of weights."""
    row, head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    group: tl.constexpr = HEADS // SHARED
    at_R, at_D, half = tl.arange(0, R), tl.arange(0, D), tl.arange(0, D // 2)
    at_N = tl.arange(0, N)[:, None] * D
    awake, before = tl.load(live + row), tl.load(own + row)  # a row that is done reads nothing
    behind = tl.load(prompt_length + tl.load(prompt + row))
    pages = table + tl.load(slot + row).to(tl.int64) * M
    first_own, blocks = tl.cdiv(behind, PAGE), tl.cdiv(behind, N) * awake
    count = blocks + tl.cdiv(before, N) * awake
    each = tl.maximum(tl.cdiv(count, parts), turns) if SPLIT else count
    place = (row * HEADS + head * group + at_R) * parts + part
    if (part > 0) & (part * each >= count):
        tl.store(tops + place, tl.full([R], float("-inf"), tl.float32), mask=at_R < group)
        return
    cos_D, sin_D = _turn(cos, sin, behind + before, D)
    source = qkv + row * (HEADS + 2 * SHARED) * D
    where, real = (head * group + at_R[:, None]) * D, (at_R < group)[:, None]
    left, right = _turned(source, where, real, q_norm, cos_D, sin_D, eps, D, NORM)
    best = tl.full([R], float("-inf"), tl.float32)
    total, mixed = tl.zeros([R], tl.float32), tl.zeros([R, D], tl.float32)
    if part == 0:  # the new token is the first to be seen
        new_left, new_right, new_v = _store_new(
            source, pages + first_own, before, awake * STORE, keys, values, k_norm, cos_D, sin_D,
            eps, head, HEADS, SHARED, D, NORM, PAGE,
        )  # fmt: skip
        best = tl.sum(left.to(tl.float32) * new_left + right.to(tl.float32) * new_right, 1) * scale
        total, mixed = total + 1.0, mixed + new_v
    # one loop over prompt and own tokens, so that loads of these are under way during the prompt
    for block in range(part * each, tl.minimum(part * each + each, count)):
        first = block < blocks
        start = tl.where(first, block, block - blocks) * N
        page = tl.load(pages + tl.where(first, 0, first_own) + start // PAGE).to(tl.int64)
        seen = start + tl.arange(0, N) < tl.where(first, behind, before)
        there = ((page * SHARED + head) * PAGE + start % PAGE) * D
        k_left = tl.load(keys + there + at_N + half[None, :])
        k_right = tl.load(keys + there + D // 2 + at_N + half[None, :])
        scores = tl.dot(left, tl.trans(k_left), input_precision="ieee")
        scores = tl.dot(right, tl.trans(k_right), scores, input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        top = tl.maximum(best, tl.max(scores, 1))
        shrink, mass = tl.exp2(best - top), tl.exp2(scores - top[:, None])
        v = tl.load(values + there + at_N + at_D[None, :], mask=seen[:, None], other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(mass.to(v.dtype), v, input_precision="ieee")
        best, total = top, total * shrink + tl.sum(mass, 1)
    if SPLIT:
        tl.store(tops + place, best, mask=at_R < group)
        tl.store(totals + place, total, mask=at_R < group)
    else:
        mixed = mixed / total[:, None]
    place = place[:, None] * D + at_D[None, :]
    tl.store(out + place, mixed.to(out.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=["parts"])
def _join(
    mixes, tops, totals, out, parts, D: tl.constexpr, K: tl.constexpr
):  # fmt: skip
    """The softmax over all parts of a query head's keys; a part without keys has top -inf."""
    head = tl.program_id(0).to(tl.int64)
    at_K, at_D = tl.arange(0, K), tl.arange(0, D)
    place = head * parts + at_K
    top = tl.load(tops + place, mask=at_K < parts, other=float("-inf"))
    there = top > float("-inf")
    weight = tl.exp2(top - tl.max(top, 0))
    total = tl.sum(tl.load(totals + place, mask=there, other=0.0) * weight, 0)
    real = (at_K < parts)[:, None]  # all is loaded at once, and what no part wrote is left out
    mixed = tl.load(mixes + place[:, None] * D + at_D[None, :], mask=real, other=0.0)
    mixed = tl.sum(tl.where(there[:, None], mixed, 0.0) * weight[:, None], 0) / total
    tl.store(out + head * D + at_D, mixed.to(out.dtype.element_ty))


def attend(
    qkv_BX: Tensor,
    turns: tuple[Tensor, Tensor],
    state: State,
    length_P: Tensor,
    cache: tuple[Tensor, Tensor],
    table_SM: Tensor,
    heads: int,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    plan: Plan,
    runs: bool = False,
) -> Tensor:
    """One token a row: its key and value are stored, and its queries see what came before.

    That is its prompt, stored once a group, and its own tokens. Each key/value head is read once
    for the R query heads that share it. In `runs` rows share a slot and see one another's tokens.
    """
    rows, (_, shared, page, width) = len(qkv_BX), cache[0].shape
    out_BX = qkv_BX.new_empty(rows, heads * width)
    into, tops, totals = out_BX, turns[0], turns[0]  # any pointers, where there are no parts
    if plan.parts > 1:
        into = qkv_BX.new_empty(rows * heads * plan.parts, width, dtype=torch.float32)
        tops, totals = qkv_BX.new_empty(2, rows * heads * plan.parts, dtype=torch.float32)
    if runs:  # all are stored before any is read
        _store[(rows, shared)](
            qkv_BX, *turns, (norms or turns)[1], eps, *cache, table_SM, table_SM.shape[1],
            state.slot, state.prompt, length_P, state.own, state.live, HEADS=heads, SHARED=shared,
            D=width, NORM=norms is not None, PAGE=page, num_warps=1,
        )  # fmt: skip
    _attend[(rows, shared, plan.parts)](
        qkv_BX, *turns, *(norms or turns), eps, *cache, table_SM, table_SM.shape[1], state.slot,
        state.prompt, length_P, state.own, state.live, into, tops, totals,
        width**-0.5 * 1.4426950408889634, plan.parts, plan.turns, HEADS=heads, SHARED=shared,
        D=width, NORM=norms is not None, R=max(16, triton.next_power_of_2(heads // shared)),
        N=plan.keys, PAGE=page, SPLIT=plan.parts > 1, STORE=int(not runs), num_warps=plan.warps,
        num_stages=2 * plan.stages - 1,  # half of them go to the numbers of the pages
    )  # fmt: skip
    if plan.parts > 1:
        _join[(rows * heads,)](
            into, tops, totals, out_BX, plan.parts,
            D=width, K=triton.next_power_of_2(plan.parts), num_warps=4,
        )  # fmt: skip
    return out_BX
