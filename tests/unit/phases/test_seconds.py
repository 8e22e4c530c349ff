"""Where the seconds of a step go: each is counted once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from made_run import open_made_run, save_model

from sps.phases import rl
from sps.phases.schedule import Phase


def test_the_seconds_of_a_step_with_memory_by_hand(tmp_path, monkeypatch):
    """Two steps share a draw of 8 s and 6 s of remembering, and 5 s of scoring; each recalls for
    1 s and learns for 10 s, 2 s of which are those of memory by its share of the passes' tokens."""
    save_model(tmp_path / "model")
    changes = {
        "irl__memory": {"share": 9.0, "weight": 0.5},
        "rl__algorithm": {"type": "gspo", "steps_per_generation": 2},
    }
    run, _ = open_made_run(tmp_path / "model", tmp_path / "run", **changes)
    now = [0.0]

    made = {}

    def taking(seconds, real):
        def work(*given, **named):
            now[0] += seconds
            made[real.__name__] = real(*given, **named)
            return made[real.__name__]

        return work

    def learning(*given, real=rl.optimizer_step, **named):
        of_memory, own = (
            sum(len(r.prompt_ids) + len(r.ids) for r in rollouts)
            for rollouts in (made["recall"].rollouts, made["make_batch"].learnt)
        )
        return {**real(*given, **named), "seconds": 2 * (of_memory + own) / of_memory}

    monkeypatch.setattr(rl, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(run.engine, "generate", taking(8, run.engine.generate))
    monkeypatch.setattr(run.memory, "add", taking(6, run.memory.add))
    monkeypatch.setattr(rl, "sampler_logprobs", taking(4, rl.sampler_logprobs))
    monkeypatch.setattr(rl, "recall", taking(1, rl.recall))
    monkeypatch.setattr(rl, "make_batch", taking(0, rl.make_batch))
    monkeypatch.setattr(rl, "optimizer_step", taking(10, learning))
    told = [metrics for _, metrics, _ in rl.rl_phase(run, Phase(1, 1, 1, 2))]
    run.close()
    for metrics in told:
        spent = {k: v for k, v in metrics.items() if k.startswith("seconds/")}
        assert spent == pytest.approx(
            {
                "seconds/generate": 8 / 2,
                "seconds/verify": 0,
                "seconds/memory": 1 + 2 + 6 / 2,
                "seconds/update": 10 - 2 + 5 / 2,
            }
        )
    assert len(told) == 2
    assert sum(map(sum, ([v for k, v in m.items() if "seconds/" in k] for m in told))) == 41
