"""A trained policy's weights mixed with the base's: a path from the base to where a run ended.

python -m bench.bed_mixes RUN OUT

The last checkpoint of a run is mixed with the base in some shares, and each mix is validated as the
run's steps are: OUT is a JSON file. bench/beds.py calls it for methods that are named so.
"""

from __future__ import annotations

import json
import sys
import tempfile
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


def mixes(folder: Path) -> dict[int, dict[str, Any]]:
    """Scores of each mix, by the step that its share of the trained policy is of all steps."""
    recipe = settle_dtype(load_recipe(folder / "recipe.yaml"), folder)
    use_threads(recipe)
    task, how, found = make_task(recipe), recipe.evaluation, {}
    limit, n = recipe.rollout.max_new_tokens, how.validation_n
    sampling = Sampling(n, limit, how.temperature, how.top_p, how.top_k, how.seed)
    base, trained = make_policy(recipe).model, str(checkpoint_path(folder, recipe.rl.steps))
    for share in SHARES:
        policy = make_policy(recipe, trained)
        mix_into(policy.model, base, 1 - share)
        engine, verifier = make_engine(policy, recipe.rollout.max_rows), open_verifier(task)
        with tempfile.TemporaryDirectory() as place:
            store = EvalStore(Path(place) / "mix")
            job = EvalJob(task, task.problems("validation"), sampling, verifier, store)
            found[round(share * recipe.rl.steps)] = evaluate(policy, engine, job).summary()
        engine.close()  # and its memory
        verifier.close()
    return found


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(mixes(Path(sys.argv[1]))))
