"""The wheel as somebody installs it: in an environment of its own, far from the source tree."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sps import __version__
from sps.run.track import read_records

ROOT = Path(__file__).parents[2]
SOURCES = ("src", "recipes", "launch", "pyproject.toml", "README.md", "LICENSE")
FEW = ["--set", "rl.steps=2", "--set", "irl.every=2", "--set", "evaluation.every=0"]
SMALL = ["--set", "evaluation.n=4", "--set", "task.test=4"]


def run(folder, *command):
    """What a command prints, in a folder and without the source tree's path."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env = {**kept, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "SPS_CACHE": str(folder / "own")}
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a source distribution, both in a copy of the tree: a build leaves files in it."""
    folder = tmp_path_factory.mktemp("build")
    tree = folder / "tree"
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        tree.mkdir(exist_ok=True)
        copy(ROOT / name, tree / name)
    code = "from setuptools.build_meta import build_sdist; build_sdist('..')"
    run(tree, sys.executable, "-c", code)
    (packed,) = folder.glob("*.tar.gz")
    how = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    run(folder, sys.executable, "-m", "pip", "wheel", *how, packed)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with an environment in it: the wheel, and from this one its dependencies alone."""
    folder = tmp_path_factory.mktemp("installed")
    env = folder / "env"
    run(folder, sys.executable, "-m", "venv", "--without-pip", env)
    python = env / "bin" / "python"
    how = ("--quiet", "--no-deps", "--no-index")
    run(folder, sys.executable, "-m", "pip", "--python", python, "install", *how, wheel)
    (site,) = env.glob("lib/python*/site-packages")
    # Folders that a .pth names are searched last, and their own .pth files, such as that of an
    # editable install, are not read.
    here = [path for path in sys.path if path.endswith("-packages")]
    (site / "dependencies.pth").write_text("\n".join(here))
    found = run(folder, python, "-c", "import sps; print(sps.__file__)").strip()
    assert found == str(site / "sps" / "__init__.py")
    return folder


def sps(folder, *arguments):
    """The installed command; what it prints."""
    env = next(above / "env" for above in (folder, *folder.parents) if (above / "env").is_dir())
    return run(folder, env / "bin" / "sps", *arguments)


def ended(folder):
    """A run's steps, if it is done."""
    records = read_records(folder / "metrics.jsonl")
    assert records[-1]["kind"] == "done"
    return [record["step"] for record in records if record["kind"] == "rl"]


def test_the_wheel_holds_all_that_the_tree_has_and_nothing_else(wheel):
    assert wheel.name == f"sps_rl-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as packed:
        held = {name for name in packed.namelist() if ".dist-info/" not in name}
    share = f"sps_rl-{__version__}.data/data/share/sps"
    paths = {
        f"{share}/{p.relative_to(ROOT)}" for n in SOURCES[1:3] for p in (ROOT / n).rglob("*.*")
    }
    sources = [p for p in (ROOT / "src" / "sps").rglob("*") if p.is_file()]
    paths |= {str(p.relative_to(ROOT / "src")) for p in sources if "__pycache__" not in p.parts}
    assert held == paths


def test_every_shipped_recipe_has_a_short_name_that_loads(installed):
    names = {str(p.relative_to(ROOT / "recipes"))[:-5] for p in (ROOT / "recipes").rglob("*.yaml")}
    listed = sps(installed, "recipes").partition("\n\n")[0].splitlines()
    assert {line.split()[0] for line in listed} == names
    code = "import sps, sys; print(*(sps.load_recipe(n).name for n in sys.argv[1:]), sep='\\n')"
    loaded = run(installed, installed / "env" / "bin" / "python", "-c", code, *sorted(names))
    assert len(loaded.splitlines()) == len(names)


def test_the_quick_demo_runs(installed):
    said = sps(installed, "demo", "--quick")
    assert "A smoke test: 30 steps" in said
    assert "is made first" not in said  # the embedded policy is in the wheel
    assert (installed / "runs" / "demo-quick" / "report.html").stat().st_size > 100_000
    for method in ("grpo", "sps", "memory_sps"):
        (folder,) = (installed / "runs" / "demo-quick" / method).iterdir()
        assert ended(folder) == [*range(1, 31)]


def test_a_shipped_recipe_trains_by_its_short_name(installed):
    sps(installed, "train", "demo/countdown_sps", *FEW, *SMALL, "--set", "irl.steps=1")
    assert ended(installed / "runs" / "memory_sps") == [1, 2]


def test_the_starter_trains(installed):
    sps(installed, "init", "first")
    sps(installed / "first", "train", "recipe.yaml", *FEW)
    assert ended(installed / "first" / "runs" / "starter") == [1, 2]
