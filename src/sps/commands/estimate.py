"""Memory and time of a recipe on one GPU or many: arithmetic, nothing is run.

Constants of one GPU come from measured runs on an H200 (docs/results_speed.md). Rates between GPUs
are from data sheets; nothing with more than one GPU was measured (docs/scaling.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from sps.config.recipe import Lora, Recipe
from sps.phases.schedule import Schedule
from sps.rollout.table import ENGINES

GIB = 2**30
ROOM = 0.95  # share of a GPU's memory that can be used: the rest is torch's, CUDA's and gaps
NODE = 8  # GPUs joined by NVLink
# layers, hidden, heads, key/value heads, width of a head, feed-forward, vocabulary, tied
SHAPES = {
    "Qwen/Qwen2.5-Math-1.5B": (28, 1536, 12, 2, 128, 8960, 151936, True),
    "Qwen/Qwen2.5-Math-7B": (28, 3584, 28, 4, 128, 18944, 152064, False),
    "Qwen/Qwen2.5-32B": (64, 5120, 40, 8, 128, 27648, 152064, False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": (28, 1536, 12, 2, 128, 8960, 151936, False),
    "HuggingFaceTB/SmolLM2-135M-Instruct": (30, 576, 9, 3, 64, 1536, 49152, True),
}
_PROMPT = 200  # tokens of a prompt, where the recipe does not say
_HIDDEN, _FF = 21.3, 5.8  # bytes of activations a token and layer, by hidden and feed-forward size
_EAGER = 1.7  # times as many where the layers are not compiled
_LAYER = 45e-6  # seconds of a decode step's layer, at the least
_BANDWIDTH, _RATE = 4.26e12, 990e12  # of an H200: bytes/s, FLOP/s
# Share of that rate which the update reached, compiled or not, at hidden sizes of 576 and of 1536.
_REACHED = {True: (0.30, 0.51), False: (0.14, 0.37)}
_BITS = {32: 8.0, 8: 2 + 2 * 4 / 256}  # bytes of two moments; a block of 256 has a scale
_LOGITS = 2 * 2**29  # bytes of the logits of a piece and of their gradient
_MESSAGE = 2**26  # gradients summed in one message, at the least
# vLLM's step as bench.gpu_rollout measured it with 128 and 512 rows: so much, and so much a row.
_VLLM_STEP, _VLLM_ROW = 2.7e-3, 42e-6
_VLLM_MORE = 2 * GIB  # its activations and graphs: a guess, not measured
# Bytes/s that a GPU sends, from data sheets: NVLink 4 has 900 GB/s for both directions together,
# and each GPU has a network adapter of 400 Gbit/s. All traffic of several nodes is counted at the
# rate between them, and none of it behind computation: both are on the safe side.
_NVLINK, _NETWORK = 450e9, 50e9


@dataclass(frozen=True)
class Shape:
    """What memory and time depend on."""

    layers: int
    hidden: int
    heads: int
    shared: int
    width: int
    ff: int
    vocabulary: int
    tied: bool

    @property
    def layer(self) -> int:
        """Parameters of one layer of a Llama-like decoder; biases are too few to count."""
        attention = self.hidden * self.width * (2 * self.heads + 2 * self.shared)
        return attention + 3 * self.hidden * self.ff + 2 * self.hidden

    @property
    def ends(self) -> int:
        """Parameters of the embedding and the output layer."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def weights(self) -> int:
        """Parameters in all."""
        return self.layers * self.layer + self.ends

    @property
    def cache_bytes(self) -> int:
        """Keys and values of one token in bf16."""
        return self.layers * self.shared * self.width * 2 * 2

    @property
    def linear(self) -> int:
        """Parameters of linear layers, which a pass in bf16 rounds: not of norms, nor of an
        embedding, be it the output layer or not."""
        head = 0 if self.tied else self.vocabulary * self.hidden
        return self.layers * (self.layer - 2 * self.hidden) + head

    @property
    def rounded(self) -> int:
        """Bytes of weights that are frozen: linear layers are held in bf16."""
        return 2 * self.linear + 4 * (self.weights - self.linear)

    def adapters(self, rank: int) -> int:
        """Parameters of LoRA on every linear layer."""
        wide = 2 * self.heads + 2 * self.shared
        ins_and_outs = 4 * self.hidden + wide * self.width + 3 * (self.hidden + self.ff)
        return self.layers * rank * ins_and_outs


