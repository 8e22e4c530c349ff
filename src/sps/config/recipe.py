"""The recipe: one closed and frozen tree. An unknown key is an error."""

from __future__ import annotations

import os.path
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from sps.config.irl import IRL
from sps.config.rl import RL
from sps.config.tasks import TaskConfig
from sps.rollout.table import ENGINES, NativeConfig, VllmConfig, known_engine
from sps.schema import MOST_SAMPLES, Node, NonNegative, Positive, Rate, Samples, Share
from sps.tasks.countdown import CountdownConfig

_LONGEST = 100  # bytes of a name
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the base, in a mix


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

    # HF folder, hub id, or a run's checkpoint; None: the embedded policy
    path: Annotated[str, AfterValidator(os.path.expanduser)] | None = None
    gguf: str | None = None  # file name of a GGUF inside path
    trust_remote_code: bool = False  # run the code that comes with the model: read it first
    # Of the computation; weights are float32. auto: bfloat16 on a GPU, float32 on a CPU.
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    checkpointing: bool = False  # compute activations twice: slower, far less memory
    compile: bool | None = None  # compile the layers for training; None: on a GPU alone
    lora: Lora | None = None
    base: BaseTraining = BaseTraining()  # used when path is None

    @property
    def place(self) -> str:
        """The device asked for; with auto the embedded policy runs on a CPU, being small."""
        return "cpu" if self.path is None and self.device == "auto" else self.device


class Rollouts(Node):
    """How an RL batch is drawn."""

    engine: Annotated[str, AfterValidator(known_engine)] = "native"
    native: NativeConfig = NativeConfig()
    vllm: VllmConfig = VllmConfig()
    prompts: Positive = 16  # problems an optimizer step
    n: Annotated[int, Field(ge=2, le=MOST_SAMPLES)] = 8  # samples a problem: the group
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: NonNegative = 0
    max_new_tokens: Positive = 20
    max_rows: Positive = 2048  # sequences decoded at once; fewer where a GPU is short of memory
    # Cap on the importance weight p_trainer / p_engine of each token; None: no such weights.
    correct: Annotated[float, Field(gt=0)] | None = None
    # Engine gap, in nats a token, that is warned of, and the one that ends the run; None: more than
    # rounding explains, 0.3 in bfloat16 and 0.05 in float32.
    gap_warn: Rate = 0.05
    gap_stop: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Rollouts:
        if not ENGINES[self.engine].truncates and (self.top_p < 1 or self.top_k):
            raise ValueError(
                f"with engine: {self.engine} keep top_p: 1 and top_k: 0; it gives "
                "log-probabilities of what is left after truncation, and training needs those "
                "before it"
            )
        return self


class EvaluationConfig(Node):
    """Pass@k and Avg@n on held-out problems."""

    n: Samples = 128
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: NonNegative = 0
    every: NonNegative = 100  # RL steps between evaluations on the validation set; 0: none at all
    validation_n: Samples = 32  # samples a problem there
    # At these, too, the base and what a run ends with are validated: sampling colder sharpens
    # without training, and a method is worth what it adds to that.
    temperatures: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = ()
    seed: int = 12345
    final: bool = True  # evaluate the selected checkpoint on the test set
    select: Literal["last", "honest", "paper"] = "last"
    # last: the final weights; honest: best Avg@n on validation; paper: best on the test set itself

    @model_validator(mode="after")
    def _validated(self) -> EvaluationConfig:
        if self.select == "honest" and not self.every:
            raise ValueError(
                "select: honest takes the best on the validation problems, and every: 0 never "
                "evaluates there; set every to some RL steps, or select: last"
            )
        if self.temperatures and not self.every:
            raise ValueError(
                "temperatures are of the validation problems, and every: 0 never evaluates there; "
                "set every to some RL steps, or temperatures: []"
            )
        named = [f"{heat:g}" for heat in (self.temperature, *self.temperatures)]  # as files are
        if twice := next((heat for heat in named if named.count(heat) > 1), None):
            why = "it is `temperature`, at which all is evaluated" if twice == named[0] else "twice"
            raise ValueError(
                f"temperatures has {twice}, {why}; give each other temperature once, to six digits"
            )
        return self


def _share(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    with suppress(ValidationError):
        if (share := read(value)) == "auto" or 0 <= share < 1:
            return share
    raise ValueError("give a share of the base from 0 to below 1, such as 0.3, or auto")


MixShare = Annotated[Literal["auto"] | float, WrapValidator(_share)]


class Checkpoints(Node):
    """What is kept on disk."""

    every: NonNegative = 100  # RL steps; 0: only at the end
    keep: NonNegative = 0  # how many to keep besides the selected one; 0: all
    # The base's share in the weights that a run ends with: the selected checkpoint mixed with it.
    # auto: the least of 0, 0.1, 0.3, 0.5, 0.7, 0.9 that keeps its Pass@k on validation problems.
    mix: MixShare = 0.0

    @property
    def shares(self) -> tuple[float, ...]:
        """The base's shares that may be tried at a run's end; none where nothing is mixed."""
        if self.mix == "auto":
            return SHARES
        return (self.mix,) if self.mix else ()


class MeterConfig(Node):
    """How far each phase moved the policy."""

    problems: Positive = 16  # held-out problems whose rollouts measure the KL
    samples: Positive = 4
    still: Rate = 1e-6  # relative weight change below which a phase is warned of as doing nothing


class Recipe(Node):
    """One run."""

    name: Annotated[str, AfterValidator(_name_of_a_folder)] = "run"
    seed: NonNegative = 0
    threads: NonNegative = 0  # CPU threads; 0: one for a small policy, else torch's default
    track: Literal["trackio", "wandb", "tensorboard"] | None = None  # also send the record there
    model: Model = Model()
    task: TaskConfig = CountdownConfig()
    rollout: Rollouts = Rollouts()
    rl: RL = RL()
    irl: IRL = IRL()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: Checkpoints = Checkpoints()
    meter: MeterConfig = MeterConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.irl.steps and self.irl.keep > self.rollout.n:
            raise ValueError(
                f"irl.keep ({self.irl.keep}) is above rollout.n ({self.rollout.n}): "
                "a group has no more rollouts than that; lower irl.keep"
            )
        self.rl.algorithm.check_group(self.rollout.n)
        if self.checkpoint.mix == "auto" and not (
            self.evaluation.every and self.evaluation.validation_n > 1
        ):
            raise ValueError(
                "checkpoint.mix: auto keeps the base's Pass@k on the validation problems, k being "
                "evaluation.validation_n: set that above 1 and evaluation.every above 0, or give "
                "the base's share, such as mix: 0.3"
            )
        if self.rl.algorithm.type == "none" and not (self.irl.steps or self.irl.memory.on):
            raise ValueError(
                "rl.algorithm.type: none learns nothing by itself; set irl.memory.weight, such as "
                "1, or irl.steps above 0"
            )
        return self
