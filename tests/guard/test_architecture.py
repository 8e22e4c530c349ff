"""What keeps the code base readable, said once and checked."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sps.config.load import dump_recipe, load_recipe, parse_recipe

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "sps").rglob("*.py"))
RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))


def test_no_file_is_longer_than_400_lines():
    long = {p.name: n for p in SOURCES if (n := len(p.read_text().splitlines())) > 400}
    assert long == {}


def test_no_function_is_longer_than_60_lines():
    long = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if lines > 60:
                    long[f"{path.name}:{node.name}"] = lines
    assert long == {}


def test_the_loop_is_shorter_than_150_lines():
    assert len((ROOT / "src" / "sps" / "loop.py").read_text().splitlines()) < 150


def test_no_module_is_a_drawer_for_everything():
    assert not [p for p in SOURCES if p.stem in {"utils", "util", "common", "misc", "helpers"}]


def test_imports_go_one_way(monkeypatch):
    from importlinter.cli import lint_imports

    # It sets up logging anew, which disables every logger there is: tests after this one would
    # hear no warnings.
    monkeypatch.setattr("logging.config.dictConfig", lambda config: None)
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_recipe_loads_and_its_resolved_form_is_the_same_recipe(path):
    import yaml

    recipe = load_recipe(path)
    assert parse_recipe(yaml.safe_load(dump_recipe(recipe)), "resolved") == recipe


def test_every_recipe_is_in_the_wheel():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    files = {
        f"{target}/{path.name}": path
        for target, patterns in listed["data-files"].items()
        for pattern in patterns
        for path in ROOT.glob(pattern)
    }
    # Beside each other as in the source tree, since recipes extend each other.
    assert {f"share/sps/{p.relative_to(ROOT)}": p for p in RECIPES} == {
        name: path for name, path in files.items() if "/recipes/" in name
    }


def test_every_hint_to_install_an_extra_names_one_of_this_distribution():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = {*project["optional-dependencies"]}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    hints = [
        (path.name, name, extra)
        for path in [*SOURCES, *pages, ROOT / "pyproject.toml"]
        for name, extras in re.findall(r"[\"'`: ]([\w-]+)\[([a-z0-9,]+)\][\"'`]", path.read_text())
        for extra in extras.split(",")
        if extra in known
    ]
    assert len(hints) > 15
    assert [hint for hint in hints if hint[1] != project["name"]] == []


@pytest.mark.parametrize("module", ["sps.config.recipe", "sps.commands.compare", "sps.cli"])
def test_light_modules_do_not_load_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
