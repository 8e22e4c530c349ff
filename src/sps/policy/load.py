"""A policy from anywhere: a Hugging Face folder or hub id, a GGUF file, a run's checkpoint."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    logging,
)

from sps.errors import UserError
from sps.logits import scaled_logits
from sps.policy.cpu_attention import use_short
from sps.policy.files import base_of, check_files, check_loaded, in_one_line
from sps.policy.layers import compile_layers, recompute_layers
from sps.policy.logprobs import Scorer
from sps.policy.placement import round_frozen

_SMALL = 64 * 2**20  # bytes of weights


@dataclass
class Policy:
    """A model with its tokenizer. `version` counts the optimizer steps it has seen."""

    model: Any
    tokenizer: Any
    source: str
    version: int = 0
    scorer: Scorer = field(init=False)  # the model's training pass

    def __post_init__(self) -> None:
        self.scorer = Scorer(self.model)

    @property
    def eos_ids(self) -> list[int]:
        """Every token that ends a completion."""
        ids: set[int] = set()
        for owner in (self.model.generation_config, self.model.config, self.tokenizer):
            found = getattr(owner, "eos_token_id", None)
            several = found if isinstance(found, list | tuple) else [found]
            ids.update(i for i in several if i is not None)
        return sorted(ids)

    @property
    def pad_id(self) -> int:
        """What fills up a batch; any token will do, since pads are never looked at."""
        pad = self.tokenizer.pad_token_id
        return pad if pad is not None else self.eos_ids[0]

    @property
    def weight_dtype(self) -> str:
        """Of the weights that are trained, by name; the computation may have another."""
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    def encode(self, prompt: str | list[dict[str, str]]) -> tuple[int, ...]:
        """See `encode`; of a prompt without tokens nothing can be drawn."""
        if ids := encode(self.tokenizer, prompt, self.source):
            return ids
        raise UserError(
            f"{self.source}: its tokenizer makes no token of the prompt {str(prompt)[:60]!r}, so "
            "there is nothing to go on from; put words that it knows into every prompt"
        )

    def decode(self, ids: Any) -> str:
        """Text of a completion, without end and pad tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def encode(tokenizer: Any, prompt: str | list[dict[str, str]], source: str) -> tuple[int, ...]:
    """Token ids of plain text, or of chat messages through the tokenizer's template."""
    if isinstance(prompt, str):
        return tuple(tokenizer(prompt)["input_ids"])
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            f"{source}: its tokenizer has no chat template; choose another prompt "
            "template (task.template in a recipe, --template here): plain, qwen_boxed or r1"
        )
    ids = tokenizer.apply_chat_template(
        prompt, add_generation_prompt=True, tokenize=True, return_dict=True
    )["input_ids"]
    return tuple(ids)


def prepare_training(model: Any, checkpointing: bool = False, compiled: bool = False) -> None:
    """Less memory, or less time, in the training pass. Sampling runs the plain layers."""
    if checkpointing:
        recompute_layers(model)
    if compiled:
        compile_layers(model)


def use_adapters(
    model: Any,
    rank: int = 0,
    alpha: int = 0,
    targets: str | Sequence[str] = "all-linear",
    seed: int = 0,
) -> None:
    """LoRA on the model's linear layers, which alone is trained from now on; rank 0: none.

    Adapters that were loaded with the model are frozen: they go on, with the shape they have.
    """
    if getattr(model, "_hf_peft_config_loaded", False):
        found = model.peft_config["default"]
        if (rank, alpha) != (found.r, found.lora_alpha):
            own = f"{{rank: {found.r}, alpha: {found.lora_alpha:g}}}"
            raise UserError(
                f"model.path holds LoRA adapters of rank {found.r} and alpha "
                f"{found.lora_alpha:g}: train them on with model.lora: {own}, or merge them into "
                "their model first"
            )
    elif rank:
        _add_lora(model, rank, alpha, targets, seed)
    else:
        return
    for name, weight in model.named_parameters():
        weight.requires_grad_("lora_" in name)
    round_frozen(model)


