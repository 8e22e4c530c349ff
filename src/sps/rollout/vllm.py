"""vLLM as a rollout engine, driven through TRL's bridge: in this process, or on a server.

Samples are not reproducible. The bridge gives every prompt of a call the same sampling parameters,
so no sample can have a seed of its own, and what vLLM draws depends on the batch: Sampling.seed is
not used, and a resumed run draws other samples than an uninterrupted one.

Log-probabilities are those of the temperature; with top-p or top-k they are of the tokens left.
"""

from __future__ import annotations

import os
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sps.errors import RunFailed, UserError
from sps.rollout.adapters import Merged, has_adapters, mergeable, without_adapters
from sps.rollout.native.layers import head_width
from sps.rollout.table import VllmConfig
from sps.types import Completion, Request, Sampling

_WAIT = 120.0  # seconds for a server to come up
_MOST_ROWS = 4096  # tokens the bridge lets vLLM run at once: sequences cannot be more
_COMMAND = (
    'VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config \'{"backend": "nccl"}\' '
    "--logprobs-mode processed_logprobs"
)


def make(policy: Any, max_rows: int, ranks: Any, settings: VllmConfig) -> VllmEngine:
    """vLLM in this process or on a server, as the settings say."""
    return VllmEngine(policy, settings, ranks.accelerator, max_rows)


