"""The native engine: batched sampling from any transformers decoder, with nothing to install.

A prompt is run once for its whole group and its keys and values are shared by the samples; the
cache is allocated ahead; rows that are done are dropped; tokens come with log-probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sps.errors import UserError
from sps.logits import scaled_logits
from sps.ranks import ALONE, materialise
from sps.rollout import RolloutEngine
from sps.rollout.adapters import without_adapters
from sps.rollout.native import attention
from sps.rollout.native import layers as fused
from sps.rollout.native.copied import CopiedEngine
from sps.rollout.native.sampling import draw, row_keys, streams
from sps.rollout.retry import draw_all
from sps.rollout.table import NativeConfig
from sps.types import Completion, Request, Sampling

_DROP_BELOW = 0.75  # drop finished rows once the live ones are fewer than this share


def make(
    policy: Any, max_rows: int, ranks: Any, settings: NativeConfig | None = None
) -> RolloutEngine:
    """On a GPU replayed graphs, for bf16 and models of a known shape; over sharded weights, a
    whole copy in the computation's precision on each rank."""
    if ranks.sharded:
        copy = without_adapters(deepcopy(policy.model)).requires_grad_(False)
        copy = copy.to(policy.model.compute_dtype)
        materialise(copy, ranks.accelerator.device)
        whole = replace(policy, model=copy.to(ranks.accelerator.device))
        return CopiedEngine(make(whole, max_rows, ALONE, settings), copy)
    arguments = (policy.model, policy.eos_ids, policy.pad_id, max_rows)
    on_gpu = policy.model.device.type == "cuda"
    rounded = getattr(policy.model, "compute_dtype", None) == torch.bfloat16
    if on_gpu and rounded and fused.supports_kernels(policy.model):
        from sps.rollout.cuda.engine import CudaEngine  # needs triton, which CPUs may lack

        return CudaEngine(*arguments, (settings or NativeConfig()).speculate)
    return NativeEngine(*arguments)


