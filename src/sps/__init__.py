"""sps: train reasoning models with RL without losing exploration.

`load_recipe`, `train`, `evaluate`, `compare` and `report` are in api.py, and loaded when used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sps.api import compare as compare
    from sps.api import load_recipe as load_recipe
    from sps.api import train as train

__version__ = "0.1.0"
_API = ("load_recipe", "train", "compare")
_PACKAGES = ("evaluate", "report")  # of the same name as a function: see `make_callable`


def __getattr__(name: str) -> Any:
    import importlib

    if name in _API:
        return getattr(importlib.import_module("sps.api"), name)
    if name in _PACKAGES:
        return importlib.import_module(f"sps.{name}")
    raise AttributeError(f"module 'sps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_API, *_PACKAGES})


def make_callable(package: str) -> None:
    """Let `sps.evaluate(...)` call the API's function although `sps.evaluate` is a package.

    Python binds a package to its name in `sps` whenever it is first imported, which would hide a
    function of that name; so the package itself is what is called.
    """
    import sys
    from types import ModuleType

    class Callable(ModuleType):
        def __call__(self, *given: Any, **named: Any) -> Any:
            from sps import api

            return getattr(api, self.__name__.rpartition(".")[2])(*given, **named)

    sys.modules[package].__class__ = Callable
