"""A Llama-like decoder in a third of the operations of the model's own code, for sampling.

Serves Llama, SmolLM, Qwen2, Qwen3 and Mistral shapes: RMSNorm, rotary positions, grouped heads,
SwiGLU, optional biases, optional norms of queries and keys. Other decoders run their own code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu

from sps.rollout.adapters import mergeable
from sps.rollout.native.attention import Layer, SplitCache, causal, decode

_FAMILIES = {"llama", "qwen2", "qwen3", "mistral"}
_ROPES = {
    "default",
    "linear",
    "llama3",
    "yarn",
}  # those whose rotation depends on the position alone

Turn = tuple[Tensor, Tensor]  # cos, and sin with a sign, of each token's position
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # queries, keys, values of the same tokens


def supports(model: Any) -> bool:
    """Whether this model computes exactly what FusedStep does."""
    return _known(model.config) and not hasattr(model, "peft_config")


def _known(config: Any) -> bool:
    plain = config.model_type in _FAMILIES and config.hidden_act == "silu"
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    biased = getattr(config, "mlp_bias", False)
    return plain and window is None and rope in _ROPES and not biased


def supports_kernels(model: Any) -> bool:
    """Whether the GPU kernels serve it, too: heads a power of two wide, no bias after them. They
    read copies of the weights, and adapters are merged into those."""
    width = head_width(model.config)
    # Of the output, too, where there is one.
    biased = getattr(model.config, "attention_bias", False)
    fits = width >= 32 and width & (width - 1) == 0 and not biased
    # peft's own wrapper around a model has another tree of modules.
    own = not hasattr(model, "peft_config") or getattr(model, "_hf_peft_config_loaded", False)
    return _known(model.config) and fits and own and mergeable(model)


def head_width(config: Any) -> int:
    """Numbers in a key; a model may say, or not."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