class NativeEngine:
    """Draws from the trainer's own model: there are no weights to copy."""

    def __init__(self, model: Any, eos_ids: Sequence[int], pad_id: int, max_rows: int = 2048):
        self.pad_id, self.max_rows = pad_id, max_rows
        self.eos = torch.tensor(sorted(set(eos_ids)), device=model.device)
        if not getattr(model, "_supports_attention_backend", True):
            raise UserError(
                f"{type(model).__name__} does not take attention functions from outside, which the "
                "native engine needs; use a model that does (Llama, Qwen, Mistral, Gemma, ...)"
            )
        self.arena = attention.Arena()
        self.load_weights(model)

    def load_weights(self, model: Any) -> None:
        """Read the trainer's weights in place; only joined projections are copied."""
        if getattr(self, "model", None) is not model:
            self.model = model
            self.kind = getattr(model, "compute_dtype", torch.float32)
            known = self.kind == torch.float32 and fused.supports(model)
            self._fused = fused.FusedStep(model) if known else None
        if self._fused:
            self._fused.refresh()

    def shrink(self) -> None:
        """Give back the cache, which is made again as it is needed."""
        self.close()

    def close(self) -> None:
        """Give back the memory of the cache."""
        self.arena = attention.Arena()

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """Every sample of every request; half as many rows at once if memory runs out."""
        return draw_all(self, requests, sampling)

    def draw(self, requests: list[Request], sampling: Sampling) -> Iterator[Completion]:
        """The same, once, wave by wave, shortest prompts first; it may run out of memory."""
        for wave in _waves(requests, self.max_rows):
            chunks = self._wave(wave, sampling)
            while True:
                # Only around our own work: a caller that trains between two completions must not
                # find gradients switched off.
                with attention.sampling_mode(self.model), self._rounding():
                    chunk = next(chunks, None)
                if chunk is None:
                    break
                yield from chunk

    @contextmanager
    def _rounding(self) -> Iterator[None]:
        """No gradients, and the dtype that training computes in.

        Autocast converts a weight once, not once a token, where it could be trained, and never
        in inference mode.
        """
        if self.kind == torch.float32:
            with torch.inference_mode():
                yield
            return
        frozen = [p for p in self.model.parameters() if not p.requires_grad]
        try:
            for p in frozen:
                p.requires_grad_(True)
            with torch.no_grad(), torch.autocast(self.model.device.type, self.kind):
                yield
        finally:
            for p in frozen:
                p.requires_grad_(False)

    def _wave(self, wave: list[Request], sampling: Sampling) -> Iterator[list[Completion]]:
        rows = _Rows(wave, sampling, self.model.device)
        cache, logits_BV = self._prefill(wave, rows, sampling)
        how = (sampling.temperature, sampling.top_p, sampling.top_k)
        for at in range(sampling.max_new_tokens):
            token_B, logprob_B = draw(logits_BV, rows.stream(at), *how)
            rows.write(at, token_B, logprob_B, (token_B[:, None] == self.eos).any(-1))
            live = int(rows.live_B.sum())
            if at + 1 == sampling.max_new_tokens or not live:
                break
            if live < _DROP_BELOW * len(rows.live_B):
                yield rows.finished(at + 1)
                token_B = rows.drop(cache, token_B)
            logits_BV = self._step(cache, token_B)
        yield rows.finished(at + 1, last=True)

    def _prefill(self, wave: list[Request], rows: _Rows, sampling: Sampling) -> tuple:
        """Run each prompt once; hand its last logits to every row of its group."""
        device = self.model.device
        lengths_P = torch.tensor([len(r.prompt_ids) for r in wave], device=device)
        width = int(lengths_P.max())
        ids_PL = torch.full((len(wave), width), self.pad_id)
        for row, request in enumerate(wave):
            ids_PL[row, : len(request.prompt_ids)] = torch.tensor(request.prompt_ids)
        cache = attention.SplitCache(
            lengths_P, width, sampling.max_new_tokens, rows.group, self.arena
        )
        last, at_once = [], max(1, attention.PREFILL // width)
        for at in range(0, len(wave), at_once):
            hidden_PLD = self._prompts(ids_PL[at : at + at_once].to(device), cache)
            end_P = lengths_P[at : at + at_once] - 1
            last.append(hidden_PLD[torch.arange(len(end_P), device=device), end_P])
        cache.begin()
        logits_PV = self._logits(torch.cat(last))
        return cache, logits_PV.repeat_interleave(rows.group, 0)

    def _prompts(self, ids_PL: Tensor, cache: attention.SplitCache) -> Tensor:
        if self._fused:
            return self._fused.prompt(ids_PL, cache)
        positions_PL = torch.arange(ids_PL.shape[1], device=ids_PL.device).expand(len(ids_PL), -1)
        return self._hidden(ids_PL, positions_PL, cache)

    def _step(self, cache: attention.SplitCache, token_B: Tensor) -> Tensor:
        if self._fused:
            hidden_BD = self._fused(token_B, cache)
        else:
            position = torch.as_tensor(cache.position(), device=token_B.device)
            position_B1 = position.expand(len(token_B))[:, None]
            hidden_BD = self._hidden(token_B[:, None], position_B1, cache)[:, 0]
        cache.filled += 1
        return self._logits(hidden_BD)

    def _hidden(self, ids: Tensor, positions: Tensor, cache: attention.SplitCache) -> Tensor:
        out = self.model.base_model(
            input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True
        )
        return out.last_hidden_state

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        return scaled_logits(self.model.get_output_embeddings()(hidden_ND), self.model.config)


class _Rows:
    """The sequences being decoded, as a [P, G] rectangle; short groups get dead rows."""

    def __init__(self, wave: list[Request], sampling: Sampling, device: torch.device):
        self.group = max(len(r.samples) for r in wave)
        rows, width = len(wave) * self.group, sampling.max_new_tokens
        self.index_B = np.repeat([r.index for r in wave], self.group)
        self.sample_B = np.zeros(rows, dtype=np.int64)
        live = np.zeros(rows, dtype=bool)
        for i, request in enumerate(wave):
            at = slice(i * self.group, i * self.group + len(request.samples))
            self.sample_B[at], live[at] = request.samples, True
        self.live_B = torch.from_numpy(live).to(device)
        self.ended_B = torch.zeros(rows, dtype=torch.long, device=device)  # length once ended
        self.returned_B = ~self.live_B  # handed out already, or never wanted
        self.ids_BT = torch.zeros(rows, width, dtype=torch.int32, device=device)
        self.logprobs_BT = torch.zeros(rows, width, device=device)
        self.sampling, self.device = sampling, device
        self._streams: Any = None
        self._from = 0

    def stream(self, at: int) -> Tensor:
        """Random bits of each row for this position; made in blocks."""
        if self._streams is None or at >= self._from + self._streams.shape[1]:
            block = min(256, self.sampling.max_new_tokens - at)
            key_B = row_keys(self.sampling.seed, self.index_B, self.sample_B)
            self._streams, self._from = streams(key_B, at, block).to(self.device), at
        return self._streams[:, at - self._from]

    def write(self, at: int, token_B: Tensor, logprob_B: Tensor, end_B: Tensor) -> None:
        self.ids_BT[:, at], self.logprobs_BT[:, at] = token_B.int(), logprob_B
        ending_B = self.live_B & end_B
        self.ended_B = torch.where(ending_B, at + 1, self.ended_B)
        self.live_B = self.live_B & ~end_B

    def finished(self, length: int, last: bool = False) -> list[Completion]:
        """Completions that have ended and were not handed out yet; at the last, all others too."""
        ready_B = ~self.returned_B if last else ~self.returned_B & ~self.live_B
        self.returned_B = self.returned_B | ready_B
        rows = ready_B.nonzero()[:, 0]
        ids, logprobs = self.ids_BT[rows].cpu().numpy(), self.logprobs_BT[rows].cpu().numpy()
        ended = self.ended_B[rows].tolist()
        rows = rows.cpu().numpy()
        keys = zip(self.index_B[rows].tolist(), self.sample_B[rows].tolist(), strict=True)
        return [
            Completion(
                index, sample, ids[i, : end or length], logprobs[i, : end or length], end > 0
            )
            for i, ((index, sample), end) in enumerate(zip(keys, ended, strict=True))
        ]

    def drop(self, cache: attention.SplitCache, token_B: Tensor) -> Tensor:
        """Keep groups that still have live rows, each cut to the most live rows that any has."""
        live_PG = self.live_B.view(-1, self.group)
        groups = live_PG.any(1).nonzero()[:, 0]
        group = int(live_PG.sum(1).max())
        if len(groups) == len(live_PG) and group == self.group:
            return token_B
        order_PG = live_PG[groups].int().argsort(dim=1, descending=True, stable=True)[:, :group]
        rows = (groups[:, None] * self.group + order_PG).flatten()
        cache.keep(groups, rows, group)
        self.group = group
        for name in ("live_B", "ended_B", "returned_B", "ids_BT", "logprobs_BT", "_streams"):
            setattr(self, name, getattr(self, name)[rows])
        kept = rows.cpu().numpy()
        self.index_B, self.sample_B = self.index_B[kept], self.sample_B[kept]
        return token_B[rows]


def _waves(requests: Sequence[Request], max_rows: int) -> Iterator[list[Request]]:
    """Split the work so that no wave has more rows than allowed; a big request is split itself."""
    pieces = [
        Request(r.index, r.prompt_ids, r.samples[at : at + max_rows])
        for r in requests
        for at in range(0, len(r.samples), max_rows)
    ]
    pieces.sort(key=lambda r: (len(r.prompt_ids), -len(r.samples)))
    wave: list[Request] = []
    widest = 0
    for piece in pieces:
        widest = max(widest, len(piece.samples))
        if wave and (len(wave) + 1) * widest > max_rows:
            yield wave
            wave, widest = [], len(piece.samples)
        wave.append(piece)
    if wave:
        yield wave
