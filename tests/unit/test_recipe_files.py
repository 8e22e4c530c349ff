"""Recipes that somebody sent: none hangs, none writes elsewhere, each fault is one paragraph."""

import os

import pytest

from sps.config.load import load_recipe
from sps.errors import UserError
from sps.run.reading import read_json, read_text

LEVELS = list(zip("abcdefgh", "bcdefghi", strict=True))
BOMB = "a: &a [1]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in LEVELS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB + "rl: *i", r"line 2 is not valid YAML: aliases \(\*name\) are not read"),
        ("rl: &a [*a]", "aliases"),
        ("rl: " + "[" * 50_000, "nested too deeply"),
        ("{a: " * 50_000, "nested too deeply"),
        ("seed: " + "1" * 5000, "line 1 is not valid YAML: the value cannot be read"),
        ("rl:\n  lr: 2001-99-99", "line 2 is not valid YAML: the value cannot be read"),
        ('model: {path: "a\\0b"}', "characters that are none"),
        ('model: {path: "\\uD800"}', "characters that are none"),
        ("rl: {lr: .inf}", r"rl\.lr: Input should be a finite number"),
        ("name: " + "x" * 300_000, "more than 256 KiB"),
        ("".join(f"k{i}: 1\n" for i in range(500)), r"k19: no such key.*; and 480 more$"),
        (f"rl: [{'1, ' * 5000}]", r"rl: give it a mapping of its keys, not \[1.{,250}\.\.\.; kn"),
    ],
    ids=lambda value: value[:20],
)
def test_a_recipe_that_would_hang_or_break_a_reader_is_one_paragraph(tmp_path, text, message):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as said:
        load_recipe(path)
    assert "\n" not in str(said.value)


def test_pipes_devices_and_large_files_are_not_extended(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**31)  # sparse: 2 GiB that take no room
    for parent, why in {"/dev/zero": "plain", "pipe": "plain", "large": "more than 256"}.items():
        (tmp_path / "r.yaml").write_text(f"extends: {parent}")
        with pytest.raises(UserError, match=f"{parent}: it .*{why}"):
            load_recipe(tmp_path / "r.yaml")


def test_a_long_chain_of_recipes_ends(tmp_path):
    for i in range(200):
        (tmp_path / f"{i}.yaml").write_text(f"extends: {i + 1}.yaml")
    with pytest.raises(UserError, match="too many recipes"):
        load_recipe(tmp_path / "0.yaml")


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "..", ".", "", " ", "a\\b", "n" * 300, "a\nb", " a", "ä" * 60]
)
def test_a_name_is_one_folder(tmp_path, name):
    path = tmp_path / "r.yaml"
    path.write_text("seed: 1")
    quoted = name.replace("\\", "\\\\").replace("\n", "\\n")
    with pytest.raises(UserError, match=r"--set name=.*: name: it names a folder"):
        load_recipe(path, [f'name="{quoted}"'])


@pytest.mark.parametrize("name", ["sps", "sps keep=1", "grpo @100", "étude-2.5_b", "a..b"])
def test_names_of_folders_are_fine(tmp_path, name):
    path = tmp_path / "r.yaml"
    path.write_text("seed: 1")
    assert load_recipe(path, [f"name={name}"]).name == name


def test_json_is_read_within_bounds(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(path)
    path.write_text("[1]")
    assert read_json(path) == [1]
    assert read_text(path, limit=3) == "[1]"
    with pytest.raises(ValueError, match="more than 0 KiB"):
        read_text(path, limit=2)
