"""Drawing tokens: counter-based random numbers, truncation, and inverse-CDF sampling."""

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


def uniforms(key_B: np.ndarray, start: int, count: int) -> Tensor:
    """Numbers in [0, 1) for tokens start .. start+count of each row, as float32 [B, count].

    Each depends on the row's key and the position alone: a row draws the same in any batch.
    """
    with np.errstate(over="ignore"):
        position_T = np.arange(start + 1, start + count + 1, dtype=np.uint64) * _GAMMA
        bits_BT = _mix(key_B[:, None] + position_T[None, :])
    return torch.from_numpy((bits_BT >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))


def uniform_at(key_B: Tensor, position_B: Tensor) -> Tensor:
    """The same numbers, one a row at its own position, computed where the tensors are."""
    bits_B = _mix_signed(key_B + (position_B.long() + 1) * _signed(int(_GAMMA)))
    return _shifted(bits_B, 40).float() * 2**-24


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


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def draw(
    logits_BV: Tensor, uniform_B: Tensor, temperature: float, top_p: float, top_k: int
) -> tuple[Tensor, Tensor]:
    """A token for each row, and its log-probability before truncation. Temperature 0 is greedy."""
    if temperature == 0:
        logp_BV = logits_BV.float().log_softmax(-1)
        best = logp_BV.max(-1)
        return best.indices, best.values
    logits_BV = logits_BV.float() / temperature if temperature != 1 else logits_BV.float()
    top_B1 = logits_BV.amax(-1, keepdim=True)
    mass_BV = (logits_BV - top_B1).exp_()
    total_B1 = mass_BV.sum(-1, keepdim=True)
    whole = top_p == 1 and top_k == 0
    kept_BV = mass_BV if whole else _truncate(mass_BV / total_B1, top_p, top_k)
    token_B1 = _invert(kept_BV, uniform_B)
    logp_B1 = logits_BV.gather(-1, token_B1) - top_B1 - total_B1.log()
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


def _invert(mass_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The first token whose cumulative mass exceeds u times the total; never one without mass."""
    cdf_BV = mass_BV.cumsum(-1)
    # The total is the last partial sum, not 1: rounding must not let u fall behind every token.
    # nextafter keeps u*total strictly below the total, so a massless tail is never chosen.
    total_B1 = cdf_BV[:, -1:]
    aim_B1 = torch.minimum(uniform_B[:, None] * total_B1, torch.nextafter(total_B1, total_B1 * 0))
    return torch.searchsorted(cdf_BV, aim_B1, right=True)
