"""Options of `sps eval`: what decides which samples are drawn, and what does not."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from sps.commands.of_run import begun_with, defaults_of, refuse_no_checkpoint
from sps.errors import UserError
from sps.evaluation.claim import default_folder
from sps.ranks import Ranks
from sps.schema import MOST_SAMPLES, Cut
from sps.tasks.prompts import TEMPLATES
from sps.types import Sampling

DTYPES = ("auto", "float32", "bfloat16")  # of the computation
OWN = "test"  # the test problems of the run that the model comes from


@dataclass(frozen=True)
class EvalSettings:
    """What decides which samples are drawn; an evaluation is resumed only under the same."""

    model: str
    endpoint: str | None = None
    n: int = 16
    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 4096
    seed: int = 0
    template: str = "chat"
    instruction: str | None = None
    limit: int | None = None  # questions a benchmark, the first ones
    dtype: str = "auto"
    gguf: str | None = None  # file name of a GGUF inside the model's folder

    def sampling(self) -> Sampling:
        """How completions are drawn."""
        return Sampling(
            self.n, self.max_new_tokens, self.temperature, self.top_p, self.top_k, self.seed
        )


@dataclass(frozen=True)
class Machinery:
    """What does not change the samples."""

    data_dir: str | None = None
    device: str = "auto"
    max_rows: int = 0  # sequences decoded at once; 0: 64 on a CPU, 1024 on a GPU
    workers: int = 0
    time_limit: float = 6.0
    cut: str = "zero"
    right: float = 1.0  # reward that counts as right, of tasks whose judge gives rewards
    unsafe: str = ""  # tasks of reasoning-gym that may evaluate answers, by name, with commas
    concurrency: int = 16
    retries: int = 6
    api_key_env: str = "OPENAI_API_KEY"
    trust_remote_code: bool = False  # run the code that comes with the model
    temperatures: str = ""  # to evaluate at as well, each by itself: 0.7,0.4


def make_options(
    model: str,
    given: dict[str, Any],
    bench: str = "",
    regrade_only: bool = False,
    out: Path | None = None,
) -> tuple[EvalSettings, Machinery]:
    """Options by name; those that are None or not there come from the evaluation that `out` holds,
    and from the model's run, if any."""
    if not (given.get("endpoint") or regrade_only):
        refuse_no_checkpoint(model)
    own = {name.strip() for name in bench.split(",")} <= {"", OWN}
    given = {k: v for k, v in given.items() if v is not None}
    given = begun_with(out or default_folder(model), OWN if own else "", given) | given
    asked = defaults_of(model, given, own) | given
    known = {f.name for f in fields(EvalSettings)}
    drawn = {k: v for k, v in asked.items() if k in known}
    other = {k: v for k, v in asked.items() if k not in known}
    return EvalSettings(model, **drawn), Machinery(**other)


def refuse_impossible(settings: EvalSettings, machinery: Machinery, ranks: Ranks) -> None:
    """Before anything is read: options out of range, or that do not go together."""
    if ranks.sharded:
        raise UserError("sps eval holds a whole model on each GPU; launch it with launch/ddp.yaml")
    if ranks.size > 1 and settings.endpoint:
        raise UserError("--endpoint: one process asks it; start sps eval without accelerate")
    if settings.template not in TEMPLATES:
        raise UserError(f"--template {settings.template}: choose one of {', '.join(TEMPLATES)}")
    if settings.dtype not in DTYPES:
        raise UserError(f"--dtype {settings.dtype}: choose one of {', '.join(DTYPES)}")
    if not 0 < machinery.right <= 1:
        raise UserError(f"--right {machinery.right:g}: a reward above 0 and at most 1")
    if machinery.cut not in get_args(Cut):
        raise UserError(f"--cut {machinery.cut}: choose one of {', '.join(get_args(Cut))}")
    limit = 1 if settings.limit is None else settings.limit
    if min(settings.n, settings.max_new_tokens, limit) < 1:
        raise UserError("--n, --max-new-tokens and --limit are whole numbers from 1")
    if settings.n > MOST_SAMPLES:
        raise UserError(f"--n {settings.n}: at most {MOST_SAMPLES:,} samples a question")
    if settings.temperature < 0 or not 0 < settings.top_p <= 1:
        raise UserError("--temperature is at least 0, and --top-p is above 0 and at most 1")
