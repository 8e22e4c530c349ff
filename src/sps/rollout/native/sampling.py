"""Drawing tokens: counter-based random numbers, truncation, and the Gumbel-max rule.

Each token has a number of its own at each position of each row; drawn is the one whose logit and
number add up to most. Logits that differ by rounding then draw the same token nearly always; by
cumulated probabilities a border that passes the one random number is a thousand times as likely.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def row_keys(seed: int, index_B: np.ndarray, sample_B: np.ndarray) -> np.ndarray:
    """One 64-bit key a row, from (seed, index, sample) alone."""
    with np.errstate(over="ignore"):
        start = _mix(np.array([seed & (2**64 - 1)], dtype=np.uint64) + _GAMMA)
        key_B = _mix(start ^ (index_B.astype(np.uint64) * _GAMMA))
        return _mix(key_B ^ (sample_B.astype(np.uint64) + _GAMMA))


def streams(key_B: np.ndarray, start: int, count: int) -> Tensor:
    """64 random bits for tokens start .. start+count of each row, as int64 [B, count].

    They depend on the row's key and the position alone: a row has the same in any batch.
    """
    with np.errstate(over="ignore"):
        position_T = np.arange(start + 1, start + count + 1, dtype=np.uint64) * _GAMMA
        bits_BT = _mix(key_B[:, None] + position_T[None, :])
    return torch.from_numpy(bits_BT.view(np.int64))


def stream_at(key_B: Tensor, position_B: Tensor) -> Tensor:
    """The same bits, those of one position for each row, computed where the tensors are."""
    return _mix_signed(key_B + (position_B.long() + 1) * _signed(int(_GAMMA)))


def gumbels(stream_B: Tensor, size: int) -> Tensor:
    """Gumbel numbers for each of so many tokens, as float32 [B, size]: from a row's bits and the
    token alone. Whoever is largest with its logit added is drawn by softmax of the logits."""
    token_V = _mix_32(torch.arange(1, size + 1, dtype=torch.int32, device=stream_B.device))
    low_B1, high_B1 = stream_B[:, None].int(), _shifted(stream_B[:, None], 32).int()
    x_BV = (token_V ^ low_B1).mul_(high_B1 | 1)
    x_BV ^= (x_BV >> 15).bitwise_and_(0x1FFFF)
    x_BV *= (high_B1 << 1) ^ _signed_32(0x846CA68B)  # one for all would tie some tokens together
    x_BV ^= (x_BV >> 16).bitwise_and_(0xFFFF)
    # Largest where u is small, which is where float32 tells numbers apart. The factor is just below
    # 2^-31: u never rounds to 1, whose Gumbel number is -inf and loses to a token without mass.
    u_BV = x_BV.bitwise_and_(0x7FFFFFFF).float().mul_(2.0**-31 - 2.0**-55).add_(2.0**-32)
    return u_BV.neg_().log1p_().neg_().log_().neg_()


def _signed(x: int) -> int:
    return x - 2**64 if x >= 2**63 else x


def _shifted(x: Tensor, by: int) -> Tensor:
    """Logical shift to the right of 64-bit numbers that torch holds as signed."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _mix_signed(x: Tensor) -> Tensor:
    """`_mix` on tensors: signed multiplication wraps around to the same bits."""
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _signed_32(x: int) -> int:
    return x - 2**32 if x >= 2**31 else x


def _mix_32(x: Tensor) -> Tensor:
    """A finaliser of 32 bits (Wellons' lowbias32), in place."""
    x ^= (x >> 16) & 0xFFFF
    x *= _signed_32(0x7FEB352D)
    x ^= (x >> 15) & 0x1FFFF
    x *= _signed_32(0x846CA68B)
    x ^= (x >> 16) & 0xFFFF
    return x


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def draw(
    logits_BV: Tensor, stream_B: Tensor, temperature: float, top_p: float, top_k: int
) -> tuple[Tensor, Tensor]:
    """A token for each row, and its log-probability before truncation. Temperature 0 is greedy."""
    if temperature == 0:
        logp_BV = logits_BV.float().log_softmax(-1)
        best = logp_BV.max(-1)
        return best.indices, best.values
    logits_BV = logits_BV.float() / temperature if temperature != 1 else logits_BV.float()
    logits_BV = logits_BV - logits_BV.amax(-1, keepdim=True)  # at low temperatures they are large
    score_BV = gumbels(stream_B, logits_BV.shape[-1]).add_(logits_BV)
    if top_p < 1 or top_k:
        kept_BV = _truncate(logits_BV.softmax(-1), top_p, top_k)
        score_BV = torch.where(kept_BV > 0, score_BV, -torch.inf)
    token_B1 = score_BV.argmax(-1, keepdim=True)
    logp_B1 = logits_BV.gather(-1, token_B1) - logits_BV.logsumexp(-1, keepdim=True)
    return token_B1[:, 0], logp_B1[:, 0]


def _truncate(p_BV: Tensor, top_p: float, top_k: int) -> Tensor:
    """Zero what top-k and then top-p leave out; the rest is not renormalised."""
    if top_k and top_k < p_BV.shape[-1]:
        floor_B1 = p_BV.topk(top_k, dim=-1).values[:, -1:]
        p_BV = torch.where(p_BV >= floor_B1, p_BV, 0.0)
    if top_p < 1:
        ordered_BV, place_BV = p_BV.sort(dim=-1, descending=True)
        before_BV = ordered_BV.cumsum(-1) - ordered_BV
        total_B1 = p_BV.sum(-1, keepdim=True)
        kept_BV = torch.where(before_BV < top_p * total_B1, ordered_BV, 0.0)
        p_BV = torch.zeros_like(p_BV).scatter_(-1, place_BV, kept_BV)
    return p_BV
