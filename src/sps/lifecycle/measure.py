"""Evaluations of a run, while it goes on and at its end; and its checkpoints by step."""

from __future__ import annotations

import json
import time

from sps.evaluate.evaluate import EvalJob, evaluate
from sps.evaluate.scores import Scores
from sps.phases.run import Run
from sps.policy.checkpoint import load_weights
from sps.run.disk import write_whole
from sps.run.folder import EVALS, checkpoint_path, scores_path
from sps.store.evals import EvalStore
from sps.types import Problem, Sampling


def use_checkpoint(run: Run, step: int) -> None:
    """Go on with the weights that were saved after a step."""
    load_weights(run.policy, checkpoint_path(run.folder, step))
    run.engine.load_weights(run.policy.model)


def measure(
    run: Run,
    name: str,
    problems: list[Problem],
    n: int,
    step: int,
    temperature: float | None = None,
) -> Scores:
    """Evaluate the policy as it stands; samples and scores go to evals/."""
    how = run.recipe.evaluation
    temperature = how.temperature if temperature is None else temperature
    limit = run.recipe.rollout.max_new_tokens
    sampling = Sampling(n, limit, temperature, how.top_p, how.top_k, how.seed)
    began = time.perf_counter()
    ranks = run.ranks
    store = EvalStore(run.folder / EVALS / name, ranks)
    job = EvalJob(run.task, problems, sampling, run.verifier, store)
    with run.stop.window(ranks.size == 1):  # what is judged is kept
        scores = evaluate(run.policy, run.engine, job)
    summary = scores.summary()
    if ranks.main:
        write_whole(scores_path(run.folder, name), json.dumps(summary))
    shown = {k: v for k, v in summary.items() if k != "per_question"}
    shown["seconds/evaluate"] = time.perf_counter() - began
    run.track.log("eval", step, name=name, **shown)
    return scores


def validate(run: Run, step: int) -> None:
    """Scores on the validation problems, kept by step; of step 0 they are the base's."""
    n = run.recipe.evaluation.validation_n
    run.scores[step] = measure(run, f"validation-{step:06d}", run.validation, n, step)
