"""How many seeds the demo takes."""

import json
import time

import pytest

from sps.commands import demo
from sps.config.load import load_recipe
from sps.config.shipped import shipped_recipes

PATHS = [shipped_recipes()[name] for name in demo._RECIPES]


def test_the_time_of_a_job_by_hand():
    speed = demo.Speed(start=1, step=0.1, irl_step=2, sample=0.001)
    grpo, sps, both = (load_recipe(path) for path in PATHS)
    # 300 steps, 4 validations of 200 x 32 and a test of 200 x 128 samples.
    assert demo.job_seconds(grpo, speed) == pytest.approx(30 + 25.6 + 25.6)
    # And 6 IRL phases of 4 steps; the last also validates its mix.
    assert demo.job_seconds(sps, speed) == pytest.approx(30 + 51.2 + 48)
    assert demo.job_seconds(both, speed) == pytest.approx(30 + 51.2 + 48 + 6.4)
    colder = load_recipe(PATHS[0], ["evaluation.temperatures=[0.7,0.4]"])
    assert demo.job_seconds(colder, speed) == pytest.approx(30 + 25.6 + 25.6 + 2 * 6.4)


def test_the_time_of_a_demo_by_hand():
    speed = demo.Speed(start=1, step=0.1, irl_step=2, sample=0.001)
    recipes = [load_recipe(path) for path in PATHS]
    # On two workers GRPO's 81.2 s and then 135.6 s beside 129.2 s and the base's 25.6 s.
    assert demo.expected_seconds(recipes, 1, speed, 2) == pytest.approx(2 + 81.2 + 135.6)
    assert demo.expected_seconds(recipes, 3, speed, 20) == pytest.approx(2 + 135.6)
    one = demo.expected_seconds(recipes, 2, speed, 1)
    assert one == pytest.approx(2 + 2 * (81.2 + 129.2 + 135.6) + 25.6)
    # At two temperatures 12.8 s more of each run, and once of the base.
    colder = [load_recipe(path, ["evaluation.temperatures=[0.7,0.4]"]) for path in PATHS]
    assert demo.expected_seconds(colder, 2, speed, 1) == pytest.approx(one + 7 * 12.8)


@pytest.fixture
def started(monkeypatch):
    """A demo on two cores whose comparison only says what it was asked for: seeds, changes."""
    asked = []
    monkeypatch.setattr(demo.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(
        demo,
        "run_compare",
        lambda paths, seeds, out, early, heats, workers, changes: asked.append((seeds, changes)),
    )
    return asked


@pytest.mark.parametrize(
    ("step", "seeds", "said"),
    [
        # A job is 300 steps and nothing else: 3 seeds of 3 methods on 2 cores are 5 jobs on one.
        (0.2, 3, "3 seeds of each method, about 5.0 minutes"),
        (0.3, 2, "2 seeds of each method, about 4.5 minutes"),
        (0.5, 1, "1 seed of each method, about 5.0 minutes"),
        (5.0, 1, "1 seed of each method, about 50.0 minutes"),
    ],
)
def test_as_many_seeds_as_fit_into_six_minutes(
    tmp_path, monkeypatch, capsys, started, step, seeds, said
):
    asked = []

    def measured(path, workers):
        asked.append((path.name, workers))
        return demo.Speed(0, step, 0, 0)

    monkeypatch.setattr(demo, "measure_speed", measured)
    for _ in range(2):  # a demo that goes on has as many as it began with, and does not measure
        demo.run_demo(tmp_path, None, quick=False, again=False)
    assert started == [(seeds, [])] * 2
    assert asked == [("countdown_sps.yaml", 2)]
    assert json.loads((tmp_path / "speed.json").read_text())["seeds"] == seeds
    assert f"{said}: an RL step takes {step:.2f} s on each of 2 cores" in capsys.readouterr().out


def test_seeds_that_are_asked_for_are_taken_and_a_smoke_test_has_one(
    tmp_path, monkeypatch, started
):
    monkeypatch.setattr(demo, "measure_speed", lambda *_: pytest.fail("it measured"))
    demo.run_demo(tmp_path, 5, quick=False, again=False)
    demo.run_demo(tmp_path, None, quick=True, again=False)
    assert started == [(5, []), (1, demo._QUICK)]


def test_speed_is_that_of_a_short_run():
    began = time.monotonic()
    speed = demo.measure_speed(PATHS[-1], 1)
    took = time.monotonic() - began
    assert min(speed.start, speed.step, speed.irl_step, speed.sample) > 0
    # Half of the 12 steps take the median or more; two validations of 200 x 4 samples.
    assert speed.start + 6 * speed.step + speed.irl_step + 1600 * speed.sample < took