class VllmEngine:
    """Draws with vLLM, which holds weights of its own; `policy` says where they come from."""

    def __init__(
        self, policy: Any, settings: VllmConfig, accelerator: Any = None, max_rows: int = 2048
    ):
        self.policy, self.settings, self.model = policy, settings, policy.model
        self.max_rows = min(max_rows, _MOST_ROWS)
        self._bridge = _bridge()
        if accelerator is None:
            from accelerate import Accelerator

            accelerator = Accelerator(cpu=self.model.device.type == "cpu")
        self.accelerator, self.on_cpu = accelerator, accelerator.device.type == "cpu"
        self._check()
        self._vllm: Any = None
        self._stale = True
        self._start()

    def load_weights(self, model: Any) -> None:
        """Take these weights before the next generation.

        Not at once: several optimizer steps may pass until then, and one copy is enough.
        """
        self.model, self._stale = model, True

    def shrink(self) -> None:
        """Nothing: vLLM holds the share of memory that `rollout.vllm.memory` says."""

    def close(self) -> None:
        """Give back vLLM's memory, or leave the server; the next generation starts it again."""
        vllm, self._vllm, self._stale = self._vllm, None, True
        if vllm is None:
            return
        if self.settings.mode == "server":
            if self.accelerator.is_main_process:
                vllm.vllm_client.close_communicator()
        elif self.accelerator.num_processes == 1:
            from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

            vllm.llm.llm_engine.engine_core.shutdown()
            del vllm.llm  # else its memory is still held when the rest is collected
            cleanup_dist_env_and_memory()
        else:
            self._left = vllm  # collected, it would end the process group that training is in

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """Every sample of every request, all at once when the last of them is done."""
        keys = [(r.index, sample) for r in requests for sample in r.samples]
        prompts = [list(r.prompt_ids) for r in requests for _ in r.samples]
        prompts, group = self._agree(prompts, {len(r.samples) for r in requests} - {0})
        if not prompts:
            return
        vllm = self._vllm or self._start()
        adapted = has_adapters(self.model)
        vllm.model = Merged(self.model) if adapted else self.model
        vllm.max_completion_length, vllm.temperature = sampling.max_new_tokens, sampling.temperature
        vllm.top_p, vllm.top_k = sampling.top_p, sampling.top_k
        if self._stale:
            sharded = any(hasattr(weight, "full_tensor") for weight in self.model.parameters())
            if sharded:  # accelerate did not do it, and so did not tell it; merged ones are whole
                vllm._dist.fsdp_version = None if adapted else 2
            vllm.sync_weights()
            self._stale = False
        _, ids, logprobs, _ = vllm.generate(prompts, None, group)
        ends = set(self.policy.eos_ids)
        # What was added for other processes stands last, and falls off here.
        for (index, sample), row, values in zip(keys, ids, logprobs, strict=False):
            logprob_T = np.array([value[0] for value in values], dtype=np.float32)
            if np.isnan(logprob_T).any():
                raise RunFailed("vLLM gave a token no log-probability; the weights may hold nan")
            ended = row[-1] in ends
            yield Completion(index, sample, np.array(row, dtype=np.int32), logprob_T, ended)

    def _agree(self, prompts: list[list[int]], sizes: set[int]) -> tuple[list[list[int]], int]:
        """The prompts as the bridge wants them, and how many in a row are the same prompt.

        A server draws a group at once where all groups are alike. Where processes generate together
        each has to bring as many prompts as the others, and where each has a vLLM of its own they
        may still gather weights together: what is missing is made up.
        """
        count = len(prompts)
        if self.accelerator.num_processes > 1:
            if self.settings.mode == "server" or self.settings.tensor_parallel > 1:
                from accelerate.utils import gather_object

                counts = gather_object([(count, sorted(sizes))])
                count = max(n for n, _ in counts)
                sizes = {size for _, each in counts for size in each}
            else:
                count = max(count, 1)
        group = next(iter(sizes)) if self.settings.mode == "server" and len(sizes) == 1 else 1
        return prompts + [[self.policy.eos_ids[0]]] * (count - len(prompts)), group

    def _start(self) -> Any:
        how, model = self.settings, self.model
        if how.mode == "server":
            _await(how.server)
        with ExitStack() as stack:
            if how.mode == "colocate":
                if self.accelerator.num_processes == 1:
                    os.environ["MASTER_PORT"] = "auto"  # the bridge then finds a free one
                stack.enter_context(_weights_on_disk(model, self.policy.tokenizer))
                start = partial(self._bridge.LLM, **_vllm_arguments(model, self.on_cpu))
                stack.enter_context(_replaced(self._bridge, "LLM", start))
                if self.on_cpu:
                    stack.enter_context(_plain_linear(model))
                    if self.accelerator.num_processes > 1:
                        stack.enter_context(_names_removed(self.accelerator))
            try:
                self._vllm = self._bridge.VLLMGeneration(
                    model,
                    self.accelerator,
                    self.policy.tokenizer,
                    mode=how.mode,
                    server_base_url=how.server.rstrip("/"),
                    tensor_parallel_size=how.tensor_parallel,
                    gpu_memory_utilization=how.memory,
                    max_model_length=how.max_length,
                    max_num_seqs=self.max_rows,
                    enable_sleep_mode=how.sleep,
                    # Texts are not looked at. The end tokens are said, since vLLM knows one alone.
                    generation_kwargs={"stop_token_ids": self.policy.eos_ids}
                    | ({"detokenize": False} if how.mode == "colocate" else {}),
                )
            except (ValueError, RuntimeError, NotImplementedError) as error:
                raise UserError(f"rollout.vllm: vLLM cannot start: {_first(error)}") from error
        if how.mode == "server" and self.accelerator.is_main_process:
            self._check_server()
        return self._vllm

    def _check(self) -> None:
        how = self.settings
        if has_adapters(self.model) and not mergeable(self.model):
            raise UserError(
                "model.lora: the vLLM engine takes weights with the adapters merged, and these "
                "cannot be (of an embedding, DoRA, ...); use rollout.engine: native"
            )
        if how.mode == "server" and self.on_cpu:
            raise UserError(
                "rollout.vllm.mode: weights go to a server from GPU to GPU (NCCL), and the policy "
                "is on the CPU; use colocate, or model.device: cuda"
            )
        if how.sleep and self.on_cpu:
            raise UserError("rollout.vllm.sleep: vLLM sleeps on a GPU alone; set it to false")

    def _check_server(self) -> None:
        """A server is started by hand: is it with this model, and the right log-probabilities?"""
        client, last = self._vllm.vllm_client, self.model.config.vocab_size - 1
        if client.get_server_info()["model_config"]["logprobs_mode"] != "processed_logprobs":
            raise UserError(
                "rollout.vllm.server: its log-probabilities are not those of the temperature; "
                f"start it with: {_COMMAND}"
            )
        try:
            client.generate([[last]], max_tokens=1)
        except Exception as error:  # the client raises no class of its own
            raise UserError(
                f"rollout.vllm.server: {client.model} does not take token {last}, which the policy "
                f"{self.policy.source} has; start the server with the policy's own model "
                f"({_first(error)})"
            ) from None


