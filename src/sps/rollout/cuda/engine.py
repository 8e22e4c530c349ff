"""The native engine on a GPU: one captured step, replayed; rows that are done make room for others.

Prompts run once a group through the model's own code. From then on the host only replays a CUDA
graph and looks, every few steps, at which rows are done. Keys and values stay where they are: rows
point to them, so a smaller batch towards the end moves a few numbers alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sps.errors import RunFailed
from sps.rollout.cuda import kernels
from sps.rollout.cuda.decoder import Decoder
from sps.rollout.cuda.room import Room, Size
from sps.rollout.cuda.rows import Prompt, Rows, Wanted
from sps.rollout.cuda.state import State, bucket
from sps.rollout.cuda.tail import Tail
from sps.rollout.native import attention
from sps.rollout.native.sampling import draw, stream_at
from sps.rollout.retry import draw_all
from sps.types import Completion, Request, Sampling

_LOOK = 8  # steps between two looks at which rows are done
_REFILL = 0.875  # new prompts run once so small a share of the rows is live


class CudaEngine:
    """Draws from bf16 copies of the trainer's weights; log-probabilities included."""

    def __init__(
        self,
        model: Any,
        eos_ids: Sequence[int],
        pad_id: int,
        max_rows: int = 1024,
        speculate: bool = False,
    ):
        self.pad_id, self.max_rows, self.speculate = pad_id, max_rows, speculate
        self.eos = torch.tensor(sorted(set(eos_ids)), device=model.device)
        self.room: Room | None = None
        self.most = float("inf")  # pages of the cache
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

    def shrink(self) -> None:
        """Memory ran out, here or in training: give back the cache; it has half the pages now."""
        if self.room:
            self.most = self.room.pages // 2
        self.close()

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
        waiting = deque(Wanted(i, s) for i, r in enumerate(requests) for s in r.samples)
        rows = Rows(room, sampling)
        tail = Tail(rows, requests, self.speculate)
        while waiting or rows.count:
            if waiting and rows.count <= room.size * _REFILL:
                self._fill(rows, rows.admit(waiting, requests), requests, sampling)
            guessing = tail.begins(waiting)
            rows.grow(tail.reach if guessing else _LOOK, waiting)
            step = self.check if guessing else self.step
            replay = room.graph(step, bucket(rows.count, room.size), sampling)
            if guessing:
                finished = tail.advance(replay)
            else:
                for _ in range(_LOOK):
                    replay()
                tail.prepare(waiting)
                finished = rows.harvest(requests)
                tail.keep(finished)
            if finished:
                yield finished

    def _fill(
        self, rows: Rows, take: list[Wanted], requests: list[Request], sampling: Sampling
    ) -> None:
        """Put samples into free rows, running the prompts that are not in memory yet."""
        if not take:
            return
        room = rows.room
        new = list(dict.fromkeys(w.request for w in take if w.request not in rows.prompts))
        for at in range(0, len(new), room.at_once):
            some = new[at : at + room.at_once]
            texts = [requests[i].prompt_ids for i in some]
            places = [rows.take_prompt(i, len(ids)) for i, ids in zip(some, texts, strict=True)]
            logits_PV = self._prefill(texts, places, room)
            rows.first_logits |= dict(zip(some, logits_PV, strict=True))
        rows.add(take, requests)
        fresh = slice(rows.count - len(take), rows.count)
        logits_BV = torch.stack([rows.first_logits[w.request] for w in take])
        state = room.state[fresh]
        kernels.take(state, choose(logits_BV, state, 0, sampling), self.eos, ahead=0)

    def _prefill(self, prompts: list[tuple[int, ...]], places: list[Prompt], room: Room) -> Tensor:
        device = self.model.device
        length_P = torch.tensor([len(ids) for ids in prompts], device=device)
        ids_PL = torch.full((len(prompts), int(length_P.max())), self.pad_id)
        for row, ids in enumerate(prompts):
            ids_PL[row, : len(ids)] = torch.tensor(ids)
        where = torch.tensor([p.place for p in places], device=device)
        room.length_P[where] = length_P.int()
        cache = _Capture(room, [p.pages for p in places])
        with attention.sampling_mode(self.model), torch.autocast(device.type, self.decoder.kind):
            hidden_PLD = self.model.base_model(
                input_ids=ids_PL.to(device), past_key_values=cache, use_cache=True
            ).last_hidden_state
        cache.check()
        last_PD = hidden_PLD[torch.arange(len(prompts), device=device), length_P - 1]
        return self.decoder.logits(last_PD)

    def _make_room(self, requests: list[Request], sampling: Sampling) -> Room:
        """The cache, kept from call to call while it is large enough."""
        size = Size.of(requests, sampling, self.max_rows)
        if self.room and self.room.serves(size):
            return self.room
        if self.room:
            size = size.with_also(self.room.asked)
        self.close()
        self.room = Room(self.decoder, size, self.most)
        return self.room

    def step(self, room: Room, rows: int, sampling: Sampling) -> None:
        """What is captured: one more token for each of the first `rows` rows."""
        state = room.state[:rows]
        logits_BV = self.decoder(state, room.length_P, room.cache, room.pages_SM)
        kernels.take(state, choose(logits_BV, state, 1, sampling), self.eos, ahead=1)

    def check(self, room: Room, rows: int, sampling: Sampling) -> None:
        """The same where tokens are guessed: as many more for each row as were guessed right."""
        state, guess_BD = room.state[:rows], room.guess_BD[:rows]
        wide = state.with_guesses(guess_BD)
        logits_NV = self.decoder(wide, room.length_P, room.cache, room.pages_SM, runs=True)
        token_N, logprob_N = choose(logits_NV, wide, 1, sampling)
        kernels.take(state, (token_N, logprob_N), self.eos, 1, guess_BD)
        now_B2 = torch.stack([state.own, state.live], 1).long()
        room.report_BX[:rows] = torch.cat([now_B2, token_N.view(rows, -1)], 1)


