"""Recipes that come with the program, each by a short name such as demo/countdown_sps."""

from __future__ import annotations

import difflib
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_SHARE = Path("share", "sps")  # as in pyproject.toml


def shipped_folder() -> Path:
    """Where recipes/ and launch/ are: in the source tree, or where a wheel put its data."""
    if _PACKAGE.parent.name == "src":
        return _PACKAGE.parents[1]
    # `pip install --target` puts it beside the package, others up to four folders above.
    found = (above / _SHARE for above in _PACKAGE.parents[:4] if (above / _SHARE).is_dir())
    return next(found, _PACKAGE)


def shipped_recipes() -> dict[str, Path]:
    """Every recipe that comes with the program, by its short name."""
    folder = shipped_folder() / "recipes"
    paths = sorted(folder.glob("*/*.yaml"))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def find_recipe(name: str | Path, folder: Path = Path()) -> Path:
    """The file at this path from `folder`; where there is none, the recipe of that short name."""
    file = folder / name
    if file.is_file():
        return file
    return shipped_recipes().get(Path(name).as_posix().removesuffix(".yaml"), file)


def near_names(name: str | Path) -> list[str]:
    """Short names like this one, which none is; a path or a half of a name will do."""
    parts = Path(name).as_posix().removesuffix(".yaml").split("/")
    whole, last = "/".join(parts[-2:]), parts[-1]
    known = [*shipped_recipes()]
    ends = [one for one in known if one.partition("/")[2] == last]
    return (ends or difflib.get_close_matches(whole, known, n=3))[:3]