def _bridge() -> Any:
    """TRL's module, with vLLM behind it."""
    try:
        import vllm  # noqa: F401
        from trl.generation import vllm_generation
    except ImportError as error:
        raise UserError(
            f"rollout.engine: vllm needs trl and vllm, and {error.name or error} is missing; "
            "install the extra: sps-rl[vllm]"
        ) from None
    return vllm_generation


def _vllm_arguments(model: Any, on_cpu: bool) -> dict[str, Any]:
    """What vLLM should know and the bridge has no way to pass on."""
    # vLLM left alone rounds a float32 model to bfloat16, whatever the trainer does.
    dtype = str(getattr(model, "compute_dtype", model.dtype)).removeprefix("torch.")
    # Models that a CPU can run are small: compiling them takes longer than it saves.
    return {"dtype": dtype, "enforce_eager": on_cpu}


@contextmanager
def _names_removed(accelerator: Any) -> Iterator[None]:
    """On a CPU vLLM names the memory that its ranks share alike in every job, and a name that is
    still there is an error. Removed before the start, and after it, when all ranks have found it.
    """

    def remove() -> None:
        for path in Path("/dev/shm").glob("-[tp]p:*cpushm_*"):
            with suppress(PermissionError):  # another user's; vLLM will say so
                path.unlink(missing_ok=True)

    remove()
    accelerator.wait_for_everyone()
    yield
    accelerator.wait_for_everyone()
    remove()


@contextmanager
def _plain_linear(model: Any) -> Iterator[None]:
    """On a CPU vLLM packs its weights for good; the bridge can only write weights left as they are.

    Without this a sync fails, or leaves a tied output layer as it was.
    """
    from vllm.model_executor.layers import utils
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    width = head_width(model.config)
    if width not in CPUAttentionBackend.get_supported_head_sizes():
        raise UserError(
            f"rollout.engine: on a CPU vLLM knows no attention heads of width {width}, which this "
            "model has; use native (the embedded policy: model.base.hidden 64 and heads 2 do)"
        )

    def leave(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    with _replaced(utils, "dispatch_cpu_unquantized_gemm", leave):
        yield


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextmanager
def _weights_on_disk(model: Any, tokenizer: Any) -> Iterator[None]:
    """vLLM starts from a folder or a hub id: where the policy has neither, one is written."""
    before = model.name_or_path
    folder = Path(before)
    on_disk = (folder / "config.json").exists() and any(folder.glob("*.safetensors"))
    if on_disk or (not folder.exists() and before.count("/") == 1):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="sps-vllm-") as made:
        plain = without_adapters(deepcopy(model)) if has_adapters(model) else model
        plain.save_pretrained(made)
        tokenizer.save_pretrained(made)
        model.name_or_path = made
        try:
            yield
        finally:
            model.name_or_path = before


def _await(server: str) -> None:
    """Wait for a server to come up, and say how to start one if it does not."""
    began = time.monotonic()
    while True:
        try:
            with urllib.request.urlopen(f"{server.rstrip('/')}/health", timeout=10):
                return
        except (OSError, ValueError) as error:
            # An answer of any kind is from a server that will not become another one.
            final = isinstance(error, ValueError | urllib.error.HTTPError)
            if final or time.monotonic() - began > _WAIT:
                raise UserError(
                    f"rollout.vllm.server: no vLLM server at {server} ({error}); start one with: "
                    f"{_COMMAND}"
                ) from None
        time.sleep(1)


def _first(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]