@dataclass(frozen=True)
class Plan:
    """How a run is spread over GPUs."""

    gpus: int = 1
    sharded: bool = False  # FSDP2: weights, gradients and optimizer are divided over the GPUs
    engine: str = "native"
    tensor_parallel: int = 1  # GPUs that share vLLM's copy of the model

    @property
    def name(self) -> str:
        """As --sharding calls it, and the engine."""
        over = f" over {self.tensor_parallel}" if self.tensor_parallel > 1 and self.apart else ""
        engine = ENGINES[self.engine].label or self.engine
        return f"{'fsdp2' if self.sharded else 'replicated'}, {engine}{over}"

    @property
    def apart(self) -> bool:
        """Whether the engine holds weights of its own."""
        return ENGINES[self.engine].apart


@dataclass(frozen=True)
class Needs:
    """Bytes on each GPU, and seconds a step."""

    parts: dict[str, float]
    rollouts: float
    update: float
    traffic: float  # between GPUs
    host: float = 0.0  # bytes beside each GPU: what sleeps while a phase runs

    @property
    def total(self) -> float:
        """All parts: none is given back while another is needed."""
        return sum(self.parts.values())

    @property
    def seconds(self) -> float:
        """Of an RL step."""
        return self.rollouts + self.update + self.traffic

    def fits(self, memory: float) -> bool:
        """Whether a GPU with so many bytes is enough."""
        return self.total <= ROOM * memory


@dataclass(frozen=True)
class Evaluations:
    """What a run evaluates on one set of questions."""

    of: str
    times: int
    questions: int | None  # at the most; None: not known before the data is read
    n: int  # samples a question


@dataclass(frozen=True)
class _Share:
    """What falls to one GPU: the one with most of it."""

    drawn: int  # rows of a generation
    at_once: int  # of them
    learnt: int  # rows of an optimizer step
    length: int  # tokens of a row
    tokens: int  # of a forward pass
    passes: int


def needs(recipe: Recipe, shape: Shape, prompt: int = _PROMPT, plan: Plan | None = None) -> Needs:
    """Memory and time of an RL step in bf16, on each of the GPUs; all answers of full length."""
    plan = plan or Plan()
    share = _share(recipe, plan.gpus, prompt)
    parts = {
        **_states(recipe, shape, plan),
        **_passes(recipe, shape, plan, share),
        **_engine(shape, plan, share),
    }
    return Needs(
        {name: float(size) for name, size in parts.items() if size},
        _rollout_seconds(recipe, shape, plan, share),
        _update_seconds(recipe, shape, share),
        _traffic_seconds(recipe, shape, plan, share),
        _on_host(recipe, shape, plan),
    )


def evaluations(recipe: Recipe) -> Iterator[Evaluations]:
    """The evaluations of a run: on validation now and then, on the test set at the end."""
    asked, task, schedule = recipe.evaluation, recipe.task, Schedule(recipe)
    if times := len(schedule.evaluated()):
        times += len(recipe.checkpoint.shares) + 2 * len(asked.temperatures)  # at most
        yield Evaluations("validation", times, task.validation, asked.validation_n)
    if asked.final:
        names, limit = getattr(task, "benchmarks", ()), getattr(task, "limit", None)
        questions = (limit * len(names) if limit else None) if names else task.test
        saved, keep = len(schedule.saved()), recipe.checkpoint.keep
        tried = min(saved, keep + 1) if keep else saved
        times = 1 + tried * (asked.select == "paper" and tried > 1)  # each, then the best
        yield Evaluations("the test set", times, questions, asked.n)


def floor(recipe: Recipe, shape: Shape, shards: int = 1) -> float:
    """Bytes of weights, gradients and optimizer on a GPU: LoRA and 8 bits alone make them less."""
    trained = _trained(recipe, shape)
    held = 4 * trained + (shape.rounded if recipe.model.lora else 0)
    return (held + (4 + _moments(recipe)) * trained) / shards


def plan_of(recipe: Recipe, gpus: int, sharded: bool, engine: str | None = None) -> Plan:
    """As the recipe has it; `engine` overrules it."""
    name = engine or recipe.rollout.engine
    asked = getattr(recipe.rollout, name).tensor_parallel if ENGINES[name].apart else 1
    return Plan(gpus, sharded, name, min(gpus, asked))


def lighter(recipe: Recipe, shape: Shape, plan: Plan, memory: float) -> str | None:
    """The fewest settings, none of them of the algorithm, with which a plan fits; "" for none."""
    small = list(_smaller(recipe, plan))
    for count in range(len(small) + 1):
        for chosen in combinations(small, count):
            changed = recipe
            for _, change in chosen:
                changed = change(changed)
            if needs(changed, shape, plan=plan).fits(memory):
                return ", ".join(words for words, _ in chosen)
    return None


