"""`sps mix`: which models, which shares, where to."""

from __future__ import annotations

from pathlib import Path

from sps.config.load import load_recipe
from sps.errors import UserError
from sps.policy.resolve import resolve_model


def run_mix(first: str, second: str, shares: str, out: Path) -> str:
    """Write a folder for each share; returns their names, one a line."""
    wanted = parse_shares(shares, "--share")
    if not wanted:
        raise UserError("--share: give at least one, such as --share 0.3,0.5")
    folders = {out / f"share-{share:g}": share for share in wanted}
    if taken := next((folder for folder in folders if folder.exists()), None):
        raise UserError(f"{taken}: it exists; choose another folder with --out, or remove it")
    from sps.policy.mix import mix_folders

    one, other = (_folder(name) for name in (first, second))
    return "\n".join(str(mix_folders(one, other, s, folder)) for folder, s in folders.items())


def parse_shares(text: str, option: str) -> list[float]:
    """Shares of the first model, each once, in order; 0 and 1 would be the models themselves."""
    found: list[float] = []
    for word in (word.strip() for word in text.split(",") if word.strip()):
        try:
            share = float(word)
        except ValueError:
            raise UserError(
                f"{option}: {word!r} is not a number; write for example 0.3,0.5"
            ) from None
        if not 0 < share < 1:
            raise UserError(f"{option} {word}: a share lies between 0 and 1, such as 0.3")
        if share not in found:
            found.append(share)
    return found


def _folder(name: str) -> Path:
    """A model's folder; a run stands for its selected checkpoint as it was trained, a recipe for
    its base."""
    if Path(name).suffix not in (".yaml", ".yml"):
        return Path(resolve_model(name, mixed=False))
    recipe = load_recipe(Path(name))
    if recipe.model.path is not None:
        return Path(resolve_model(recipe.model.path))
    from sps.build import ensure_base

    return ensure_base(recipe)
