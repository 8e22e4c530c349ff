"""`import sps`: light, and the commands as functions."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from unittest.mock import create_autospec

import pytest

import sps
from sps.api import Measured, Trained
from sps.commands.methods import parse_temperatures
from sps.config.load import dump_recipe
from sps.errors import UserError
from sps.evaluation.scores import Scores


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_import_sps_loads_nothing_else():
    heavy = "{'torch', 'numpy', 'pydantic', 'pyarrow', 'transformers', 'sps.api'}"
    done = run(f"import sys, sps; dir(sps); sys.exit(bool({heavy} & {{*sys.modules}}))")
    assert (done.returncode, done.stderr) == (0, "")


def test_what_torchao_says_when_it_is_imported_is_not_shown():
    done = run(
        "import logging, sps, torch, transformers\n"
        "for name in ('torchao', 'torch.utils._pytree'):\n"
        "    logging.getLogger(name).warning('Failed to load')\n"
        "logging.getLogger('sps').warning('ours')\n"
    )
    assert done.stderr == "ours\n"


def test_the_functions_are_plain_ones_whatever_was_imported_before():
    # A module of such a name would take the function's place as soon as anything imports it.
    done = run(
        "import pkgutil, sps, sps.evaluation.scores, sps.reporting.words\n"
        "names = ('load_recipe', 'train', 'evaluate', 'compare', 'report')\n"
        "assert all(type(getattr(sps, n)).__name__ == 'function' for n in names)\n"
        "assert not {m.name for m in pkgutil.iter_modules(sps.__path__)} & {*names}\n"
        "from sps.errors import UserError\n"
        "for call in (lambda: sps.report([]), lambda: sps.evaluate('m', 'b', samples=3)):\n"
        "    try: call()\n"
        "    except UserError as error: print(error)\n"
    )
    assert done.stderr == ""
    assert "give at least one run folder" in done.stdout
    assert "evaluate: no option samples" in done.stdout


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'fly'"):
        _ = sps.fly


def test_a_comparison_is_read_back_as_rows(tmp_path, monkeypatch):
    from sps.commands import compare as command

    curve = {"1": [0.5, 0.4, 0.6], "2": [0.7, 0.6, 0.8]}
    fake = create_autospec(command.run_compare)  # the arguments are checked against its own
    results = {"methods": {"grpo": {"pass_at_k": curve}}}
    fake.side_effect = lambda **given: (given["out"] / "results.json").write_text(
        json.dumps(results)
    )
    monkeypatch.setattr(command, "run_compare", fake)
    found = sps.compare(["a.yaml", "b.yaml"], tmp_path, seeds=2, overrides=["rl.steps=1"])
    assert fake.call_args.kwargs["seeds"] == 2
    assert found.rows == [
        {"method": "grpo", "k": 1, "pass_at_k": 0.5, "low": 0.4, "high": 0.6},
        {"method": "grpo", "k": 2, "pass_at_k": 0.7, "low": 0.6, "high": 0.8},
    ]
    assert found.pass_at_k("grpo", 2) == (0.7, 0.6, 0.8)
    assert repr(found) == f"Measured('{tmp_path}', grpo: Pass@1 50.0, Pass@2 70.0)"
    with pytest.raises(UserError, match=r"pass_at_k\('dapo', 1\): not measured"):
        found.pass_at_k("dapo", 1)


def test_a_folder_in_use_is_refused_in_the_words_of_python(tmp_path):
    recipe = sps.load_recipe("demo/countdown_grpo", ["evaluation.n=1"])
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    with pytest.raises(UserError, match="Continue it with resume=True") as raised:
        sps.train(recipe, tmp_path)
    assert "another folder with out=" in str(raised.value)
    assert "--" not in str(raised.value)
    (tmp_path / "checkpoints" / "step-000003").mkdir(parents=True)
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe).replace("steps: 300", "steps: 3"))
    with pytest.raises(UserError, match=r"rl\.steps was 3, is") as raised:
        sps.train(recipe, tmp_path, resume=True)
    path = tmp_path / "checkpoints" / "step-000003"
    assert (
        f'or longer, choose another folder with out=, with overrides=["model.path={path}"]'
        in str(raised.value)
    )


def test_a_model_is_evaluated_and_its_table_goes_to_pandas(tmp_path):
    from sps.policy.embedded import SHIPPED

    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    base = next(path.parent for path in sorted(SHIPPED.glob("*/config.json")))
    found = sps.evaluate(
        base, "countdown", tmp_path / "out", n=2, limit=3, max_new_tokens=20, device="cpu"
    )
    assert isinstance(found, Measured)
    assert found.results == json.loads((tmp_path / "out" / "results.json").read_text())
    table = found.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert table[["benchmark", "k"]].to_numpy().tolist() == [["countdown", 1], ["countdown", 2]]


@pytest.mark.parametrize("given", ["0.5,0.2", [0.5, 0.2], (0.5, "0.2"), 0.5, None, []])
def test_temperatures_are_texts_or_numbers(tmp_path, monkeypatch, given):
    asked = []
    monkeypatch.setattr(
        "sps.commands.evaluate.run_eval",
        lambda settings, machinery, *_: asked.extend(parse_temperatures(machinery.temperatures)),
    )
    sps.evaluate("m", "countdown", tmp_path, temperatures=given, endpoint="e")
    assert asked == ([0.5] if given == 0.5 else [0.5, 0.2] if given else [])


def test_a_run_has_its_steps_and_scores(tmp_path):
    import numpy as np

    records = [{"kind": "eval", "step": 0}, {"kind": "rl", "step": 1, "reward": 0.5}]
    scores = Scores(("a", "b"), np.array([1, 0]), 2, {}, {}, 0.0, 1.0)
    done = Trained(tmp_path, records, scores)
    assert done.rows == [{"kind": "rl", "step": 1, "reward": 0.5}]
    assert done.pass_at_k(1)[0] == 0.25  # one of two right in one of two questions
    with pytest.raises(UserError, match=r"pass_at_k\(3\): from 1 to evaluation\.n, 2"):
        done.pass_at_k(3)
    with pytest.raises(UserError, match=r"evaluation\.final"):
        Trained(tmp_path, records, None).pass_at_k(1)


TREE = {"extends": "demo/countdown_grpo", "name": "mine", "rl": {"steps": 7}}


@pytest.fixture
def opened(monkeypatch):
    """The recipes that train opens a run with."""
    import sps.build
    import sps.commands.train

    found = []

    def open_run(recipe, folder, resume, listeners):
        found.append((recipe, folder))
        raise UserError("go no further: --set rl.steps=3")

    monkeypatch.setattr(sps.build, "open_run", open_run)
    monkeypatch.setattr(sps.commands.train, "make_base", lambda recipe: None)
    return found


def test_a_recipe_may_be_a_file_a_short_name_a_mapping_or_a_recipe(opened, tmp_path):
    import yaml

    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(TREE))
    whole = sps.load_recipe(TREE, ["rl.lr=1e-3"])
    assert (whole.name, whole.rl.steps, whole.rl.lr) == ("mine", 7, 1e-3)
    assert whole.rl.algorithm.type == "grpo"
    for given in (file, str(file), TREE, whole):
        with pytest.raises(UserError, match="go no further"):
            sps.train(given, overrides=["rl.lr=1e-3"])
        assert opened.pop() == (whole, Path("runs/mine"))
    inner = MappingProxyType({"betas": (0.5, 0.9)})
    frozen = MappingProxyType({"rl": MappingProxyType({"steps": 7, "optimizer": inner})})
    read = sps.load_recipe(frozen, ["rl.steps=3"]).rl
    assert (read.steps, read.optimizer.betas) == (3, (0.5, 0.9))
    (entry,) = os.scandir(tmp_path)
    assert sps.load_recipe(entry) == sps.load_recipe(file)
    own = {"rl": {"steps": 7}}
    assert sps.load_recipe(own, ["rl.steps=3"]).rl.steps == 3
    assert own == {"rl": {"steps": 7}}
    with pytest.raises(UserError, match="go no further"):
        sps.train("demo/countdown_grpo", str(tmp_path))
    assert opened.pop() == (sps.load_recipe("demo/countdown_grpo"), tmp_path)


def test_several_things_may_be_given_as_any_that_holds_them(opened, monkeypatch, tmp_path):
    import sps.commands.compare
    import sps.commands.report

    class Place:
        def __fspath__(self):
            return str(tmp_path)

    reported, compared = [], []
    monkeypatch.setattr(sps.commands.report, "run_report", lambda *given: reported.append(given))
    for folders in ([tmp_path], {tmp_path}, iter([str(tmp_path)]), {str(tmp_path): 1}.keys()):
        assert sps.report(folders) == tmp_path / "report.html"
    assert sps.report(Place(), Place()) == tmp_path
    assert reported == [([tmp_path], None)] * 4 + [([tmp_path], tmp_path)]
    with pytest.raises(UserError, match="go no further"):
        sps.train(TREE, Place(), overrides=(f"rl.{key}=3" for key in ("steps", "seed")[:1]))
    assert opened.pop() == (sps.load_recipe(TREE, ["rl.steps=3"]), tmp_path)
    (tmp_path / "results.json").write_text("{}")
    monkeypatch.setattr(sps.commands.compare, "run_compare", lambda **all: compared.append(all))
    sps.compare(iter([TREE]), Place(), overrides={"rl.steps=3"})
    assert (compared[0]["paths"], compared[0]["overrides"]) == ([TREE], ["rl.steps=3"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sps.train(None), "mapping of its keys, not as a NoneType"),
        (lambda: sps.train(["a.yaml"]), "not as a list"),
        (lambda: sps.train({"rl": {"step": 3}}), r"^recipe: rl\.step: no such key; did you mean"),
        (lambda: sps.train({"extends": "non/sense"}), "^recipe: extends: non/sense: no such"),
        (lambda: sps.train(TREE, 3), "out: give a path, not a int"),
        (lambda: sps.train(TREE, overrides="rl.lr=1"), "overrides: give a list of texts, not 'rl"),
        (lambda: sps.train(TREE, overrides={"rl.lr": 1}), "list of texts, not a dict"),
        (lambda: sps.train(TREE, overrides=["rl.steps=x"]), r'^overrides=\["rl.steps=x"\]: rl'),
        (lambda: sps.compare("a.yaml"), "recipes: give a list of them"),
        (lambda: sps.compare(TREE), "recipes: give a list of them"),
        (lambda: sps.compare(sps.load_recipe(TREE)), "recipes: give a list of them"),
        (lambda: sps.compare([3]), "mapping of its keys, not as a int"),
        (lambda: sps.compare([TREE], 3), "out: give a path, not a int"),
        (lambda: sps.compare([TREE], overrides="rl.lr=1"), "overrides: give a list of texts"),
        (lambda: sps.report(3), "folders: give a path, not a int"),
        (lambda: sps.report({"a": 1}), "folders: give a path, not a dict"),
        (lambda: sps.report(DONE), r"not a Trained; give its \.folder"),
        (lambda: sps.report(["x"], 3), "out: give a path, not a int"),
        (lambda: sps.evaluate(DONE), r"model: give a path, not a Trained; give its \.folder"),
        (lambda: sps.evaluate("m", None), "bench: give a list of texts, not a NoneType"),
        (lambda: sps.evaluate("m", "gsm8k", 3), "out: give a path, not a int"),
    ],
)
def test_arguments_of_other_types_are_told_in_words(call, message, opened):
    with pytest.raises(UserError, match=message):
        call()
    assert not opened


DONE = Trained(Path("runs/x"), [], None)
