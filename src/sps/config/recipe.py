"""The recipe: one YAML file, one closed and frozen tree. An unknown key is an error, not a wish."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from sps.config.rl import IRL, RL, PassK
from sps.config.tasks import CountdownTask, Node, NonNegative, Positive, Rate, Share, Task
from sps.errors import UserError
from sps.run.reading import parse_yaml, read_text

_LARGEST = 256 * 2**10  # bytes of a recipe
_SHOWN = 20  # faults in an error
Branch = TypeVar("Branch", bound=Node)
_LONGEST = 100  # bytes of a name, and recipes that extend each other


def _name_of_a_folder(name: str) -> str:
    """The name goes into paths: it is one folder, below the one where runs are."""
    plain = name.isprintable() and not set(name) & set("/\\") and name.strip(" .-") != ""
    if not plain or name != name.strip() or len(name.encode()) > _LONGEST:
        raise ValueError(
            f"it names a folder: at most {_LONGEST} letters, digits and signs, without / and \\"
        )
    return name


class BaseTraining(Node):
    """How the embedded policy is made from scratch; its hash names the cached result."""

    seed: int = 0
    steps: Positive = 3000
    batch: Positive = 128
    lr: Rate = 3e-3
    solved: Share = 0.5  # share of attempts that reach the target; the rest are legal but aimless
    hidden: Positive = 96
    layers: Positive = 3
    heads: Positive = 4
    ff: Positive = 192


class Lora(Node):
    """Train small adapters and leave the model's own weights alone (extra `lora`)."""

    rank: Positive = 16
    alpha: Positive = 32
    targets: str | tuple[str, ...] = "all-linear"  # or names such as [q_proj, v_proj]
    seed: int = 0  # of the adapters' first weights


class Model(Node):
    """Which policy to start from."""

    path: str | None = None  # HF folder, hub id, or a run's checkpoint; None: the embedded policy
    gguf: str | None = None  # file name of a GGUF inside path
    trust_remote_code: bool = False  # run the code that comes with the model: read it first
    # Of the computation, weights stay in float32; auto: bfloat16 on a GPU, float32 on a CPU.
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    checkpointing: bool = False  # compute activations twice: slower, far less memory
    compile: bool | None = None  # compile the layers for training; None: on a GPU alone
    lora: Lora | None = None
    base: BaseTraining = BaseTraining()  # used when path is None

    @property
    def place(self) -> str:
        """The device asked for; the embedded policy is too small for a GPU that nobody asks for."""
        return "cpu" if self.path is None and self.device == "auto" else self.device


class Vllm(Node):
    """The vLLM engine (extra `vllm`), used when rollout.engine is vllm."""

    mode: Literal["colocate", "server"] = "colocate"  # in this process, or on a server
    server: str = "http://localhost:8000"  # in server mode
    memory: Annotated[float, Field(gt=0, le=1)] = 0.3  # colocated: vLLM's share of the device's
    tensor_parallel: Positive = 1  # colocated: processes that share one copy of the model
    sleep: bool = False  # colocated: give vLLM's memory back while training; GPU alone
    max_length: Positive | None = None  # tokens of prompt and answer; None: what the model takes


class Rollouts(Node):
    """How an RL batch is drawn."""

    engine: Literal["native", "vllm"] = "native"
    vllm: Vllm = Vllm()
    prompts: Positive = 16  # problems an optimizer step
    n: Annotated[int, Field(ge=2)] = 8  # samples a problem: the group
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: NonNegative = 0
    max_new_tokens: Positive = 20
    max_rows: Positive = 2048  # sequences decoded at once; bounds memory
    correct: Annotated[float, Field(gt=0)] | None = None  # cap of the weight of a token by which
    # the trainer finds it likelier than the engine did (truncated importance sampling); None: off
    gap_warn: Rate = 0.05  # nats a token between trainer and engine above which a warning is logged
    gap_stop: Annotated[float, Field(gt=0)] | None = (
        None  # and above which the run ends; None: what
    )
    # rounding cannot explain, 0.3 in bfloat16 and 0.05 in float32

    @model_validator(mode="after")
    def _whole(self) -> Rollouts:
        if self.engine == "vllm" and (self.top_p < 1 or self.top_k):
            raise ValueError(
                "with engine: vllm keep top_p: 1 and top_k: 0; vLLM gives log-probabilities of "
                "what is left after truncation, and training needs those before it"
            )
        return self