def _smaller(recipe: Recipe, plan: Plan) -> Iterator[tuple[str, Callable[[Recipe], Recipe]]]:
    """Settings that take less memory; one that rounds is the last to be tried."""
    length = _PROMPT + recipe.rollout.max_new_tokens
    if not recipe.model.checkpointing:
        yield "model.checkpointing: true", lambda r: _with(r, "model", checkpointing=True)
    if recipe.rl.micro_tokens > length:
        yield f"rl.micro_tokens: {length}", lambda r: _with(r, "rl", micro_tokens=length)
    if recipe.rollout.max_rows > 8:
        yield "rollout.max_rows: 8", lambda r: _with(r, "rollout", max_rows=8)
    used = ("rl", "irl") if recipe.irl.steps else ("rl",)
    wide = [branch for branch in used if getattr(recipe, branch).optimizer.bits > 8]
    if wide and not plan.sharded:

        def rounded(changed: Recipe) -> Recipe:
            for branch in wide:
                own = getattr(changed, branch).optimizer.model_copy(update={"bits": 8})
                changed = _with(changed, branch, optimizer=own)
            return changed

        yield ", ".join(f"{branch}.optimizer.bits: 8" for branch in wide), rounded


def remedies(recipe: Recipe, shape: Shape, plan: Plan, memory: float) -> Iterator[str]:
    """Ways to make a run fit that does not, by this arithmetic; the gentlest first."""
    found = lighter(recipe, shape, plan, memory)
    if found is not None:
        yield found
        if "bits" not in found:  # which rounds: more GPUs do not
            return
    for words, other in _larger(plan):
        more = lighter(recipe, shape, other, memory)
        if more is not None:
            yield ", ".join(filter(None, [words, more]))
            break
    if recipe.model.lora is None:
        alone = replace(plan, sharded=False)
        more = lighter(_with(recipe, "model", lora=Lora()), shape, alone, memory)
        if more is not None:
            yield ", ".join(filter(None, ["model.lora: {}", more]))


