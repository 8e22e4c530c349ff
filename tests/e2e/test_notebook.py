"""Long calls in a notebook show how they get on; a kernel runs the cells as a browser's would."""

import json
import sys

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

SMALL = {  # with the policy that is shipped
    "name": "small",
    "threads": 1,
    "task": {"train": 24, "validation": 3, "test": 3},
    "rollout": {"prompts": 2, "n": 4},
    "rl": {"steps": 2},
    "irl": {"steps": 0},
    "evaluation": {"n": 2, "validation_n": 2, "every": 0},
    "meter": {"problems": 2, "samples": 2},
}
CELLS = (
    "import sps\nrun = sps.train('small.yaml', 'run')",
    "sps.evaluate('run', 'countdown', 'eval', n=2, limit=3, max_new_tokens=8).pass_at_k"
    "('countdown', 2)",
)


class Client(nbclient.NotebookClient):
    """It keeps every text that a cell displayed, also those that others replaced."""

    def process_message(self, msg, cell, cell_index):
        if msg["msg_type"] in ("display_data", "update_display_data"):
            self.__dict__.setdefault("shown", []).append(
                (cell_index, msg["msg_type"], msg["content"]["data"]["text/plain"])
            )
        return super().process_message(msg, cell, cell_index)


def test_training_and_evaluating_show_how_they_get_on(tmp_path, monkeypatch):
    (tmp_path / "small.yaml").write_text(json.dumps(SMALL))
    cells = [nbformat.v4.new_code_cell(code) for code in CELLS]
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    place = {"metadata": {"path": str(tmp_path)}}
    client = Client(nbformat.v4.new_notebook(cells=cells), timeout=240, resources=place)
    client.execute()
    trained = [(kind, text) for cell, kind, text in client.shown if cell == 0]
    assert trained[0][0] == "display_data"
    assert {kind for kind, _ in trained[1:]} == {"update_display_data"}  # all in one place
    assert any("RL phase 1, step 2/2" in text for _, text in trained)
    assert "done, step 2/2" in trained[-1][1]
    assert "reward" in trained[-1][1]
    assert "\x1b" not in trained[-1][1]
    evaluated = [text for cell, _, text in client.shown if cell == 1]
    assert any(text.startswith("countdown: 6/6 samples, ") for text in evaluated)
    (value,) = (out for out in cells[1].outputs if out.output_type == "execute_result")
    assert len(eval(value.data["text/plain"])) == 3  # the result is there as well
    assert (tmp_path / "run" / "checkpoints" / "step-000002").is_dir()
