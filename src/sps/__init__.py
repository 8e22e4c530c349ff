"""sps: train reasoning models with RL without losing exploration.

`load_recipe`, `train`, `evaluate`, `compare` and `report` are in api.py, and loaded when used.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sps.api import compare as compare
    from sps.api import evaluate as evaluate
    from sps.api import load_recipe as load_recipe
    from sps.api import report as report
    from sps.api import train as train

__version__ = "0.1.0"
# Where torchao is installed, transformers and peft import it, and it speaks in every command.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
_API = ("load_recipe", "train", "evaluate", "compare", "report")


def __getattr__(name: str) -> Any:
    if name not in _API:
        raise AttributeError(f"module 'sps' has no attribute {name!r}")
    from sps import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_API})
