"""A run folder: what is held out, its evaluations and its checkpoints."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from sps.evaluate.evaluate import Progress, evaluate
from sps.evaluate.scores import Scores
from sps.phases import Parts
from sps.policy.checkpoint import load_weights
from sps.run.disk import write_whole
from sps.run.health import Health
from sps.run.track import Track
from sps.store.evals import EvalStore
from sps.types import Problem, Sampling


@dataclass
class Run:
    """A run folder and what is held out from training."""

    folder: Path
    track: Track
    validation: list[Problem]
    test: list[Problem]
    data: str = ""  # a digest of all questions and answers; empty: not known
    start: int = 0  # RL steps done before this process
    settled: int = 0  # the last step after which evaluations and checkpoints were considered
    done: int = 0  # the last step that the weights have all of
    cursor: int = 0  # of the sampler, then
    health: Health = field(default_factory=lambda: Health(1))
    scores: dict[int, Scores] = field(default_factory=dict)  # validation scores by step


def use_checkpoint(parts: Parts, run: Run, step: int) -> None:
    """Go on with the weights that were saved after a step."""
    load_weights(parts.policy, checkpoint_path(run.folder, step))
    parts.engine.load_weights(parts.policy.model)


def measure(
    parts: Parts,
    run: Run,
    name: str,
    problems: list[Problem],
    n: int,
    step: int,
    temperature: float | None = None,
    progress: Progress = lambda done, of, correct: None,
) -> Scores:
    """Evaluate the policy as it stands; samples and scores go to evals/."""
    how = parts.recipe.evaluation
    temperature = how.temperature if temperature is None else temperature
    limit = parts.recipe.rollout.max_new_tokens
    sampling = Sampling(n, limit, temperature, how.top_p, how.top_k, how.seed)
    began = time.perf_counter()
    ranks = parts.ranks
    store = EvalStore(run.folder / "evals" / name, ranks)
    asked = (parts.task, problems, sampling, store, progress, ranks)
    with parts.stop.window(ranks.size == 1):  # what is judged is kept
        scores = evaluate(parts.policy, parts.engine, parts.verifier, *asked)
    summary = scores.summary()
    if ranks.main:
        write_whole(run.folder / "evals" / f"{name}.json", json.dumps(summary))
    shown = {k: v for k, v in summary.items() if k != "per_question"}
    shown["seconds/evaluate"] = time.perf_counter() - began
    run.track.log("eval", step, name=name, **shown)
    return scores


def validate(parts: Parts, run: Run, step: int) -> None:
    """Scores on the validation problems, kept by step; of step 0 they are the base's."""
    n = parts.recipe.evaluation.validation_n
    run.scores[step] = measure(parts, run, f"validation-{step:06d}", run.validation, n, step)


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return folder / "checkpoints" / f"step-{step:06d}"
