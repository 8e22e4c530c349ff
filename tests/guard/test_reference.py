"""docs/reference.md is what the code says."""

import subprocess
import sys
from pathlib import Path

from sps.config.recipe import Recipe
from sps.tasks.table import TASKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference.md").read_text()


def test_the_reference_is_not_stale():
    asked = [sys.executable, "-m", "bench.reference", "--check"]
    done = subprocess.run(asked, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.returncode == 0, "run: python -m bench.reference"


def test_every_key_has_a_row_under_its_heading():
    def walk(tree, name):
        for key, value in tree.items():
            place = f"{name}.{key}" if name else key
            if isinstance(value, dict) and value and "type" not in value:
                walk(value, place)
            heading = f"### {name}\n" if name else "## Recipe\n"
            assert f"\n| `{key}` |" in PAGE.partition(heading)[2].partition("\n### ")[0], place

    tree = Recipe().model_dump()
    for name, row in TASKS.items():
        for key in row.config.model_fields:
            own = PAGE.partition(f"### task ({name})\n")[2].partition("\n### ")[0]
            assert f"\n| `{key}` |" in own, f"task.{key} of {name}"
    walk({k: v for k, v in tree.items() if k != "task"}, "")


def test_commands_have_defaults_and_what_the_api_returns_has_signatures():
    assert "| `--show` | `5` | Prompts to show. |" in PAGE
    assert "- `pass_at_k(name: str, k: int) -> Interval`:" in PAGE
    assert "out: str | os.PathLike[str] = 'runs/compare'" in PAGE
