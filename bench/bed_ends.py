"""What else a trained policy can be used as: mixed with the base, sampled at other temperatures.

python -m bench.bed_ends RUN OUT [mixed] [tempered] [mixed_tempered]

The last checkpoint of a run is mixed with the base in some shares, sampled at some temperatures, or
both; each is validated as the run's steps are: OUT is a JSON file, of scores by share and by
temperature. Without a word only the base is, at these temperatures, drawn by the run's seed.
bench/beds.py calls it for methods that are named so.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from sps.build import make_engine, make_policy, make_task, settle_dtype, use_threads
from sps.config.load import load_recipe
from sps.evaluation.evaluate import EvalJob, evaluate
from sps.policy.mix import mix_into
from sps.run.folder import checkpoint_path
from sps.store.evals import EvalStore
from sps.types import Sampling
from sps.verify import open_verifier

SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the trained one
TEMPERATURES = (1.4, 0.8, 0.6, 0.4, 0.2, 0.1, 0.05)  # beside that of the run
OF_MIXES = (0.8, 0.6, 0.4, 0.2)
Scores = dict[str, dict[str, dict[str, Any]]]  # share of the trained one -> temperature -> scores


def grid(ways: Collection[str], own: float) -> dict[float, tuple[float, ...]]:
    """The temperatures of each share; `own` is the run's."""
    if not ways:
        return {0.0: TEMPERATURES}
    both, found = "mixed_tempered" in ways, {}
    for share in SHARES if both or "mixed" in ways else ():
        found[share] = (own, *OF_MIXES) if both and 0.2 < share < 0.8 else (own,)
    return found | ({1.0: TEMPERATURES} if both or "tempered" in ways else {})


def ends(folder: Path, ways: Collection[str]) -> Scores:
    """Scores of each share at each temperature."""
    recipe = settle_dtype(load_recipe(folder / "recipe.yaml"), folder)
    use_threads(recipe)
    task, how = make_task(recipe), recipe.evaluation
    seed = how.seed if ways else how.seed + recipe.seed
    limit, n = recipe.rollout.max_new_tokens, how.validation_n
    sampling = Sampling(n, limit, how.temperature, how.top_p, how.top_k, seed)
    base, trained = make_policy(recipe).model, str(checkpoint_path(folder, recipe.rl.steps))
    found: Scores = {}
    for share, temperatures in grid(ways, how.temperature).items():
        policy = make_policy(recipe, trained)
        mix_into(policy.model, base, 1 - share)
        engine, verifier = make_engine(policy, recipe.rollout.max_rows), open_verifier(task)
        for temperature in temperatures:
            with tempfile.TemporaryDirectory() as place:
                store = EvalStore(Path(place) / "end")
                asked = replace(sampling, temperature=temperature)
                job = EvalJob(task, task.problems("validation"), asked, verifier, store)
                scores = evaluate(policy, engine, job).summary()
            found.setdefault(f"{share:g}", {})[f"{temperature:g}"] = scores
        engine.close()  # and its memory
        verifier.close()
    return found


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(ends(Path(sys.argv[1]), sys.argv[3:])))