class Evaluation(Node):
    """Pass@k and Avg@n on held-out problems."""

    n: Positive = 128
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: NonNegative = 0
    every: NonNegative = 100  # RL steps between evaluations on the validation set; 0: none at all
    validation_n: Positive = 32  # samples a problem there
    seed: int = 12345
    final: bool = True  # evaluate the selected checkpoint on the test set
    select: Literal["last", "honest", "paper"] = "last"
    # last: the final weights; honest: best Avg@n on validation; paper: best on the test set itself

    @model_validator(mode="after")
    def _validated(self) -> Evaluation:
        if self.select == "honest" and not self.every:
            raise ValueError(
                "select: honest takes the best on the validation problems, and every: 0 never "
                "evaluates there; set every to some RL steps, or select: last"
            )
        return self


class Checkpoints(Node):
    """What is kept on disk."""

    every: NonNegative = 100  # RL steps; 0: only at the end
    keep: NonNegative = 0  # how many to keep besides the selected one; 0: all


class Meter(Node):
    """How far each phase moved the policy."""

    problems: Positive = 16  # held-out problems whose rollouts measure the KL
    samples: Positive = 4
    still: Rate = 1e-6  # relative weight change under which a phase is said not to have moved


class Recipe(Node):
    """One run."""

    name: Annotated[str, AfterValidator(_name_of_a_folder)] = "run"
    seed: NonNegative = 0
    threads: NonNegative = 0  # CPU threads; 0: one for a small policy, else as they are
    track: Literal["trackio", "wandb", "tensorboard"] | None = None  # also send the record there
    model: Model = Model()
    task: Task = CountdownTask()
    rollout: Rollouts = Rollouts()
    rl: RL = RL()
    irl: IRL = IRL()
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoints = Checkpoints()
    meter: Meter = Meter()

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.irl.keep > self.rollout.n:
            raise ValueError(
                f"irl.keep ({self.irl.keep}) is above rollout.n ({self.rollout.n}): "
                "a group has no more rollouts than that"
            )
        algorithm = self.rl.algorithm
        if isinstance(algorithm, PassK) and algorithm.k >= self.rollout.n:
            raise ValueError(
                f"rl.algorithm.k ({algorithm.k}) is not below rollout.n ({self.rollout.n}): "
                "one set of k has nothing to be compared with"
            )
        return self


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, what it extends, and `a.b=c` overrides; every error names file and key."""
    tree = _read_tree(Path(path), seen=())
    for item in overrides:
        _override(tree, item)
    return parse_recipe(tree, str(path), overrides)


def parse_recipe(tree: Mapping[str, Any], source: str, overrides: Sequence[str] = ()) -> Recipe:
    """Validate a plain tree; errors blame `source`, or the override that gave the key."""
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise UserError(_explain(error, source, overrides)) from None


def parse_branch(kind: type[Branch], name: str, tree: Mapping[str, Any], source: str) -> Branch:
    """One branch of a recipe alone, such as `irl`; errors name its keys as they are in a recipe."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise UserError(_explain(error, source, (), name)) from None


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML, every default written out."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)


def differences(old: Mapping, new: Mapping, place: str = "") -> Iterator[str]:
    """What changed, a few words a key, from one recipe's tree to another's; auto takes any."""
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from differences(a, b, f"{place}{key}.")
        elif a != b and b != "auto":
            yield f"{place}{key} was {a!r}, is {b!r}"


def _read_tree(path: Path, seen: tuple[Path, ...], child: Path | None = None) -> dict[str, Any]:
    if path.resolve() in seen or len(seen) > _LONGEST:
        raise UserError(f"{path}: `extends` goes in a circle, or through too many recipes")
    try:
        tree = parse_yaml(read_text(path, _LARGEST))
    except FileNotFoundError:
        if child is not None:
            raise UserError(
                f"{child}: extends: {path}: no such recipe. The path starts at the folder of "
                "the recipe that extends"
            ) from None
        raise UserError(f"{path}: no such recipe. Try one of the files in recipes/.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}).") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(
            f"{path}: a recipe is a mapping of keys to values, not {type(tree).__name__}"
        )
    parent = tree.pop("extends", None)
    if parent is None:
        return tree
    base = _read_tree(path.parent / str(parent), (*seen, path.resolve()), path)
    return _merge(base, tree)


