"""A decode step on a GPU: bf16 products, a residual in float32, everything else in fused kernels.

It rounds where training under bf16 autocast rounds, so its log-probabilities are the trainer's.
Serves the decoders of rollout/native/layers.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from sps.rollout.cuda import attention, products
from sps.rollout.cuda.copies import Copies
from sps.rollout.cuda.state import PAGE, State
from sps.rollout.native.layers import head_width

Cache = tuple[Tensor, Tensor]  # keys and values of one layer


class Decoder:
    """bf16 copies of the projections, joined where they share their input."""

    kind = torch.bfloat16

    def __init__(self, model: Any):
        config = model.config
        self.heads, self.shared = config.num_attention_heads, config.num_key_value_heads
        self.width = head_width(config)
        self.eps, self.rotary = config.rms_norm_eps, model.base_model.rotary_emb
        self.embed, self.norm = model.get_input_embeddings(), model.base_model.norm
        self.copies = Copies(self.kind)
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
        self,
        state: State,
        length_P: Tensor,
        cache: list[Cache],
        pages_SM: Tensor,
        runs: bool = False,
    ) -> Tensor:
        """Logits after one more token a row; in `runs` rows see the tokens of others."""
        assert self.table is not None  # prepare() came first
        longest = pages_SM.shape[1] * PAGE
        plan = attention.plan_for(len(state.token), self.shared, self.width, longest)
        residual_BD = self.embed.weight[state.token].float()
        more: Tensor | None = None  # of the residual: a product, or the parts of one
        for layer, both in zip(self.layers, cache, strict=True):
            x_BD = self._norm(more, residual_BD, layer["norm_in"])
            qkv_BX = products.product(x_BD, layer["qkv"], layer["bias"])
            where = (state, length_P, both, pages_SM, self.heads, layer["norms"], self.eps)
            mixed_BX = attention.attend(qkv_BX, self.table, *where, plan, runs)
            more = products.product(mixed_BX, layer["out"], parts=True)
            x_BD = self._norm(more, residual_BD, layer["norm_mlp"])
            wide_BF = products.silu_product(x_BD, layer["gate_up"])
            more = products.product(wide_BF, layer["down"], parts=True)
        return products.product(self._norm(more, residual_BD, self.norm.weight), self.head)

    def logits(self, hidden_PD: Tensor) -> Tensor:
        """Logits of hidden states that the model's own code computed."""
        return linear(hidden_PD.to(self.head.dtype), self.head)

    def _norm(self, more: Tensor | None, residual_BD: Tensor, weight_D: Tensor) -> Tensor:
        return products.add_norm(more, residual_BD, weight_D, self.eps, self.head.dtype)

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