def _add_lora(model: Any, rank: int, alpha: int, targets: str | Sequence[str], seed: int) -> None:
    try:
        from peft import LoraConfig
    except ImportError:
        raise UserError(
            "model.lora: peft is not installed; install the extra: sps-rl[lora]"
        ) from None
    layers = targets if isinstance(targets, str) else list(targets)
    if lost := [] if isinstance(layers, str) else _not_in(model, layers):
        raise _no_targets(model, lost, "the model has none of that name")
    how = LoraConfig(r=rank, lora_alpha=alpha, target_modules=layers, task_type="CAUSAL_LM")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            model.add_adapter(how)
        except re.error as error:
            raise _no_targets(model, layers, f"it is no regular expression: {error}") from None
        except ValueError as error:  # no such layers, layers without matrices
            raise _no_targets(model, layers, in_one_line(error)) from None


def _not_in(model: Any, layers: Sequence[str]) -> list[str]:
    """Names that no layer has: peft leaves them out without a word where it finds others."""
    found = [f".{name}" for name, _ in model.named_modules()]
    return [layer for layer in layers if not any(name.endswith(f".{layer}") for name in found)]


def _no_targets(model: Any, layers: str | Sequence[str], why: str) -> UserError:
    linear = (name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear))
    names = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in linear))
    return UserError(
        f"model.lora.targets: {layers}: {why}; write all-linear, or names of its linear layers"
        f"{f': {names}' * bool(names)}"
    )


def load_policy(
    path: str,
    gguf: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    trust: bool = False,
    empty: bool = False,
) -> Policy:
    """Load model and tokenizer; what is missing or broken is said in one sentence.

    Code that comes with a model runs only with `trust`; nobody is ever asked on the terminal.
    `empty` leaves the weights on the meta device: another rank has them, and will send its shard.
    """
    folder, gguf = find_model(path, gguf)
    where = str(folder)
    if folder.is_dir() and not gguf:
        _refuse_no_model(folder)
        check_files(folder)
    tokenizer, model = _load(folder, gguf, trust, empty)
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise UserError(
            f"model.path: {where}: the tokenizer has {len(tokenizer)} tokens but the model embeds "
            f"only {model.get_input_embeddings().num_embeddings}; they do not belong together"
        )
    if gguf:  # the weights are plain ones by now; transformers would refuse to save them
        model.hf_quantizer = None
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
    # Weights stay in float32, so that small updates are kept; only the computation is rounded.
    model.compute_dtype = getattr(torch, dtype)
    model = model.eval() if empty else model.to(device).eval()
    use_short(model)
    if not empty:
        check_logits(model, where)
    return Policy(model, tokenizer, where)


def find_model(path: str, gguf: str | None) -> tuple[Path, str | None]:
    """Folder, or hub id, and GGUF file of a model; one that can only be meant to be here, is."""
    folder = Path(path)
    if folder.suffix == ".gguf" and gguf is None:
        folder, gguf = folder.parent, folder.name
    where = str(folder)
    if gguf and not (folder / gguf).is_file():
        raise UserError(f"model.path: there is no file {gguf} in {where}")
    if folder.is_file() and not gguf:
        raise UserError(f"model.path: {where} is a file; name the folder of the model")
    looks_local = where.startswith((".", "/", "~")) or where.count("/") != 1
    if looks_local and not folder.exists():
        raise UserError(
            f"model.path: there is no folder {where}. Give the folder of a Hugging Face model, "
            "a run's checkpoint, a .gguf file, or a hub id such as Qwen/Qwen2.5-Math-1.5B"
        )
    return folder, gguf


def _load(folder: Path, gguf: str | None, trust: bool, empty: bool) -> tuple[Any, Any]:
    """Tokenizer and model, whole: every weight comes from the files and has its place."""
    where, base = str(folder), "" if gguf else base_of(folder)
    shown = base or str(folder / gguf if gguf else folder)
    extra: dict[str, Any] = {"gguf_file": gguf} if gguf else {}
    extra["trust_remote_code"] = trust
    exact = {"dtype": torch.float32, "weights_only": True, "ignore_mismatched_sizes": True}
    quiet = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # The GGUF reader draws bars of its own that nothing else switches off.
    hush = redirect_stderr(io.StringIO()) if gguf else nullcontext()
    try:
        with hush:
            tokenizer: Any = AutoTokenizer.from_pretrained(where, **extra)
            if empty:
                model = _empty_model(base or where, extra)
            else:
                model, info = AutoModelForCausalLM.from_pretrained(
                    base or where, output_loading_info=True, **exact, **extra
                )
                check_loaded(shown, info)
            if base:  # in two steps: transformers would forget what it found of the model
                check_loaded(where, model.load_adapter(where).to_dict())
    except UserError:
        raise
    except Exception as error:  # a damaged file fails in as many ways as there are readers
        raise UserError(_cannot_load(shown, error, trust)) from None
    finally:
        logging.set_verbosity(quiet)
    return tokenizer, model


