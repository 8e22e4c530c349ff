"""What lies where in a run folder: the one place that names its files.

recipe.yaml                     as resolved, every default written out
metrics.jsonl                   the record, one JSON object a line
task.py, task.sha256            of a python task: the file as it was, and its hash
data.sha256                     a digest of the questions and answers that the run began with
base.sha256                     of the weights that it began from (model.path)
started_in                      the folder that sps was started in, at which relative paths start
rollouts/*.parquet              see store/rollouts.py
evals/NAME.json, evals/NAME/    scores of an evaluation, and its samples
evals/NAME/end                  of what a run ends with: the step, and the base's share
checkpoints/step-000100/        and stop-000117 of a stop, damaged-step-000100 put aside
checkpoints/mixed/              the selected one mixed with the base: checkpoint.mix
result.json                     a run of a comparison has ended: its test scores
.lock                           who uses the folder
"""

from __future__ import annotations

import re
from pathlib import Path

RECIPE, RECORD, LOCK, RESULT = "recipe.yaml", "metrics.jsonl", ".lock", "result.json"
TASK_FILE, TASK_HASH = "task.py", "task.sha256"
DATA_HASH, BASE_HASH, STARTED_IN = "data.sha256", "base.sha256", "started_in"
RESULTS = "results.json"  # of a comparison, or of an evaluation by sps eval
CHECKPOINTS, ROLLOUTS, EVALS = "checkpoints", "rollouts", "evals"
TEMPERED = "temperature-"  # begins the name of a validation at another temperature
END = "end"  # in evals/NAME


def checkpoint_path(run: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return run / CHECKPOINTS / f"step-{step:06d}"


def stop_path(run: Path, step: int) -> Path:
    """The checkpoint of a run that was stopped after a step: no candidate of selection."""
    return run / CHECKPOINTS / f"stop-{step:06d}"


def mixed_path(run: Path) -> Path:
    """The weights that a run ends with where they are mixed with the base's."""
    return run / CHECKPOINTS / "mixed"


def tempered(temperature: float, step: int) -> str:
    """The name of a validation at another temperature than the recipe's."""
    return f"{TEMPERED}{temperature:g}-{step:06d}"


def set_aside(checkpoint: Path) -> Path:
    """Where a checkpoint goes that is found to be damaged."""
    return checkpoint.with_name(f"damaged-{checkpoint.name}")


def find_checkpoints(checkpoints: Path, kind: str = "step") -> dict[int, Path]:
    """Those in a folder `checkpoints` by step, oldest first; drafts and what is aside are none."""
    named = [(p, re.fullmatch(rf"{kind}-(\d+)", p.name)) for p in checkpoints.glob(f"{kind}-*")]
    found = {int(match[1]): path for path, match in named if match}
    return dict(sorted(found.items()))


def scores_path(run: Path, evaluation: str) -> Path:
    """The scores of an evaluation; its samples are in the folder of the same name."""
    return run / EVALS / f"{evaluation}.json"


def seed_path(comparison: Path, method: str, seed: int) -> Path:
    """The run of a method with a seed."""
    return comparison / method / f"seed-{seed}"


def find_runs(comparison: Path, method: str = "*") -> list[Path]:
    """The runs of a comparison, of one method or of all."""
    return sorted(path.parent for path in comparison.glob(f"{method}/seed-*/{RECIPE}"))
