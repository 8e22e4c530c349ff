"""The native engine on a GPU: one captured step, replayed; rows that are done make room for others.

Prompts run once a group through the model's own code. From then on the host only replays a CUDA
graph and looks, every few steps, at which rows are done. Slots of the cache stay where they are:
rows point to them, so a smaller batch towards the end moves a few numbers and no keys or values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sps.errors import RunFailed
from sps.rollout.cuda import kernels
from sps.rollout.cuda.decoder import Decoder
from sps.rollout.cuda.retry import draw_all
from sps.rollout.native import attention
from sps.rollout.native.sampling import draw, row_keys, uniform_at
from sps.types import Completion, Request, Sampling

_LOOK = 8  # steps between two looks at which rows are done
_REFILL = 0.875  # new prompts run once so small a share of the rows is live
_PREFILL = 65_536  # prompt tokens run at once


class CudaEngine:
    """Draws from bf16 copies of the trainer's weights; log-probabilities included."""

    def __init__(self, model: Any, eos_ids: Sequence[int], pad_id: int, max_rows: int = 1024):
        self.pad_id, self.max_rows = pad_id, max_rows
        self.eos = torch.tensor(sorted(set(eos_ids)), device=model.device)
        self.room: _Room | None = None
        self.load_weights(model)

    def load_weights(self, model: Any) -> None:
        """Copy the projections to bf16; embeddings and norms are read in place."""
        if getattr(self, "model", None) is not model:
            self.model, self.decoder, self.room = model, Decoder(model), None
        self.decoder.refresh()

    def close(self) -> None:
        """Give back the cache and the captured graphs."""
        self.room = None
        torch.cuda.empty_cache()

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """Every sample of every request; half as many rows at once if memory runs out."""
        return draw_all(self, requests, sampling)

    def draw(self, requests: list[Request], sampling: Sampling) -> Iterator[Completion]:
        """The same, once; it may run out of memory."""
        if not requests:
            return
        chunks = self._batches(requests, sampling)
        while True:
            with torch.inference_mode():
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield from chunk

    def _batches(self, requests: list[Request], sampling: Sampling) -> Iterator[list[Completion]]:
        room = self._make_room(requests, sampling)
        waiting = deque(_Wanted(i, s) for i, r in enumerate(requests) for s in r.samples)
        rows = _Rows(room, sampling)
        while waiting or rows.count:
            if waiting and rows.count <= room.size * _REFILL:
                self._fill(rows, room, requests, waiting, sampling)
            elif not waiting and rows.count <= rows.bucket // 2:
                rows.shrink()
            graph = room.graph(self, rows.bucket, sampling)
            for _ in range(_LOOK):
                graph.replay()
            finished = rows.harvest(requests)
            if finished:
                yield finished

    def _fill(
        self,
        rows: _Rows,
        room: _Room,
        requests: list[Request],
        waiting: deque[_Wanted],
        sampling: Sampling,
    ) -> None:
        """Put waiting samples into free rows, running the prompts that are not in memory yet."""
        take = [waiting.popleft() for _ in range(min(len(waiting), room.size - rows.count))]
        new = list(dict.fromkeys(w.request for w in take if w.request not in rows.prompts))
        for at in range(0, len(new), room.at_once):
            some = new[at : at + room.at_once]
            places = [rows.take_prompt(request) for request in some]
            logits_PV = self._prefill([requests[i].prompt_ids for i in some], places, room)
            rows.first_logits |= dict(zip(some, logits_PV, strict=True))
        rows.add(take, requests)
        fresh = slice(rows.count - len(take), rows.count)
        logits_BV = torch.stack([rows.first_logits[w.request] for w in take])
        state = room.state[fresh]
        kernels.take(state, choose(logits_BV, state, 0, sampling), self.eos, ahead=0)

    def _prefill(self, prompts: list[tuple[int, ...]], places: list[int], room: _Room) -> Tensor:
        device = self.model.device
        length_P = torch.tensor([len(ids) for ids in prompts], device=device)
        ids_PL = torch.full((len(prompts), int(length_P.max())), self.pad_id)
        for row, ids in enumerate(prompts):
            ids_PL[row, : len(ids)] = torch.tensor(ids)
        where = torch.tensor(places, device=device)
        room.length_P[where] = length_P.int()
        cache = _Capture(room, where)
        with attention.sampling_mode(self.model), torch.autocast("cuda", torch.bfloat16):
            hidden_PLD = self.model.base_model(
                input_ids=ids_PL.to(device), past_key_values=cache, use_cache=True
            ).last_hidden_state
        cache.check()
        last_PD = hidden_PLD[torch.arange(len(prompts), device=device), length_P - 1]
        return self.decoder.logits(last_PD)

    def _make_room(self, requests: list[Request], sampling: Sampling) -> _Room:
        """The cache, kept from call to call while it is large enough."""
        longest = -(-max(len(r.prompt_ids) for r in requests) // 64) * 64
        rows = min(self.max_rows, sum(len(r.samples) for r in requests))
        size = 1 << (rows - 1).bit_length()
        old = self.room
        if (
            old
            and old.size >= size
            and old.longest >= longest
            and old.new >= sampling.max_new_tokens
        ):
            old.limit = sampling.max_new_tokens
            return old
        if old:
            size, longest = max(size, old.size), max(longest, old.longest)
        self.close()
        self.room = _Room(self.decoder, min(size, self.max_rows), longest, sampling.max_new_tokens)
        return self.room

    def step(self, room: _Room, rows: int, sampling: Sampling) -> None:
        """What is captured: one more token for each of the first `rows` rows."""
        state = room.state[:rows]
        logits_BV = self.decoder(state, room.length_P, room.prefix, room.cache)
        kernels.take(state, choose(logits_BV, state, 1, sampling), self.eos, ahead=1)


def choose(
    logits_BV: Tensor, state: kernels.State, ahead: int, sampling: Sampling
) -> tuple[Tensor, Tensor]:
    """Token and log-probability; the fused kernels, or torch where top-p or top-k are asked for."""
    if sampling.temperature == 0 or (sampling.top_p == 1 and sampling.top_k == 0):
        return kernels.draw(logits_BV, state.key, state.own, ahead, sampling.temperature)
    uniform_B = uniform_at(state.key, state.own + ahead)
    return draw(logits_BV, uniform_B, sampling.temperature, sampling.top_p, sampling.top_k)


@dataclass(frozen=True)
class _Wanted:
    request: int  # position in the list of requests
    sample: int


class _Capture:
    """Stands where transformers expects a cache, and writes prompts into the shared one."""

    is_compileable = False

    def __init__(self, room: _Room, where: Tensor):
        self.room, self.where = room, where
        self.written: set[int] = set()  # layers

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple:
        """Store a layer's keys and values, [P, H, L, D]; the prompt attends to its own."""
        keys, values = self.room.prefix[layer]
        keys[self.where, :, : key.shape[2]] = key.to(keys.dtype)
        values[self.where, :, : key.shape[2]] = value.to(values.dtype)
        self.written.add(layer)
        return key, value

    def check(self) -> None:
        """Rows that do not see their prompt would be drawn from another distribution."""
        if len(self.written) != len(self.room.prefix):
            raise RunFailed(
                f"the model gave keys and values of {len(self.written)} of its "
                f"{len(self.room.prefix)} layers to the cache, so rollouts would not see their "
                "prompts; this is a fault of sps with this model: use rollout.engine: vllm, or "
                "model.dtype: float32, which samples through the model's own code"
            )

    def get_seq_length(self, layer: int = 0) -> int:
        """Prompts start at position 0."""
        return 0


class _Room:
    """The cache: prompts, own tokens, state, and the steps captured over them."""

    def __init__(self, decoder: Decoder, size: int, longest: int, new: int):
        device, kind = decoder.embed.weight.device, torch.bfloat16
        self.size, self.longest, self.new, self.limit = size, longest, new, new
        self.at_once = max(1, _PREFILL // longest)

        def layers(tokens: int) -> list[tuple[Tensor, Tensor]]:
            shape = (size, decoder.shared, tokens, decoder.width)
            pair = torch.zeros(len(decoder.layers), 2, *shape, dtype=kind, device=device)
            return [(keys, values) for keys, values in pair]

        self.prefix, self.cache = layers(longest), layers(new)
        self.length_P = torch.zeros(size, dtype=torch.int32, device=device)
        self.state = kernels.State.empty(size, new, device)
        self.graphs: dict[tuple, torch.cuda.CUDAGraph] = {}
        decoder.prepare(longest + new)

    def graph(self, engine: CudaEngine, rows: int, sampling: Sampling) -> torch.cuda.CUDAGraph:
        """The step for this many rows, captured at first use; state is put back afterwards."""
        key = (rows, sampling.temperature, sampling.top_p, sampling.top_k)
        if key not in self.graphs:
            live = self.state.live.clone()
            self.state.live.zero_()  # warm-up and capture must not move any row
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                engine.step(self, rows, sampling)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                engine.step(self, rows, sampling)
            self.graphs[key] = graph
            self.state.live.copy_(live)
        return self.graphs[key]


class _Rows:
    """The host's view of the rows: row i of the state belongs to wanted[i]."""

    def __init__(self, room: _Room, sampling: Sampling):
        self.room, self.sampling = room, sampling
        self.wanted: list[_Wanted] = []
        self.free_slots = list(range(room.size))[::-1]
        self.free_prompts = list(range(room.size))[::-1]
        self.prompts: dict[int, int] = {}  # request -> place of its prompt
        self.first_logits: dict[int, Tensor] = {}
        self.bucket = room.size
        room.state.live.zero_()

    @property
    def count(self) -> int:
        return len(self.wanted)

    def take_prompt(self, request: int) -> int:
        self.prompts[request] = self.free_prompts.pop()
        return self.prompts[request]

    def add(self, take: list[_Wanted], requests: list[Request]) -> None:
        """New rows behind those that are there."""
        state, at = self.room.state, self.count
        new = slice(at, at + len(take))
        index = np.array([requests[w.request].index for w in take])
        keys = row_keys(self.sampling.seed, index, np.array([w.sample for w in take]))
        device = state.token.device

        def put(target: Tensor, values: Any) -> None:
            target[new] = torch.as_tensor(values, dtype=target.dtype).to(device, non_blocking=True)

        put(state.key, keys.view(np.int64))
        put(state.slot, [self.free_slots.pop() for _ in take])
        put(state.prompt, [self.prompts[w.request] for w in take])
        state.own[new], state.ended[new], state.live[new] = 0, False, 1
        state.limit[new] = self.sampling.max_new_tokens
        self.wanted += take
        self.bucket = self.room.size

    def harvest(self, requests: list[Request]) -> list[Completion]:
        """Completions of the rows that are done; the others move up."""
        state = self.room.state
        live = state.live[: self.count].cpu().numpy() > 0
        if live.all():
            return []
        over = np.flatnonzero(~live)
        rows = torch.from_numpy(over).to(state.token.device)
        slots = state.slot[rows].long()
        size = (state.own[rows] + 1).tolist()
        width = max(size)
        ids = state.ids_ST[slots, :width].cpu().numpy()
        logprobs = state.logprobs_ST[slots, :width].cpu().numpy()
        ended, places = state.ended[rows].tolist(), slots.tolist()
        done = []
        for i, row in enumerate(over):
            want = self.wanted[row]
            done.append(
                Completion(
                    requests[want.request].index,
                    want.sample,
                    ids[i, : size[i]],
                    logprobs[i, : size[i]],
                    ended[i],
                )
            )
        self.free_slots += places
        self._keep(np.flatnonzero(live))
        return done

    def _keep(self, rows: np.ndarray) -> None:
        state = self.room.state
        where = torch.from_numpy(rows).to(state.token.device)
        for tensor in state.rows().values():
            moved = tensor[where]
            tensor[: len(rows)] = moved
        state.live[len(rows) :] = 0
        self.wanted = [self.wanted[i] for i in rows]
        needed = {w.request for w in self.wanted}
        for request in [r for r in self.prompts if r not in needed]:
            self.free_prompts.append(self.prompts.pop(request))
            self.first_logits.pop(request, None)

    def shrink(self) -> None:
        """Fewer rows a step from now on: the smallest power of two that holds the live ones."""
        self.bucket = min(self.bucket, max(8, 1 << (self.count - 1).bit_length()))
