"""docs/extending.md: its additions are made in a copy of the package, and run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
SECTIONS = {
    part.partition("\n")[0]: re.findall(r"```(\w+)\n(.*?)```", part, re.DOTALL)
    for part in PAGE.split("\n## ")[1:]
}


def add(folder: Path, kind: str, block: str) -> str:
    """A new file, or a change of one; what is neither is code to run."""
    first, _, body = block.partition("\n")
    if kind == "python" and first.startswith("# src/"):
        path = folder / first.removeprefix("# ")
        assert not path.exists()
        path.write_text(body)
        return ""
    if kind == "python":
        return block
    assert kind == "diff"
    path = folder / first.removeprefix("--- ")
    lines = body.rstrip("\n").split("\n")
    before = "\n".join(line[1:] for line in lines if line[:1] in " -")
    after = "\n".join(line[1:] for line in lines if line[:1] in " +")
    text = path.read_text()
    assert text.count(before) == 1, f"{path}: not there just once: {before}"
    path.write_text(text.replace(before, after))
    return ""


def test_the_page_has_the_five_additions():
    assert list(SECTIONS) == ["A task", "An engine", "An algorithm", "A selector", "A figure"]
    for blocks in SECTIONS.values():
        kinds = [kind for kind, _ in blocks]
        assert "diff" in kinds
        assert kinds[-1] == "python"
        assert "assert " in blocks[-1][1]


def test_the_additions_work_as_they_are_written(tmp_path):
    left_out = shutil.ignore_patterns("__pycache__", "assets")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=left_out)
    blocks = [block for section in SECTIONS.values() for block in section]
    code = "\n".join(add(tmp_path, *block) for block in blocks)
    seen = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{code}\nprint('done')"],
        env=seen, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr
