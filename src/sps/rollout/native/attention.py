"""Decode attention over a prompt shared by its samples and each sample's own tokens.

Registered with transformers' AttentionInterface, so it serves every decoder that goes through it:
the model's own code runs unchanged, only where keys and values live is ours.

    prefix  [P, H, L, D]   keys and values of the prompt, stored once a group
    own     [B, H, T, D]   those of the sampled tokens

A prompt of at most SHORT tokens is copied in front of each row's own tokens instead: one product
over both is then faster than two. H counts key/value heads; R query heads share each. Rows are laid
out [P, G], group by group.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "sps_split"
SHORT = 32
PREFILL = 65_536  # prompt tokens run at once
# On a CPU it is twice as fast to multiply a whole buffer and mask what is not filled than to read a
# strided part of it, so buffers grow in small steps; and torch multiplies matrices of fewer than
# 400 products one by one, several times slower than a batch of them.
_BLOCK, _GROWTH, _SMALL = 32, 1.25, 400


@contextmanager
def sampling_mode(model: Any) -> Iterator[None]:
    """Our attention, plain layers and no dropout while we sample; then the model is as it was.

    A compiled layer would be compiled again for shapes that change with every token.
    """
    config, training, before = model.config, model.training, model.config._attn_implementation
    config._attn_implementation = NAME
    if training:
        model.eval()
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        config._attn_implementation = before
        if training:
            model.train()


class Arena:
    """Memory kept from one wave to the next: fresh pages cost more than the work done on them."""

    def __init__(self) -> None:
        self.flat: dict[tuple, Tensor] = {}

    def room(self, name: tuple, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of this shape; what it holds is finite, but old."""
        size = math.prod(shape)
        flat = self.flat.get(name)
        if flat is None or flat.numel() < size or flat.dtype != like.dtype:
            flat = self.flat[name] = like.new_zeros(size)
        return flat[:size].view(shape)


class SplitCache:
    """Keys and values of a batch of groups. Stands where transformers expects its own cache."""

    is_compileable = False

    def __init__(
        self, lengths_P: Tensor, width: int, max_new_tokens: int, group: int, arena: Arena
    ):
        self.lengths_P, self.width, self.arena = lengths_P, width, arena
        self.group = group  # rows a prompt
        self.copied = width if width <= SHORT else 0  # prompt tokens in front of each row's own
        self.limit = self.copied + max_new_tokens
        self.positions = width + max_new_tokens  # no token's position reaches this
        self.filled = 0  # own tokens written by every layer
        self.layers: dict[int, Layer] = {}  # once all prompts have been run
        self.prompts: dict[int, list[tuple[Tensor, Tensor]]] = {}
        position_L = torch.arange(width, device=lengths_P.device)
        ragged = bool((lengths_P < width).any())
        self.padding_PL = position_L >= lengths_P[:, None] if ragged else None

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple:
        """Store what a layer computed. The layer itself is handed on to `attend` as the keys."""
        if not self.layers:
            self.prompts.setdefault(layer, []).append((key, value))
            return key, value
        self.layers[layer].append(key[:, :, 0], value[:, :, 0], self.filled)
        return self.layers[layer], None

    def begin(self) -> None:
        """All prompts have been run: room for the tokens that follow."""
        for layer in list(self.prompts):
            keys, values = zip(*self.prompts.pop(layer), strict=True)
            self.layers[layer] = Layer(self, layer, _joined(keys), _joined(values))

    def position(self) -> Tensor | int:
        """Of the token being decoded, a row each; a plain number when it is the same for all."""
        if self.padding_PL is None:
            return self.width + self.filled
        position_P = self.lengths_P + self.filled
        return position_P[:, None].expand(-1, self.group).reshape(-1)

    def get_seq_length(self, layer: int = 0) -> int:
        """Not used for positions, which the engine passes itself."""
        return self.filled

    def keep(self, groups: Tensor, rows: Tensor, group: int) -> None:
        """Drop every row but these, and every prompt but those of `groups`."""
        self.lengths_P, self.group = self.lengths_P[groups], group
        if self.padding_PL is not None:
            self.padding_PL = self.padding_PL[groups]
        for layer in self.layers.values():
            layer.keep(groups, rows)