def _empty_model(where: str, extra: dict[str, Any]) -> Any:
    """The model without its weights; buffers, which follow from its configuration, are real."""
    config, trust = AutoConfig.from_pretrained(where, **extra), extra["trust_remote_code"]
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, trust_remote_code=trust
        )
    model.tie_weights()  # again: each weight that was put on the meta device became another one
    if "gguf_file" not in extra:  # beside which transformers reads no other
        with suppress(OSError):  # not every model has one
            model.generation_config = GenerationConfig.from_pretrained(where)
    return model


def _cannot_load(where: str, error: Exception, trust: bool) -> str:
    if "trust_remote_code" in str(error) and not trust:
        return (
            f"model.path: {where} brings code of its own, which is not run. If you have read it "
            "and trust it, say so: model.trust_remote_code: true in a recipe, "
            "--trust-remote-code for sps eval"
        )
    if isinstance(error, pickle.UnpicklingError):
        return (
            f"model.path: {where} cannot be loaded: its .bin file is damaged, or holds more than "
            "weights, which could run as code; use safetensors"
        )
    return f"model.path: {where} cannot be loaded: {in_one_line(error)}"


def _refuse_no_model(folder: Path) -> None:
    """A folder of runs is easily taken for that of a model: name one that it holds."""
    if _holds_model(folder):
        return
    below = ("mixed", "checkpoints/mixed", "step-*", "checkpoints/step-*")
    below += ("seed-*/checkpoints/mixed", "seed-*/checkpoints/step-*")
    for pattern in (*below, "*/seed-*/checkpoints/step-*", "*.gguf"):
        found = [p for p in sorted(folder.glob(pattern)) if p.is_file() or _holds_model(p)]
        if found:
            raise UserError(f"{folder} holds no model (no config.json); give {found[-1]}")
    raise UserError(
        f"{folder} holds no model (no config.json). Give the folder of a Hugging Face model, "
        "a run's checkpoint, a .gguf file, or a hub id such as Qwen/Qwen2.5-Math-1.5B"
    )


def _holds_model(folder: Path) -> bool:
    return any((folder / kind).exists() for kind in ("config.json", "adapter_config.json"))


@torch.no_grad()
def check_logits(model: Any, where: str) -> None:
    """Compare the model's own logits with ours: a change we do not know would go unnoticed."""
    ids = torch.arange(4, device=model.device)[None]
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    ours = scaled_logits(model.get_output_embeddings()(hidden), model.config)
    own = model(input_ids=ids, use_cache=False).logits
    if not own.isfinite().all():
        raise UserError(
            f"model.path: {where}: the weights give logits that are no numbers (NaN or infinite); "
            "they are damaged, or a training run went astray"
        )
    if not torch.allclose(ours, own, rtol=1e-3, atol=1e-3 * float(own.abs().max())):
        raise UserError(
            f"model.path: {where}: {type(model).__name__} changes its logits in a way that is not "
            "known here, so its probabilities would be wrong; use a model of another family"
        )


def best_threads(model: Any) -> int:
    """One for a small model on a CPU: more would only wait for each other, most on a busy one."""
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    alone = model.device.type in ("cpu", "meta") and size < _SMALL
    return 1 if alone else torch.get_num_threads()


def pick_dtype(asked: str, device: str) -> str:
    """'auto' is bfloat16 on a GPU and float32 on a CPU."""
    rounded = "bfloat16" if device == "cuda" else "float32"
    return rounded if asked == "auto" else asked


def pick_device(asked: str, key: str = "--device") -> str:
    """'auto' is CUDA where there is one; errors name the key."""
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError(f"{key}: cuda is asked for but there is no CUDA device; use auto or cpu")
    return asked
