"""`sps recipes`: what can be trained without writing a recipe."""

from __future__ import annotations

import textwrap
from pathlib import Path

from sps.commands.terminal import say
from sps.config.shipped import shipped_folder, shipped_recipes

_WIDTH = 90  # signs of a comment


def run_recipes() -> None:
    """Every short name with the comment that its file begins with, and the folders."""
    found = shipped_recipes()
    width = max(map(len, found), default=0)
    lines = [f"{name:{width}}  {_comment(path)}".rstrip() for name, path in found.items()]
    folder = shipped_folder()
    say(
        "\n".join(lines) + "\n\nsps train NAME trains one, and `extends: NAME` in a recipe of your "
        f"own changes one.\ntheir files: {folder / 'recipes'}\n"
        f"for accelerate launch --config_file: {folder / 'launch'}"
    )


def _comment(path: Path) -> str:
    words: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            break
        words.append(line[2:])
    return textwrap.shorten(" ".join(words), _WIDTH, placeholder=" ...")