class Layer:
    """One layer's share of a SplitCache."""

    def __init__(self, cache: SplitCache, number: int, key: Tensor, value: Tensor):
        # Not the cache itself: in a cycle, a wave's keys would stay until Python looks for cycles.
        self.cache: SplitCache = weakref.proxy(cache)
        self.number, self.turn = number, 0
        self.prefix_key, self.prefix_value = key, value
        self.key, self.value = self._room(len(key) * cache.group, key, 0)
        if cache.copied:
            self._by_group(self.key)[:, :, :, : cache.copied] = key[:, None]
            self._by_group(self.value)[:, :, :, : cache.copied] = value[:, None]

    def append(self, key: Tensor, value: Tensor, at: int) -> None:
        """Store token number `at` of every row, [B, H, D]."""
        at += self.cache.copied
        if at >= self.key.shape[2]:
            wide_key, wide_value = self._room(len(self.key), self.key, at)
            wide_key[:, :, :at], wide_value[:, :, :at] = self.key, self.value
            self.key, self.value = wide_key, wide_value
        self.key[:, :, at], self.value[:, :, at] = key, value

    def keep(self, groups: Tensor, rows: Tensor) -> None:
        """Drop the other groups and rows."""
        self.prefix_key, self.prefix_value = self.prefix_key[groups], self.prefix_value[groups]
        self.key, self.value = self.key[rows], self.value[rows]

    def _by_group(self, own: Tensor) -> Tensor:
        return own.view(-1, self.cache.group, *own.shape[1:])

    def _room(self, rows: int, like: Tensor, filled: int) -> tuple[Tensor, Tensor]:
        """Keys and values for more tokens than are filled; what is not written yet is masked."""
        size = min(self.cache.limit, max(_BLOCK, int(_GROWTH * filled)))
        size = max(size, 1 + _SMALL // like.shape[3])
        shape = (rows, like.shape[1], size, like.shape[3])
        self.turn += 1  # old and new must not be the same memory while one is copied to the other
        names = [(self.number, part, self.turn % 2) for part in ("key", "value")]
        key, value = (self.cache.arena.room(name, shape, like) for name in names)
        return key, value


def attend(
    module: Any,
    query: Tensor,
    key: Tensor | Layer,
    value: Tensor | None,
    attention_mask: None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: the prompt's forward pass, or one decode step."""
    scaling = scaling if scaling is not None else query.shape[-1] ** -0.5
    if isinstance(key, Layer):
        return decode(query, key, scaling, sliding_window, softcap), None
    assert value is not None
    return causal(query, key, value, scaling, sliding_window, softcap), None


def causal(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None, cap: float | None
) -> Tensor:
    """Causal attention. Prompts are padded on the right, so no real token ever sees a pad."""
    length = query.shape[2]
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    if not cap and (not window or window >= length):
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
        return out.transpose(1, 2)
    at_L = torch.arange(length, device=query.device)
    back_LL = at_L[:, None] - at_L[None, :]
    hidden_LL = (back_LL < 0) | (back_LL >= (window or length))
    scores = _capped(query @ key.transpose(2, 3) * scaling, cap).masked_fill(hidden_LL, -torch.inf)
    return (scores.softmax(-1, dtype=torch.float32).to(query.dtype) @ value).transpose(1, 2)


def decode(
    query: Tensor, layer: Layer, scaling: float, window: int | None, cap: float | None
) -> Tensor:
    """One new token a row, [B, heads, 1, D], against what it sees; its own key is stored."""
    cache = layer.cache
    rows, heads, _, width = query.shape
    shared = layer.key.shape[1]
    query = (query * scaling).reshape(rows, shared, heads // shared, width)
    weights = _normalise(_scores(query, layer, window, cap)).to(query.dtype)
    length = 0 if cache.copied else layer.prefix_key.shape[2]
    out = weights[..., length:] @ layer.value
    if not cache.copied:
        on_prefix = _by_group(weights[..., :length], cache.group)
        out = out + _by_row(on_prefix @ layer.prefix_value, cache.group)
    return out.reshape(rows, 1, heads, width)


def _scores(query: Tensor, layer: Layer, window: int | None, cap: float | None) -> Tensor:
    """Scores [B, H, R, .] over the prompt and the row's own tokens; -inf where it sees nothing."""
    cache = layer.cache
    now = cache.copied + cache.filled + 1
    own = _capped(query @ layer.key.transpose(2, 3), cap)
    if now < own.shape[-1]:
        own[..., now:] = -torch.inf
    if window and cache.filled + 1 > window:
        own[..., cache.copied : now - window] = -torch.inf
    hidden_PL = _hidden(cache, layer.prefix_key.shape[2], window)
    if cache.copied:
        if hidden_PL is not None:
            hidden_BL = hidden_PL.repeat_interleave(cache.group, 0)
            own[..., : cache.copied].masked_fill_(hidden_BL[:, None, None, :], -torch.inf)
        return own
    prefix = _capped(_by_group(query, cache.group) @ layer.prefix_key.transpose(2, 3), cap)
    if hidden_PL is not None:
        prefix.masked_fill_(hidden_PL[:, None, None, :], -torch.inf)
    return torch.cat([_by_row(prefix, cache.group), own], -1)


def _normalise(scores: Tensor) -> Tensor:
    """Softmax in float32. Written out: torch's own is several times slower on short rows."""
    scores = scores.float()
    mass = (scores - scores.amax(-1, keepdim=True)).exp_()
    return mass / mass.sum(-1, keepdim=True)


def _by_group(x: Tensor, group: int) -> Tensor:
    """[B, H, R, D] -> [P, H, G*R, D]: all queries of a group in one matrix."""
    rows, shared, repeat, width = x.shape
    x = x.reshape(rows // group, group, shared, repeat, width).transpose(1, 2)
    return x.reshape(rows // group, shared, group * repeat, width)


def _by_row(x: Tensor, group: int) -> Tensor:
    """The inverse of _by_group."""
    groups, shared, joined, width = x.shape
    x = x.view(groups, shared, group, joined // group, width).transpose(1, 2)
    return x.reshape(groups * group, shared, joined // group, width)


def _hidden(cache: SplitCache, length: int, window: int | None) -> Tensor | None:
    """Prompt positions that the token being decoded does not see: pads, and outside the window."""
    position_P = cache.lengths_P + cache.filled
    if not window or int(position_P.max()) < window:
        return cache.padding_PL
    old_PL = torch.arange(length, device=position_P.device) <= position_P[:, None] - window
    return old_PL if cache.padding_PL is None else old_PL | cache.padding_PL


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    """No copy of what is whole already."""
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _capped(scores: Tensor, cap: float | None) -> Tensor:
    return scores if not cap else torch.tanh(scores / cap) * cap


AttentionInterface.register(NAME, attend)