class FusedStep:
    """Holds joined copies of the projections; `refresh` follows the trainer's weights."""

    def __init__(self, model: Any):
        config = model.config
        self.heads, self.shared = config.num_attention_heads, config.num_key_value_heads
        self.width = head_width(config)
        self.eps, self.rotary = config.rms_norm_eps, model.base_model.rotary_emb
        self.layers = [_Layer(layer, self.eps) for layer in model.base_model.layers]
        self.embed = model.get_input_embeddings()
        self.norm = model.base_model.norm
        self.table: Turn | None = None

    def refresh(self) -> None:
        """Copy the projections that are joined; the rest is read in place."""
        for layer in self.layers:
            layer.refresh()

    def __call__(self, token_B: Tensor, cache: SplitCache) -> Tensor:
        """The last hidden state of one more token a row; its keys and values go to the cache."""
        x_BD = embedding(token_B, self.embed.weight)
        turn = self._rotation(x_BD, cache.position(), cache.positions)
        for layer, kept in zip(self.layers, cache.layers.values(), strict=True):

            def attend(q: Tensor, k: Tensor, v: Tensor, kept: Layer = kept) -> Tensor:
                kept.append(k, v, cache.filled)
                return decode(q[:, :, None], kept, self.width**-0.5, None, None)

            x_BD = self._layer(layer, x_BD, turn, attend)
        return rms_norm(x_BD, x_BD.shape[-1:], self.norm.weight, self.eps)

    def prompt(self, ids_PL: Tensor, cache: SplitCache) -> Tensor:
        """The hidden states [P, L, D] of prompts padded on the right; fills the cache."""
        prompts, length = ids_PL.shape
        x_ND = embedding(ids_PL.flatten(), self.embed.weight)
        position_N = torch.arange(length, device=ids_PL.device).repeat(prompts)
        turn = self._rotation(x_ND, position_N, cache.positions)
        for number, layer in enumerate(self.layers):

            def attend(q: Tensor, k: Tensor, v: Tensor, number: int = number) -> Tensor:
                q, k, v = (
                    t.view(prompts, length, -1, self.width).transpose(1, 2) for t in (q, k, v)
                )
                cache.update(k, v, number)
                return causal(q, k, v, self.width**-0.5, None, None)

            x_ND = self._layer(layer, x_ND, turn, attend)
        x_ND = rms_norm(x_ND, x_ND.shape[-1:], self.norm.weight, self.eps)
        return x_ND.view(prompts, length, -1)

    def _rotation(self, x_ND: Tensor, position_N: Tensor | int | slice, size: int) -> Turn:
        """cos, and sin with the sign of rotate_half, for each token: [N, 1, D] from a table."""
        if self.table is None or self.table[0].shape[0] < size:
            every = torch.arange(size, device=x_ND.device)[None]
            cos, sin = (part[0, :, None] for part in self.rotary(x_ND, every))
            half = self.width // 2
            self.table = cos, torch.cat([-sin[..., :half], sin[..., half:]], -1)
        if isinstance(position_N, int):  # the same for all: a row that is broadcast
            position_N = slice(position_N, position_N + 1)
        return self.table[0][position_N], self.table[1][position_N]

    def _layer(self, layer: _Layer, x_ND: Tensor, turn: Turn, attend: Attend) -> Tensor:
        rows, turned = len(x_ND), self.heads + self.shared
        joined = linear(self._scaled(x_ND), layer.qkv, layer.bias)
        joined = joined.view(rows, turned + self.shared, self.width)
        to_turn = layer.normed(joined[:, :turned], self.heads)
        # rotate_half(x) * sin == roll(x, half) * (-sin, +sin): three operations instead of six.
        turned_NHD = torch.addcmul(to_turn * turn[0], to_turn.roll(self.width // 2, -1), turn[1])
        mixed = attend(turned_NHD[:, : self.heads], turned_NHD[:, self.heads :], joined[:, turned:])
        x_ND = torch.addmm(x_ND, mixed.reshape(rows, -1), layer.out.weight.t())
        if layer.out.bias is not None:
            x_ND = x_ND + layer.out.bias
        gate, up = linear(self._scaled(x_ND), layer.gate_up).chunk(2, -1)
        return torch.addmm(x_ND, silu(gate).mul_(up), layer.down.weight.t())

    def _scaled(self, x_ND: Tensor) -> Tensor:
        """RMSNorm without its weight, which is folded into the projection that follows."""
        wide = x_ND.float()
        return (wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()).to(x_ND.dtype)


class _Layer:
    """The weights of one layer, projections of the same input joined."""

    def __init__(self, layer: Any, eps: float):
        attention, mlp = layer.self_attn, layer.mlp
        self.norm_in, self.norm_mlp = layer.input_layernorm, layer.post_attention_layernorm
        self.out, self.down, self.eps = attention.o_proj, mlp.down_proj, eps
        self._qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
        self._mlp = [mlp.gate_proj, mlp.up_proj]
        self.q_norm: Any = getattr(attention, "q_norm", None)
        self.k_norm: Any = getattr(attention, "k_norm", None)
        self.bias: Any = None
        self.qkv: Any = None  # tensors from the first refresh on
        self.gate_up: Any = None

    @torch.no_grad()
    def refresh(self) -> None:
        """Join, with the weight of the norm before them folded in."""
        self.qkv = _join([p.weight * self.norm_in.weight for p in self._qkv], self.qkv)
        self.gate_up = _join([p.weight * self.norm_mlp.weight for p in self._mlp], self.gate_up)
        if self._qkv[0].bias is not None:
            self.bias = _join([p.bias for p in self._qkv], self.bias)

    def normed(self, to_turn: Tensor, heads: int) -> Tensor:
        """Qwen3 norms each head of the queries and keys."""
        if self.q_norm is None:
            return to_turn
        size = to_turn.shape[-1:]
        q = rms_norm(to_turn[:, :heads], size, self.q_norm.weight, self.eps)
        k = rms_norm(to_turn[:, heads:], size, self.k_norm.weight, self.eps)
        return torch.cat([q, k], 1)


def _join(parts: list[Tensor], into: Tensor | None) -> Tensor:
    """Concatenate into memory that is already there, so that a captured graph keeps reading it."""
    return torch.cat(parts, out=into) if into is not None else torch.cat(parts)
