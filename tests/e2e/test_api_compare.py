"""`sps.compare` as somebody calls it: worker processes, results as rows, a report."""

import json

import pytest

import sps

SMALL = {  # with the policy that is shipped
    "threads": 1,
    "task": {"train": 24, "validation": 3, "test": 4},
    "rollout": {"prompts": 2, "n": 4},
    "rl": {"steps": 1},
    "evaluation": {"n": 2, "validation_n": 2, "every": 0},
    "meter": {"problems": 2, "samples": 2},
}


def test_two_recipes_are_compared_and_their_rows_are_what_was_written(tmp_path, capsys):
    recipes = {"plain": {"irl": {"steps": 0}}, "both": {"irl": {"steps": 1, "batch": 8}}}
    for name, more in recipes.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps({**SMALL, **more, "name": name}))
    found = sps.compare(
        [tmp_path / "plain.yaml", str(tmp_path / "both.yaml")],
        tmp_path / "out",
        seeds=1,
        workers=1,
        overrides=["rl.lr=1e-3"],
    )
    assert found.folder == tmp_path / "out"
    assert found.results == json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(row["method"], row["k"]) for row in found.rows] == [
        (name, k) for name in ("base", "plain", "both") for k in (1, 2)
    ]
    for row in found.rows:
        mean = found.results["methods"][row["method"]]["pass_at_k"][str(row["k"])]
        assert (row["pass_at_k"], row["low"], row["high"]) == (*mean,)
        assert found.pass_at_k(row["method"], row["k"]) == (*mean,)
    pairs = {(p["a"], p["b"], p["k"]): p["delta"] for p in found.results["paired"]}
    gain = found.pass_at_k("both", 1)[0] - found.pass_at_k("plain", 1)[0]
    assert pairs["plain", "both", 1][0] == pytest.approx(gain)
    for name in recipes:
        run = tmp_path / "out" / name / "seed-0"
        assert sps.load_recipe(run / "recipe.yaml").rl.lr == 1e-3
        assert (run / "checkpoints" / "step-000001").is_dir()
    said = capsys.readouterr().out
    assert "both, seed 0" in said  # how it got on, where nothing is a terminal
    assert sps.report(found.folder, tmp_path / "page.html").stat().st_size > 10_000
