"""The names in a run folder."""

from sps.run.folder import (
    checkpoint_path,
    find_checkpoints,
    find_runs,
    seed_path,
    set_aside,
    stop_path,
)


def test_checkpoints_are_found_by_step_and_drafts_are_none(tmp_path):
    steps = [checkpoint_path(tmp_path, step) for step in (1_000_000, 20, 999_999)]
    others = [stop_path(tmp_path, 21), set_aside(checkpoint_path(tmp_path, 10))]
    for path in [*steps, *others, steps[0].with_name("step-000030.draft")]:
        path.mkdir(parents=True)
    folder = tmp_path / "checkpoints"
    # By number: as texts 1000000 would come before 999999.
    assert list(find_checkpoints(folder)) == [20, 999_999, 1_000_000]
    assert find_checkpoints(folder, "stop") == {21: folder / "stop-000021"}
    assert find_checkpoints(tmp_path / "none") == {}


def test_the_runs_of_a_comparison_have_a_recipe(tmp_path):
    runs = [seed_path(tmp_path, method, seed) for method in ("grpo", "sps") for seed in (0, 1)]
    for run in [*runs, tmp_path / "base" / "eval", seed_path(tmp_path, "sps", 2)]:
        run.mkdir(parents=True)
    for run in runs:
        (run / "recipe.yaml").touch()
    assert find_runs(tmp_path) == runs
    assert find_runs(tmp_path, "sps") == runs[2:]