def choose(
    logits_BV: Tensor, state: State, ahead: int, sampling: Sampling
) -> tuple[Tensor, Tensor]:
    """Token and log-probability; the fused kernels, or torch where top-p or top-k are asked for."""
    if sampling.temperature == 0 or (sampling.top_p == 1 and sampling.top_k == 0):
        return kernels.draw(logits_BV, state.key, state.own, ahead, sampling.temperature)
    stream_B = stream_at(state.key, state.own + ahead)
    return draw(logits_BV, stream_B, sampling.temperature, sampling.top_p, sampling.top_k)


class _Capture:
    """Stands where transformers expects a cache, and writes prompts into pages."""

    is_compileable = False

    def __init__(self, room: Room, pages: list[list[int]]):
        self.cache, device = room.cache, room.pages_SM.device
        most = max(len(some) for some in pages)
        self.pages_PM = torch.tensor([some + [0] * (most - len(some)) for some in pages]).to(device)
        self.written: set[int] = set()  # layers

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple:
        """Store a layer's keys and values, [P, H, L, D]; the prompt attends to its own."""
        for new_PHLD, into in zip((key, value), self.cache[layer], strict=True):
            rows, most = self.pages_PM.shape
            heads, page, width = into.shape[1:]
            whole = pad(new_PHLD, (0, 0, 0, most * page - new_PHLD.shape[2]))
            into[self.pages_PM] = (
                whole.view(rows, heads, most, page, width).transpose(1, 2).to(into.dtype)
            )
        self.written.add(layer)
        return key, value

    def check(self) -> None:
        """Rows that do not see their prompt would be drawn from another distribution."""
        if len(self.written) != len(self.cache):
            raise RunFailed(
                f"the model gave keys and values of {len(self.written)} of its "
                f"{len(self.cache)} layers to the cache, so rollouts would not see their "
                "prompts; this is a fault of sps with this model: use rollout.engine: vllm, or "
                "model.dtype: float32, which samples through the model's own code"
            )

    def get_seq_length(self, layer: int = 0) -> int:
        """Prompts start at position 0."""
        return 0
