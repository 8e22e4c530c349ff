"""What is shown in a notebook, by a stand-in for IPython that notes it."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from sps.commands.compare import _Progress
from sps.commands.jobs import plan
from sps.commands.terminal import status
from sps.config.load import parse_recipe
from sps.evaluation.evaluate import Tally
from sps.evaluation.progress import NotebookProgress, make_progress
from sps.progress import live
from sps.run.notebook import in_notebook


@pytest.fixture
def shown(monkeypatch):
    """The texts in each place, of which the last is seen."""
    places = []

    def display(bundle, raw, display_id):
        assert (raw, display_id) == (True, True)
        places.append([bundle["text/plain"]])
        return SimpleNamespace(
            update=lambda more, raw, own=places[-1]: own.append(more["text/plain"])
        )

    ipython, inner = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    inner.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    return places


def test_a_script_and_ipython_on_a_terminal_are_no_notebooks(monkeypatch, shown):
    assert in_notebook()
    for shell in (None, SimpleNamespace()):  # imported by something; a terminal's has no kernel
        monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda shell=shell: shell)
        assert not in_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook()
    assert "IPython" not in sys.modules


def test_a_comparison_has_one_table_that_changes(shown, tmp_path, capsys):
    jobs = plan({"grpo": parse_recipe({}, "test")}, 1, tmp_path, {}, threads=1)
    with _Progress() as progress:
        for seconds, state in ((1.0, "waiting"), (2.0, "step 7/300"), (3.0, "done: Pass@1")):
            progress(jobs, {str(job.folder): state for job in jobs}, seconds)
    (texts,) = shown
    assert ["2 s" in text and text.count("step 7/300") == 2 for text in texts] == [0, 1, 0]
    assert "GRPO, seed 0" in texts[-1]
    assert capsys.readouterr().out == ""


def test_a_run_shows_at_most_one_panel_a_second_and_the_last_step(shown, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    with live.Progress(5, "mine") as progress:
        for step in (1, 2, 3, 4, 5):
            progress({"kind": "rl", "step": step, "time": now[0], "reward": 0.5, "phase": 1})
            now[0] += 0.4
    (texts,) = shown
    assert [text.split("step ")[1][:3] for text in texts] == ["1/5", "4/5", "5/5"]
    assert "\x1b" not in texts[-1]


def test_an_evaluation_and_a_status_have_a_line_each(shown):
    progress = make_progress("gsm8k")
    assert isinstance(progress, NotebookProgress)
    for done in (0, 1, 2):  # at once; too soon; the end
        progress(Tally(total=2, done=done))
    progress.close()
    assert [text.split(" samples")[0] for text in shown[0]] == ["gsm8k: 0/2", "gsm8k: 2/2"]
    with status("making it") as say:
        assert len(shown) == 1  # nothing yet: it may be there already
        say("step 1 [of] 2")
    assert shown[1] == ["step 1 [of] 2"]
