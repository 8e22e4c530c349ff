"""Progress in a terminal of 80 columns, without colour, and redirected."""

import io
import re

import pytest

from sps.progress.live import Progress, State, clock, passes

TEXT = "the irl phase moved nothing " * 6


def _records(steps=12):
    for step in range(1, steps + 1):
        record = {"kind": "rl", "step": step, "time": 100.0 + 2 * step, "phase": 1, "reward": 0.25}
        record |= {"entropy": 0.5, "logprob": -0.75, "tokens": 3000, "seconds/generate": 0.5}
        yield record
    curve = {"1": [0.1, 0.05, 0.15], "128": [0.5, 0.4, 0.6]}
    yield {"kind": "eval", "step": steps, "time": 130.0, "name": "validation-000012"} | {
        "pass_at_k": curve,
        "greedy_logprob": -4.5,
    }
    yield {"kind": "warning", "step": steps, "time": 131.0, "text": TEXT}
    yield {"kind": "irl", "step": steps, "time": 131.0, "phase": 1, "kept": 30}
    yield {"kind": "checkpoint", "step": steps, "time": 131.0}


def _done(step=12):
    return {"kind": "done", "step": step, "time": 132.0, "selected": step}


def test_redirected_output_is_plain_lines_of_80_columns():
    out = io.StringIO()
    progress = Progress(24, "grpo", file=out, every=0.0)
    for record in [*_records(), _done()]:
        progress(record)
    text = out.getvalue()
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "step 12/24 reward 0.25 entropy 0.5 log p -0.75 6000 tok/s left 0:24" in text
    joined = " ".join(text.split("\n    "))
    assert "Pass@1 10.0 % [5.0, 15.0]  Pass@128 50.0 % [40.0, 60.0]" in joined
    assert "done, step 12 selected" in text


def test_steps_are_not_printed_faster_than_asked():
    out = io.StringIO()
    progress = Progress(24, file=out, every=1000.0)
    for record in _records():
        progress(record)
    lines = out.getvalue().splitlines()
    assert sum(line.startswith("step") and "reward" in line for line in lines) == 1
    assert any("validation-000012" in line for line in lines)


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 80 columns."""
    out = io.StringIO()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    return out


def test_panel_fits_80_columns_and_says_it_all(terminal):
    with Progress(24, "grpo", file=terminal) as progress:
        assert progress.console.is_terminal
        for record in _records():
            progress(record)
        with progress.console.capture() as caught:
            progress.console.print(progress.panel())
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", caught.get())
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    # 11 steps took 131 - 102 = 29 s, the evaluation included: 12 more take 31.6 s.
    for words in ("grpo", "IRL phase 1, step 12/24", "left 0:32", "reward 0.25", "6,000 tok/s"):
        assert words in text
    for words in ("Pass@128 50.0 % [40.0, 60.0]", "greedy log p -4.50", "! step 12: the irl"):
        assert words in text


def test_no_color_is_kept_to(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    progress = Progress(24, "grpo", file=terminal)
    for record in [*_records(), _done()]:
        progress(record)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", terminal.getvalue())  # no foreground colour


def test_done_gives_the_terminal_back(terminal):
    progress = Progress(24, file=terminal)
    progress(next(_records()))
    assert progress._live is not None
    progress(_done())
    assert progress._live is None
    assert terminal.getvalue().endswith("\x1b[?25h")  # the cursor is shown again


def test_time_left_is_unknown_before_there_is_a_pace():
    progress = Progress(24, file=io.StringIO())
    progress(next(_records()))
    assert progress.state.left() == "?"


def test_clock():
    assert [clock(s) for s in (0, 59.6, 3599, 3661)] == ["0:00", "1:00", "59:59", "1:01:01"]


def test_passes_of_one_k():
    assert passes({"pass_at_k": {"1": [0.5, 0.4, 0.6]}}) == "Pass@1 50.0 % [40.0, 60.0]"
    assert passes({}) == ""


def test_a_run_that_ends_mixed_says_so():
    record = {"kind": "done", "step": 12, "selected": 12, "mixed": 0.3}
    assert State(12).sentence(record) == "done, step 12 selected, mixed with 0.3 of the base"


def test_what_is_sampled_at_another_temperature_is_not_how_far_a_run_is():
    state, curve = State(10), {"1": [0.5, 0.4, 0.6]}
    for name, rate in (("validation-000010", -2.0), ("temperature-0.5-000010", -1.0)):
        state.take(
            {"kind": "eval", "step": 10, "name": name, "pass_at_k": curve, "greedy_logprob": rate}
        )
        curve = {"1": [0.7, 0.6, 0.8]}
    assert (state.passes, state.greedy) == ("Pass@1 50.0 % [40.0, 60.0]", [-2.0])
