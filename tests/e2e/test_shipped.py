"""Recipes that come with the program, by short name."""

from pathlib import Path

import pytest
from test_cli import said, sps

from sps.config import shipped
from sps.config.load import load_recipe
from sps.errors import UserError

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Away from the source tree, where recipes/ would be found as a path."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_recipe_of_the_tree_loads_by_its_short_name():
    files = sorted(RECIPES.rglob("*.yaml"))
    assert len(files) > 60
    for file in files:
        name = f"{file.parent.name}/{file.stem}"
        assert load_recipe(name) == load_recipe(file) == load_recipe(f"{name}.yaml")


def test_a_file_comes_before_a_short_name_and_a_folder_does_not(elsewhere):
    (elsewhere / "demo" / "countdown_sps").mkdir(parents=True)
    assert load_recipe("demo/countdown_sps").name == "memory_sps"
    (elsewhere / "demo" / "countdown_sps.yaml").write_text("name: mine")
    assert load_recipe("demo/countdown_sps.yaml").name == "mine"


def test_a_recipe_extends_a_shipped_one(elsewhere):
    (elsewhere / "mine.yaml").write_text("extends: demo/countdown_memory\nrl: {lr: 1e-5}")
    got = load_recipe("mine.yaml")
    assert (got.rl.lr, got.irl.memory.weight, got.rl.steps) == (1e-5, 1.0, 300)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("demo/countdwn_sps", "demo/countdown_sps or"),
        ("countdown_sps", "demo/countdown_sps?"),
        ("recipes/demo/countdown_sps.yaml", "demo/countdown_sps?"),
        ("smollm2_sps", "countdown/smollm2_sps or gsm8k/smollm2_sps?"),
    ],
)
def test_an_unknown_name_gets_near_ones(capsys, name, near):
    text = said(capsys, "train", name)
    assert f"{name}: no such recipe, neither a file nor a short name. Did you mean {near}" in text
    assert "`sps recipes` lists" in text


def test_a_name_like_no_other_is_told_where_all_are(capsys):
    text = said(capsys, "train", "zzz")
    assert "Did you mean" not in text
    assert "`sps recipes` lists" in text


def test_the_list_has_every_name_and_the_folders(capsys):
    assert sps("recipes") == 0
    listed, _, end = capsys.readouterr().out.partition("\n\n")
    lines = listed.splitlines()
    assert [line.split()[0] for line in lines] == sorted(shipped.shipped_recipes())
    (slow,) = (line for line in lines if line.startswith("rivals/countdown_kl "))
    assert slow.endswith("  GRPO held near the base policy by a KL.")
    assert f"their files: {RECIPES}\n" in end
    assert str(RECIPES.parent / "launch") in end


@pytest.mark.parametrize("package", ["lib/python3.11/site-packages/sps", "sps"])
def test_an_installed_package_finds_them_in_its_environment(elsewhere, monkeypatch, package):
    (elsewhere / package).mkdir(parents=True)
    monkeypatch.setattr(shipped, "_PACKAGE", elsewhere / package)
    assert shipped.shipped_recipes() == {}
    with pytest.raises(UserError, match="no such recipe"):
        load_recipe("demo/mine")
    (elsewhere / "share" / "sps" / "recipes" / "demo").mkdir(parents=True)
    (elsewhere / "share" / "sps" / "recipes" / "demo" / "mine.yaml").write_text("seed: 7")
    assert load_recipe("demo/mine").seed == 7
