"""A decode step on a GPU: bf16 products, a residual in float32, everything else in fused kernels.

It rounds where training under bf16 autocast rounds, so its log-probabilities are the trainer's.
Serves the decoders of rollout/native/layers.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from sps.rollout.cuda import kernels
from sps.rollout.cuda import mlp_kernels as products
from sps.rollout.cuda.copies import Copies
from sps.rollout.native.layers import head_width

Cache = tuple[Tensor, Tensor]  # keys and values of one layer


class Decoder:
    """bf16 copies of the projections, joined where they share their input."""

    def __init__(self, model: Any):
        config = model.config
        self.heads, self.shared = config.num_attention_heads, config.num_key_value_heads
        self.width = head_width(config)
        self.eps, self.rotary = config.rms_norm_eps, model.base_model.rotary_emb
        self.embed, self.norm = model.get_input_embeddings(), model.base_model.norm
        self.copies = Copies()
        self.layers = [self._layer(layer) for layer in model.base_model.layers]
        self.head = self.copies.weights([model.get_output_embeddings()])
        self.table: tuple[Tensor, Tensor] | None = None

    def refresh(self) -> None:
        """Follow the trainer's weights."""
        self.copies.refresh()

    def prepare(self, positions: int) -> None:
        """Rotations for this many positions; must be done before a step is captured."""
        if self.table is None or len(self.table[0]) < positions:
            every = torch.arange(positions, device=self.embed.weight.device)[None]
            cos, sin = self.rotary(self.embed.weight[:1].float(), every)
            self.table = cos[0].float().contiguous(), sin[0].float().contiguous()

    def __call__(
        self, state: kernels.State, length_P: Tensor, prefix: list[Cache], cache: list[Cache]
    ) -> Tensor:
        """Logits after one more token a row."""
        assert self.table is not None  # prepare() came first
        residual_BD = self.embed.weight[state.token].float()
        more_BD: Tensor | None = None
        for layer, shared, own in zip(self.layers, prefix, cache, strict=True):
            x_BD = self._norm(more_BD, residual_BD, layer["norm_in"])
            qkv_BX = linear(x_BD, layer["qkv"], layer["bias"])
            where = (state, length_P, shared, own, self.heads, layer["norms"], self.eps)
            mixed_BX = kernels.attend(qkv_BX, self.table, *where)
            more_BD = linear(mixed_BX, layer["out"])
            x_BD = self._norm(more_BD, residual_BD, layer["norm_mlp"])
            more_BD = linear(products.silu_product(x_BD, layer["gate_up"]), layer["down"])
        return linear(self._norm(more_BD, residual_BD, self.norm.weight), self.head)

    def logits(self, hidden_PD: Tensor) -> Tensor:
        """Logits of hidden states that the model's own code computed."""
        return linear(hidden_PD.to(self.head.dtype), self.head)

    def _norm(self, more_BD: Tensor | None, residual_BD: Tensor, weight_D: Tensor) -> Tensor:
        return products.add_norm(more_BD, residual_BD, weight_D, self.eps, self.head.dtype)

    def _layer(self, layer: Any) -> dict[str, Any]:
        attention, mlp = layer.self_attn, layer.mlp
        joined = [attention.q_proj, attention.k_proj, attention.v_proj]
        biased = joined[0].bias is not None
        normed = hasattr(attention, "q_norm")
        join = self.copies.weights
        return {
            "qkv": join(joined),
            "bias": self.copies.biases(joined) if biased else None,
            "out": join([attention.o_proj]),
            "gate_up": join([mlp.gate_proj, mlp.up_proj]),
            "down": join([mlp.down_proj]),
            "norm_in": layer.input_layernorm.weight,
            "norm_mlp": layer.post_attention_layernorm.weight,
            "norms": (attention.q_norm.weight, attention.k_norm.weight) if normed else None,
        }
