"""This process among the others that run the same program, launched by accelerate.

Every rank runs the whole loop and holds the same state; only work is sharded. Each draws and judges
its share of the problems and computes its share of the rows; results are gathered, so that all
ranks take the same decisions. Rank 0 alone writes files.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from sps.errors import RunFailed, UserError
from sps.run.disk import disk_failure

T = TypeVar("T")
_PATIENCE = timedelta(hours=4)  # one rank's long answers may keep the others waiting
_BUCKET = 2**26  # gradients summed in one message


class Ranks:
    """One process alone: everything is its own work."""

    rank, size = 0, 1
    sharded = False  # whether each rank holds only its part of the weights
    deepspeed = False  # whether DeepSpeed divides them, and not FSDP2
    accelerator: Any = None

    @property
    def main(self) -> bool:
        """Whether this rank writes files and talks."""
        return self.rank == 0

    def shard(self, items: Sequence[T]) -> Sequence[T]:
        """This rank's share of some work."""
        return items[self.rank :: self.size]

    def gather(self, items: list[T]) -> list[T]:
        """The items of every rank, on every rank."""
        return items

    def broadcast(self, make: Callable[[], T]) -> T:
        """What the first rank makes, on every rank; its error, too."""
        return make()

    def total(self, sums: dict[str, float]) -> dict[str, float]:
        """Sums over all ranks, key by key."""
        return sums

    def maximum(self, count: int) -> int:
        """The largest count of any rank."""
        return count

    def sum_gradients(self, weights: Iterable[Any]) -> None:
        """Sum the gradients of weights that every rank holds whole."""

    def leave(self) -> None:
        """The work is done, everything is written and said."""


ALONE = Ranks()


class Distributed(Ranks):
    """One of several processes."""

    def __init__(self, accelerator: Any, sharded: bool = False, deepspeed: bool = False):
        self.accelerator, self.sharded, self.deepspeed = accelerator, sharded, deepspeed
        self.rank, self.size = accelerator.process_index, accelerator.num_processes

    def gather(self, items: list[T]) -> list[T]:
        """Through accelerate, pickled."""
        from accelerate.utils import gather_object

        return gather_object(list(items))

    def broadcast(self, make: Callable[[], T]) -> T:
        """Through accelerate; the others wait."""
        from accelerate.utils import broadcast_object_list

        made: list[Any] = [None, None]
        if self.main:
            try:
                made[0] = make()
            except (UserError, RunFailed) as error:
                made[1] = error
            except OSError as error:
                if not (said := disk_failure(error)):
                    raise
                made[1] = RunFailed(said)
        broadcast_object_list(made)
        if made[1] is not None:
            raise made[1] if self.main else type(made[1])("")  # said once
        return made[0]

    def total(self, sums: dict[str, float]) -> dict[str, float]:
        """A rank that had no work has no keys."""
        total: Counter[str] = Counter()
        for part in self.gather([sums]):
            for name, value in part.items():
                total[name] += value  # type: ignore[assignment]
        return dict(total)

    def maximum(self, count: int) -> int:
        """Of all ranks."""
        return max(self.gather([count]))

    def sum_gradients(self, weights: Iterable[Any]) -> None:
        """Once a step, after the last micro-batch, in a few large messages."""
        if self.sharded:  # FSDP has done it, part by part, in the backward pass
            return
        bucket: list[Any] = []
        for weight in weights:
            if weight.grad is None:  # a rank may have had no row to learn from
                weight.grad = weight.new_zeros(weight.shape)
            bucket.append(weight.grad)
            if sum(grad.numel() for grad in bucket) >= _BUCKET:
                _all_reduce(bucket)
                bucket = []
        if bucket:
            _all_reduce(bucket)

    def leave(self) -> None:
        """Part from the others in good order, and end this process.

        At once: threads of the collectives have been seen to abort an interpreter that ends slowly.
        """
        self.accelerator.wait_for_everyone()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def join_ranks(device: str = "auto") -> Ranks:
    """This process alone, or among those that `accelerate launch` has started."""
    fsdp, deepspeed = (is_on(f"ACCELERATE_USE_{name}") for name in ("FSDP", "DEEPSPEED"))
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not several and not (fsdp and "LOCAL_RANK" in os.environ):
        return ALONE
    _check_launch(fsdp, deepspeed)
    import torch
    from accelerate import Accelerator, InitProcessGroupKwargs

    os.environ["ACCELERATE_USE_DEEPSPEED"] = "false"  # policy/deepspeed.py starts it
    # Else transformers would load weights on the first rank alone; every rank shards its own.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    cpu = device == "cpu" or not torch.cuda.is_available()
    waits = InitProcessGroupKwargs(timeout=_PATIENCE)
    # Precision is the recipe's model.dtype, and sharding is done in policy/sharding.py.
    accelerator = Accelerator(cpu=cpu, mixed_precision="no", kwargs_handlers=[waits])
    return Distributed(accelerator, fsdp or deepspeed, deepspeed)


def _check_launch(fsdp: bool, deepspeed: bool) -> None:
    """Refuse keys of accelerate's configuration that would be left unheard."""
    if deepspeed and os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3") != "3":
        raise UserError("zero_stage: only 3 is supported; set it, or use launch/ddp.yaml")
    for part in ("PARAM", "OPTIMIZER") if deepspeed else ():
        if os.environ.get(f"ACCELERATE_DEEPSPEED_OFFLOAD_{part}_DEVICE", "none") != "none":
            key = f"offload_{part.lower()}_device"
            raise UserError(f"{key}: not supported; set none, and more GPUs")
    if fsdp and os.environ.get("FSDP_VERSION", "1") != "2":
        raise UserError("fsdp_version: 1 is not supported; set 2 in accelerate's configuration")
    if fsdp and is_on("FSDP_OFFLOAD_PARAMS"):
        raise UserError("fsdp_offload_params: true is not supported; set false, and more GPUs")


def whole(tensor: Any) -> Any:
    """A weight or a sum that may be divided over the ranks, as a plain tensor. A collective."""
    if hasattr(tensor, "ds_tensor"):  # DeepSpeed's
        return joined(tensor.ds_tensor, tensor)
    gather = getattr(tensor, "full_tensor", None)  # FSDP2's
    return tensor if gather is None else gather()


def materialise(module: Any, device: Any) -> None:
    """Memory for the weights of a module that are on the meta device; tied ones stay tied."""
    import torch

    made: dict[int, tuple[Any, Any]] = {}
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None and weight.is_meta:
                if id(weight) not in made:  # kept beside its successor, so that no id comes again
                    empty = torch.empty_like(weight, device=device)
                    made[id(weight)] = weight, torch.nn.Parameter(empty, weight.requires_grad)
                part._parameters[name] = made[id(weight)][1]


def joined(part: Any, weight: Any) -> Any:
    """Every rank's part of something of the size of a weight that DeepSpeed divides."""
    import torch

    parts = [torch.empty_like(part) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, part.contiguous())
    return torch.cat(parts)[: weight.ds_numel].view(weight.ds_shape)


def is_on(name: str) -> bool:
    """Whether a variable of accelerate's says yes, in any of the words that accelerate takes."""
    return os.environ.get(name, "").lower() in ("true", "1", "yes", "on", "y", "t")


def _all_reduce(grads: list[Any]) -> None:
    import torch

    flat = torch.cat([grad.flatten() for grad in grads])
    torch.distributed.all_reduce(flat)
    parts = flat.split([grad.numel() for grad in grads])
    torch._foreach_copy_(grads, [p.view(g.shape) for p, g in zip(parts, grads, strict=True)])
