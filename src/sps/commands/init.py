"""`sps init`: a folder to start a task of one's own from, which runs at once on a CPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from sps.commands.terminal import say, status
from sps.errors import UserError
from sps.tasks.prompts import plain

STARTER = Path(__file__).parents[1] / "assets" / "starter"
_ASKED = "Two numbers that make more than {}"
_AIMED = 0.5  # share of attempts that reach the target; the rest are any two numbers
# Some seconds of training; RL has something left to teach.
_POLICY = {"seed": 0, "steps": 300, "batch": 64, "lr": 3e-3}
_SHAPE = {"hidden": 32, "layers": 2, "heads": 2, "ff": 64}


def run_init(folder: Path) -> None:
    """Write the starter, and make its tiny policy."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: it is there already, and not empty; name a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(path.name for path in STARTER.iterdir() if path.is_file()):
            (folder / name).write_bytes((STARTER / name).read_bytes())
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})") from None
    make_policy(folder / "model")
    where = f"cd {quote(str(folder))}\n" if folder.resolve() != Path.cwd() else ""
    say(
        f"{folder}: recipe.yaml, my_task.py, rows.jsonl, README.md, and model/, a tiny policy\n\n"
        f"{where}sps data recipe.yaml\nsps train recipe.yaml\nsps eval runs/starter\n"
        "sps report runs/starter"
    )


def make_policy(folder: Path) -> None:
    """A Llama of 20 thousand weights that knows the words of the starter's questions."""
    import torch
    from transformers.utils import logging

    from sps.policy.embedded import make_base, make_tokenizer

    logging.disable_progress_bar()
    torch.set_num_threads(1)  # it is so small that threads would wait for each other
    with status("making a tiny policy for it") as show:

        def progress(step: int, of: int, loss: float) -> None:
            show(f"making a tiny policy for it: step {step}/{of}, loss {loss:.2f}")

        make_base(folder, make_tokenizer(_words()), _attempts(), progress, **_POLICY, **_SHAPE)


def _words() -> list[str]:
    text = str(plain(_ASKED.format(""), "", ""))
    return sorted({*text.split(), "+", ".", *map(str, range(19))})


def _attempts() -> Iterator[tuple[str, str]]:
    """Endless attempts; a few reach the target."""
    rng = random.Random(0)
    while True:
        numbers = [rng.randint(1, 9) for _ in range(2)]
        target = sum(numbers) - 1 if rng.random() < _AIMED else rng.randint(1, 17)
        text = " + ".join(map(str, numbers)) + " ."
        yield str(plain(_ASKED.format(target), "", "")), text