def _larger(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Plans that take less of each GPU: sharded, vLLM sharing one copy, more GPUs."""
    more_gpus = (n for n in (2, 4, 8, 16, 32, 64) if n > plan.gpus)
    for gpus in [*([plan.gpus] if plan.gpus > 1 else []), *more_gpus]:
        width = min(gpus, NODE)
        more = f"{gpus} GPUs, " if gpus > plan.gpus else ""
        sharded = replace(plan, gpus=gpus, sharded=True)
        yield f"{more}launch/fsdp2.yaml", sharded
        for name in (name for name, row in ENGINES.items() if row.apart):
            keys = f"rollout.engine: {name}, rollout.{name}.tensor_parallel: {width}"
            other = replace(sharded, engine=name, tensor_parallel=width)
            yield f"{more}launch/fsdp2.yaml, {keys}", other


def _with(recipe: Recipe, branch: str, **changes: Any) -> Recipe:
    return recipe.model_copy(update={branch: getattr(recipe, branch).model_copy(update=changes)})


def _trained(recipe: Recipe, shape: Shape) -> int:
    lora = recipe.model.lora
    return shape.weights if lora is None else shape.adapters(lora.rank)


def _share(recipe: Recipe, gpus: int, prompt: int) -> _Share:
    rollout, rounds = recipe.rollout, recipe.rl.algorithm.steps_per_generation
    drawn = -(-rollout.prompts * rounds // gpus) * rollout.n  # whole groups
    learnt = -(-rollout.prompts * rollout.n // gpus)
    length = prompt + rollout.max_new_tokens
    in_a_pass = max(1, recipe.rl.micro_tokens // length)
    tokens = max(length, min(recipe.rl.micro_tokens, learnt * length))
    at_once = min(drawn, rollout.max_rows)
    return _Share(drawn, at_once, learnt, length, tokens, -(-learnt // in_a_pass))


def _states(recipe: Recipe, shape: Shape, plan: Plan) -> dict[str, float]:
    """What lasts: divided over the GPUs where it is sharded."""
    trained, lora = _trained(recipe, shape), recipe.model.lora is not None
    shards = plan.gpus if plan.sharded else 1
    # Replicated, adapters and their reference share what is frozen.
    reference = 2 * trained if lora and not plan.sharded else shape.rounded
    whole = {
        "weights, float32": 4 * trained,
        "frozen weights, linear layers in bf16": shape.rounded if lora else 0,
        "gradients": 4 * trained,
        "optimizer": _moments(recipe) * trained,
        "reference policy, linear layers in bf16": reference * (recipe.rl.algorithm.beta > 0),
    }
    return {name: size / shards for name, size in whole.items()}


def _on_host(recipe: Recipe, shape: Shape, plan: Plan) -> float:
    """Weights before the phase, for the meter, and the moments of the phase that sleeps."""
    kept = recipe.irl.optimizer_state == "kept"
    asleep = max(_BITS[recipe.rl.optimizer.bits], _BITS[recipe.irl.optimizer.bits] * kept)
    mixing = 8 * shape.weights * (bool(recipe.checkpoint.shares) and recipe.model.lora is None)
    trained = _trained(recipe, shape) / (plan.gpus if plan.sharded else 1)
    # A mix is made at the end, when the meter's copy is gone.
    return asleep * trained * (recipe.irl.steps > 0) + max(4 * trained, mixing)


def _moments(recipe: Recipe) -> float:
    """Bytes a weight of the optimizer at work: that of the other phase is on the host."""
    used = [recipe.rl.optimizer.bits] + [recipe.irl.optimizer.bits] * bool(recipe.irl.steps)
    return max(_BITS[bits] for bits in used)


def _passes(recipe: Recipe, shape: Shape, plan: Plan, share: _Share) -> dict[str, float]:
    """What a forward and backward pass needs."""
    layer = share.tokens * (_HIDDEN * shape.hidden + _FF * shape.ff)
    layer *= _EAGER if recipe.model.compile is False else 1
    head = shape.vocabulary * shape.hidden
    ends = _LOGITS + (2 if plan.sharded else 6) * head
    # Layers that are computed again are so one by one, and after the output layer is done with.
    again = share.tokens * 4 * shape.hidden * shape.layers + max(0.0, layer - ends)
    activations = again if recipe.model.checkpointing else layer * shape.layers
    out = {"activations": activations, "output layer": ends}
    if plan.sharded:
        # A layer in bf16 and the next one, its gradient in bf16 and in float32 to be sent; the
        # same, but once, for the embedding and the output layer.
        gathered = (2 * 2 + 2 + 4) * shape.layer + (2 + 4) * shape.ends
        return out | {"gathered layers": gathered}
    return out | {"messages": 4 * (_MESSAGE + head) if plan.gpus > 1 else 0}


def _engine(shape: Shape, plan: Plan, share: _Share) -> dict[str, float]:
    """Weights of the engine, and keys and values of its rows."""
    cache = share.at_once * share.length * shape.cache_bytes
    if plan.apart:
        own = 2 * shape.weights / plan.tensor_parallel
        return {"vLLM's weights": own, "cache of the rollouts": cache, "vLLM's work": _VLLM_MORE}
    return {"the engine's bf16 copy": 2 * shape.weights, "cache of the rollouts": cache}


def _rollout_seconds(recipe: Recipe, shape: Shape, plan: Plan, share: _Share) -> float:
    """Every token is a step that reads all weights and, on average, half of the cache."""
    read = share.at_once * share.length / 2 * shape.cache_bytes
    if plan.apart:
        parallel = plan.tensor_parallel
        step = _VLLM_STEP + _VLLM_ROW * share.at_once * parallel
        step += (2 * shape.weights / parallel + read) / _BANDWIDTH
    else:
        step = shape.layers * _LAYER + (2 * shape.weights + read) / _BANDWIDTH
    waves = -(-share.drawn // share.at_once)
    steps = waves * recipe.rollout.max_new_tokens
    return steps * step / recipe.rl.algorithm.steps_per_generation


def _update_seconds(recipe: Recipe, shape: Shape, share: _Share) -> float:
    per_token = 8 if recipe.model.checkpointing else 6
    if recipe.rl.algorithm.beta > 0:
        per_token += 2  # the reference's forward pass
    small, large = _REACHED[recipe.model.compile is not False]
    place = math.log(shape.hidden / 576) / math.log(1536 / 576)
    reached = small + (large - small) * min(1.0, max(0.0, place))
    return per_token * shape.weights * share.learnt * share.length / (_RATE * reached)


def _traffic_seconds(recipe: Recipe, shape: Shape, plan: Plan, share: _Share) -> float:
    """Replicated: gradients are summed once a step, each sent twice. Sharded: in every pass bf16
    weights are gathered forwards and backwards and gradients scattered; then the engine's copy."""
    if plan.gpus == 1:
        return 0.0
    if plan.sharded:
        reference = 2 if recipe.rl.algorithm.beta > 0 else 0
        sent = share.passes * (2 + 2 + 4 + reference) * shape.weights + 4 * shape.weights
    else:
        sent = 2 * 4 * _trained(recipe, shape)
    rate = _NVLINK if plan.gpus <= NODE else _NETWORK
    return sent * (plan.gpus - 1) / plan.gpus / rate