def _merge(base: dict[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Top wins; mappings merge, unless `type` changes: another type's keys would not fit."""
    changed = "type" in top and "type" in base and top["type"] != base["type"]
    out = {} if changed else dict(base)
    for key, value in top.items():
        old = out.get(key)
        out[key] = (
            _merge(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
        )
    return out


def _override(tree: dict[str, Any], item: str) -> None:
    key, sep, value = item.partition("=")
    if not sep or not key.strip():
        raise UserError(f"--set {item}: write it as key.path=value, such as --set rl.lr=1e-6")
    try:
        parsed = parse_yaml(value)
    except ValueError as error:
        raise UserError(f"--set {item}: the value {error}") from None
    *path, last = key.strip().split(".")
    node = tree
    for part in path:
        child = node.setdefault(part, {})
        if child is None:  # given without a value
            child = node[part] = {}
        if not isinstance(child, dict):
            raise UserError(f"--set {item}: {part} is a value, not a group of keys")
        node = child
    if last == "type" and node.get("type", parsed) != parsed:
        node.clear()
    if isinstance(parsed, dict) and isinstance(node.get(last), dict):
        parsed = _merge(node[last], parsed)
    node[last] = parsed


def _explain(error: ValidationError, source: str, overrides: Sequence[str], *branch: str) -> str:
    """One line a fault: file or option, key, what is wrong, and the nearest right name."""
    lines: dict[str, list[str]] = {}
    faults = error.errors()
    for fault in faults[:_SHOWN]:
        place = [*branch, *(str(part) for part in fault["loc"])]
        said = _said(fault, place)
        lines.setdefault(_blamed(_name(place), said, overrides) or source, []).append(said)
    text = "; ".join(f"{where}: {'; '.join(said)}" for where, said in lines.items())
    return text + (f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else "")


def _said(fault: Mapping[str, Any], place: list[str]) -> str:
    got = fault.get("input")
    mapping = fault["type"] in ("model_type", "model_attributes_type")  # one is needed
    if fault["type"] == "extra_forbidden":
        return _unknown_key(place)
    if fault["type"] == "union_tag_invalid":
        asked = fault["ctx"]
        return f"{_name(place)}: no type {asked['tag']!r}; choose {asked['expected_tags']}"
    if got is None:
        what = "a mapping of its keys" if mapping else "one"
        return f"{_name(place)}: the key has no value; leave it out, or give it {what}"
    if mapping and isinstance(got, str) and "type" in _keys_at(place):
        return f"{_name(place)}: write {_nested(_name(place).split('.'), got)}"
    if mapping:
        known = ", ".join(_keys_at(place))
        return (
            f"{_name(place)}: give it a mapping of its keys, not {_brief(got)}; known keys: {known}"
        )
    message = fault["msg"].removeprefix("Value error, ")
    shown = f" (got {_brief(got)})" if isinstance(got, str | int | float | bool) else ""
    return f"{_name(place) or 'recipe'}: {message}{shown}"


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _nested(keys: Sequence[str], kind: str) -> str:
    """`a: {b: {type: kind}}` for the keys a and b."""
    return ": {".join([*keys, f"type: {kind}"]) + "}" * len(keys)


def _blamed(name: str, said: str, overrides: Sequence[str]) -> str | None:
    """The --set that gave a key, its mapping, or what the fault of a mapping names; the last."""
    for item in reversed(overrides):
        key = item.partition("=")[0].strip()
        below = key.startswith(f"{name}.") and key.removeprefix(f"{name}.") in said
        if f"{name}.".startswith(f"{key}.") or below:
            return f"--set {item}"
    return None


def _name(place: Sequence[str]) -> str:
    """A key as people write it: without the tag of a task or an algorithm."""
    for union in (["task"], ["rl", "algorithm"]):
        if list(place[: len(union)]) == union:
            return ".".join([*union, *place[len(union) + 1 :]])
    return ".".join(place)


def _unknown_key(place: list[str]) -> str:
    known = _keys_at(place[:-1])
    near = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
    return f"{_name(place)}: no such key; {hint}"


def _keys_at(place: Sequence[str]) -> list[str]:
    """Field names at a place in the tree; a union's tag in the place picks its member."""
    nodes: list[type[BaseModel]] = [Recipe]
    for part in place:
        below = [m for node in nodes if part in node.model_fields for m in _members(node, part)]
        tagged = [n for n in nodes if "type" in n.model_fields]
        nodes = below or [n for n in tagged if n.model_fields["type"].default == part] or nodes
    return sorted({name for node in nodes for name in node.model_fields})


def _members(node: type[BaseModel], name: str) -> list[type[BaseModel]]:
    found: list[type[BaseModel]] = []
    stack = [node.model_fields[name].annotation]
    while stack:
        kind = stack.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found.append(kind)
        else:
            stack.extend(getattr(kind, "__args__", ()))
    return found
