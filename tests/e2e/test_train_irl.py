"""IRL phases in whole runs: what is kept, how far they go, what they leave alone."""

from __future__ import annotations

import pytest
from small_runs import (
    ALGORITHMS,
    recipe_of,
    run,
    same_weights,
    stored,
    told,
    weights,
)

from sps.algo.reach import reach

pytestmark = pytest.mark.usefixtures("one_cache")


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo"])
def test_no_irl_steps_is_plain_rl_whatever_the_phases(name, tmp_path):
    for every in (0, 1, 3, 5):
        recipe = recipe_of(rl__algorithm=ALGORITHMS[name], irl__steps=0, irl__every=every)
        run(recipe, tmp_path / str(every))
    plain = weights(tmp_path / "0")
    for every in ("1", "3", "5"):
        assert same_weights(weights(tmp_path / every), plain)
        assert stored(tmp_path / every) == stored(tmp_path / "0")
    assert not any(r["kept"] for r in stored(tmp_path / "0"))
    run(recipe_of(rl__algorithm=ALGORITHMS[name]), tmp_path / "sps")
    assert not same_weights(weights(tmp_path / "sps"), plain)


def test_irl_leaves_the_order_of_problems_and_the_first_phase_alone(tmp_path):
    run(recipe_of(), tmp_path / "sps")
    run(recipe_of(irl__steps=0), tmp_path / "plain")
    sps, plain = stored(tmp_path / "sps"), stored(tmp_path / "plain")
    assert [r["problem_id"] for r in sps] == [r["problem_id"] for r in plain]
    first = [{**r, "kept": False} for r in sps if r["step"] <= 3]
    assert first == [r for r in plain if r["step"] <= 3]
    assert [r["ids"] for r in sps] != [r["ids"] for r in plain]


def test_irl_that_moves_nothing_is_plain_rl(tmp_path):
    # IRL draws no random number of the RL phases: at a rate of 0 the rest of the run is the same.
    run(recipe_of(irl__lr=0.0), tmp_path / "sps")
    run(recipe_of(irl__steps=0), tmp_path / "plain")
    assert same_weights(weights(tmp_path / "sps"), weights(tmp_path / "plain"))


def test_kept_rollouts_are_two_of_each_group_and_follow_l2te(tmp_path):
    run(recipe_of(), tmp_path / "run")
    rows = stored(tmp_path / "run")
    groups = {}
    for r in rows:
        groups.setdefault((r["step"], r["group"]), []).append(r)
    assert len(groups) == 24
    for group in groups.values():
        # By hand: the two least likely of four are the lower half, the negatives of it come first.
        order = sorted(group, key=lambda r: r["mean_logprob"])
        tiers = [(i >= 2, r["reward"] > 0, i) for i, r in enumerate(order)]
        want = {order[i]["sample"] for *_, i in sorted(tiers)[:2]}
        assert {r["sample"] for r in group if r["kept"]} == want
    records = [r for r in told(tmp_path / "run") if r["kind"] == "irl" and "kept" in r]
    assert [r["kept"] for r in records] == [24, 24]
    for record, steps in zip(records, [(1, 2, 3), (4, 5, 6)], strict=True):
        kept = [r for r in rows if r["kept"] and r["step"] in steps]
        assert record["kept_right"] == pytest.approx(sum(r["reward"] > 0 for r in kept) / 24)
        assert record["kept_cut_off"] == pytest.approx(sum(not r["finished"] for r in kept) / 24)


@pytest.mark.parametrize("selector", ["positive", "low_likelihood_positive", "negative"])
def test_other_selectors_reach_the_store(selector, tmp_path):
    run(recipe_of(irl__selector={"type": selector}), tmp_path / "run")
    kept = [r for r in stored(tmp_path / "run") if r["kept"]]
    assert kept
    assert {r["reward"] > 0 for r in kept} == {selector != "negative"}


def test_irl_makes_the_kept_rollouts_more_likely(tmp_path):
    recipe = recipe_of(rl__steps=3, irl__steps=20, irl__lr=1e-2)
    run(recipe, tmp_path / "run")
    losses = [r["loss"] for r in told(tmp_path / "run") if r["kind"] == "irl" and "loss" in r]
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 0.1


def test_the_rate_that_is_left_out_takes_the_irl_phase_as_far_as_asked(tmp_path):
    found = {}
    for name, settings in {
        "short": {"irl__lr": None, "irl__reach": 0.2},
        "long": {"irl__lr": None, "irl__reach": 0.4},
        "too_far": {"irl__lr": 6e-4},
    }.items():
        recipe = recipe_of(rl__steps=24, rl__lr=2e-4, irl__every=12, irl__steps=4, **settings)
        run(recipe, tmp_path / name)
        records = told(tmp_path / name)
        far = {r["of"]: r["relative_update"] for r in records if r["kind"] == "meter"}
        texts = [r["text"] for r in records if r["kind"] == "warning"]
        lr = next(r["lr"] for r in records if r["kind"] == "irl" and "lr" in r)
        found[name] = far["irl"] / far["rl"], lr, texts
    assert found["short"][0] == pytest.approx(0.2, rel=0.4)  # the law is rough
    assert found["long"][0] == pytest.approx(0.4, rel=0.4)
    assert found["long"][1] == pytest.approx(2 * found["short"][1])
    assert not found["short"][2]
    assert found["too_far"][1] == 6e-4
    assert any("undo what RL teaches" in text for text in found["too_far"][2])


@pytest.mark.parametrize("state", ["fresh", "kept"])
def test_a_short_last_phase_has_a_rate_of_its_own(tmp_path, state):
    """Phases of 4, 4 and 1 RL steps."""
    recipe = recipe_of(
        rl__steps=9, irl__every=4, irl__lr=None, irl__optimizer_state=state, checkpoint__every=3
    )
    run(recipe, tmp_path / "run")
    rates = [r["lr"] for r in told(tmp_path / "run") if "lr" in r]
    assert rates == pytest.approx([0.35 / reach(1.0, 2, 1e-3, steps) for steps in (4, 4, 1)])
