"""Every rollout engine. A new one is its module and its row here. Nothing here loads torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Literal

from pydantic import Field

from sps.rollout import RolloutEngine
from sps.schema import Node, Positive


class NativeConfig(Node):
    """The native engine, used when rollout.engine is native."""

    # On a GPU, guess tokens of the last sequences of a rollout and check several at once.
    speculate: bool = False


class VllmConfig(Node):
    """The vLLM engine (extra `vllm`), used when rollout.engine is vllm."""

    mode: Literal["colocate", "server"] = "colocate"  # in this process, or on a server
    server: str = "http://localhost:8000"  # in server mode
    memory: Annotated[float, Field(gt=0, le=1)] = 0.3  # colocated: vLLM's share of the device's
    tensor_parallel: Positive = 1  # colocated: processes that share one copy of the model
    sleep: bool = False  # colocated: give vLLM's memory back while training; GPU alone
    max_length: Positive | None = None  # tokens of prompt and answer; None: what the model takes


@dataclass(frozen=True)
class EngineType:
    """A row of ENGINES; its name is `rollout.engine` in a recipe."""

    # `package.module:function` of (policy, rows at once, ranks, the branch rollout.NAME or None).
    # It is called before the weights are sharded.
    factory: str
    truncates: bool = True  # with top-p or top-k, log-probabilities are those before truncation
    deepspeed: bool = True  # goes with weights that DeepSpeed holds
    needs: tuple[str, ...] = ()  # packages that are not installed with sps
    label: str = ""  # what sps doctor calls it
    # Holds weights of its own, that GPUs may share, in a share of each GPU's memory: rollout.NAME
    # then has the keys of VllmConfig.
    apart: bool = False

    def make(self, policy: Any, max_rows: int, ranks: Any, settings: Any) -> RolloutEngine:
        """The engine; only now is its module loaded."""
        module, _, name = self.factory.partition(":")
        factory: Callable[..., RolloutEngine] = getattr(import_module(module), name)
        return factory(policy, max_rows, ranks, settings)


ENGINES: Mapping[str, EngineType] = {
    "native": EngineType("sps.rollout.native.engine:make", label="native engine"),
    "vllm": EngineType(
        "sps.rollout.vllm:make",
        truncates=False,
        deepspeed=False,
        needs=("vllm",),
        label="vLLM",
        apart=True,
    ),
}


def known_engine(name: str) -> str:
    """The name, if there is such an engine."""
    if name not in ENGINES:
        raise ValueError(f"choose one of {', '.join(ENGINES)}")
    return name
