"""Triton kernels of a decode step: drawing the next token, and writing it down.

Axes: B rows being decoded, S slots, T own tokens, V vocabulary. Tensors are contiguous.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sps.rollout.cuda.state import State


@triton.jit
def _mix_32(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _gumbel(key, position, at):
    """The numbers that sampling.py has for this key and position, at these tokens."""
    x = key.to(tl.uint64) + (position + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    x = x ^ (x >> 31)
    high = (x >> 32).to(tl.uint32)
    bits = (_mix_32((at + 1).to(tl.uint32)) ^ x.to(tl.uint32)) * (high | 1)
    bits = (bits ^ (bits >> 15)) * ((high << 1) ^ 0x846CA68B)
    bits = (bits ^ (bits >> 16)) & 0x7FFFFFFF
    # 2^-31 - 2^-55: u never rounds to 1, whose number is -inf.
    u = bits.to(tl.int32).to(tl.float32) * 4.6566125955216364e-10 + 2.3283064365386963e-10
    # log(1 - u), which float32 does not know where u is small.
    few = u * (1.0 + u * (0.5 + u * (0.33333334 + u * 0.25)))
    return -tl.log(tl.where(u < 0.02, few, -tl.log(1.0 - u)))


@triton.jit
def _weigh(
    logits, cold, key, own, ahead, tops, masses, scores, tokens, V,
    GREEDY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a block of a row: its largest logit, the sum of exp(logit - largest), and the token that
    is drawn of it with its score, from that logit on: large ones know no small differences."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * V + at, mask=at < V, other=float("-inf")).to(tl.float32)
    x = x * cold
    top = tl.max(x, 0)
    safe = tl.where(top == float("-inf"), 0.0, top)  # never -inf - -inf
    place = row * tl.num_programs(1) + block
    tl.store(tops + place, top)
    tl.store(masses + place, tl.sum(tl.exp(x - safe), 0))
    score = x - safe
    if not GREEDY:
        score += _gumbel(tl.load(key + row), tl.load(own + row) + ahead, at)
    best = tl.max(score, 0)
    tl.store(scores + place, best)
    # Where all is NaN none equals the largest; a token must be one of the vocabulary.
    tl.store(tokens + place, tl.minimum(tl.min(tl.where(score == best, at, V), 0), V - 1))


@triton.jit
def _pick(
    logits, cold, tops, masses, scores, tokens, token, logprob, V, blocks, MANY: tl.constexpr
):
    """The best of the blocks' tokens, and its log-probability."""
    row = tl.program_id(0).to(tl.int64)
    at_M = tl.arange(0, MANY)
    place, there = row * blocks + at_M, at_M < blocks
    top_M = tl.load(tops + place, mask=there, other=float("-inf"))
    peak = tl.max(top_M, 0)
    total = tl.sum(tl.load(masses + place, mask=there, other=0.0) * tl.exp(top_M - peak), 0)
    score_M = tl.load(scores + place, mask=there, other=float("-inf")) + (top_M - peak)
    block = tl.min(tl.where(score_M == tl.max(score_M, 0), at_M, MANY), 0)
    chosen = tl.load(tokens + row * blocks + tl.minimum(block, blocks - 1))
    x = tl.load(logits + row * V + chosen).to(tl.float32) * cold
    tl.store(token + row, chosen.to(tl.int64))
    tl.store(logprob + row, x - peak - tl.log(total))


def draw(
    logits_BV: Tensor, key_B: Tensor, own_B: Tensor, ahead: int, temperature: float
) -> tuple[Tensor, Tensor]:
    """Token number own + ahead of each row and its log-probability; temperature 0 is greedy."""
    rows, size = logits_BV.shape
    block = min(2048, triton.next_power_of_2(size))
    blocks = triton.cdiv(size, block)
    tops, masses, scores = logits_BV.new_empty(3, rows, blocks, dtype=torch.float32)
    tokens = torch.empty(rows, blocks, dtype=torch.int32, device=logits_BV.device)
    token_B = torch.empty(rows, dtype=torch.int64, device=logits_BV.device)
    logprob_B = torch.empty(rows, dtype=torch.float32, device=logits_BV.device)
    cold = 1 / (temperature or 1.0)
    _weigh[(rows, blocks)](
        logits_BV, cold, key_B, own_B, ahead, tops, masses, scores, tokens, size,
        GREEDY=temperature == 0, BLOCK=block, num_warps=4,
    )  # fmt: skip
    _pick[(rows,)](
        logits_BV, cold, tops, masses, scores, tokens, token_B, logprob_B, size, blocks,
        MANY=triton.next_power_of_2(blocks), num_warps=4,
    )  # fmt: skip
    return token_B, logprob_B


@triton.jit
def _take(
    drawn, drawn_logprob, guess, W, eos, ends, ahead, token, own, slot, live, limit, ended, ids,
    logprobs, rows, T, BLOCK: tl.constexpr,
):  # fmt: skip
    at_B = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at_B < rows
    going = there & (tl.load(live + at_B, mask=there, other=0) > 0)
    number = tl.load(own + at_B, mask=going, other=0) + ahead
    place = tl.load(slot + at_B, mask=going, other=0).to(tl.int64) * T
    most = tl.load(limit + at_B, mask=going, other=0)
    for i in range(W):
        new = tl.load(drawn + at_B * W + i, mask=going, other=0)
        logprob = tl.load(drawn_logprob + at_B * W + i, mask=going, other=0.0)
        tl.store(ids + place + number, new.to(tl.int32), mask=going)
        tl.store(logprobs + place + number, logprob, mask=going)
        over = at_B < 0
        for end in range(ends):
            over = over | (new == tl.load(eos + end))
        goes_on = (over == 0) & (number + 1 < most)
        tl.store(token + at_B, new, mask=going)
        tl.store(own + at_B, number, mask=going)
        tl.store(ended + at_B, over, mask=going)
        tl.store(live + at_B, goes_on.to(tl.int32), mask=going)
        # What was drawn behind a guess holds if the guess is what was drawn.
        going = going & goes_on & (i + 1 < W)
        going = going & (tl.load(guess + at_B * (W - 1) + i, mask=going, other=-1) == new)
        number += 1


def take(
    state: State,
    drawn: tuple[Tensor, Tensor],
    eos: Tensor,
    ahead: int,
    guess_BD: Tensor | None = None,
) -> None:
    """Write down a drawn token of every live row, and end the rows that are done.

    With guesses D + 1 tokens of a row were drawn, each behind the guesses before it: they are
    written down up to the first that is not what was guessed.
    """
    rows, room = len(state.token), state.ids_ST.shape[1]
    wide = 1 if guess_BD is None else guess_BD.shape[1] + 1
    _take[(triton.cdiv(rows, 128),)](
        *drawn, drawn[0] if guess_BD is None else guess_BD, wide, eos, len(eos), ahead,
        state.token, state.own, state.slot, state.live, state.limit, state.ended, state.ids_ST,
        state.logprobs_ST, rows, room, BLOCK=128,
    )  # fmt: skip
