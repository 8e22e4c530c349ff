"""Which evaluation a folder holds: its eval.json. Samples and verdicts of another go elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sps.errors import UserError
from sps.run.reading import read_json

# What verdicts depend on, with a value a benchmark: another is a matter of --regrade.
_JUDGED = {
    "cut": "is judged with --cut {was}",
    "answers": "has verdicts by other gold answers than it has now",
    "judge": "has verdicts of another judge ({was}, now {now})",
}
# More samples and more benchmarks go with what is there.
_FREE = {"n", "questions", "weights", *_JUDGED}
# Of versions that kept no such.
_OLDER: dict[str, Any] = {"right": 1.0, "weights": "", "answers": {}, "judge": {}}
_OF_WEIGHTS = {"model", "gguf", "dtype", "weights"}  # no matter to verdicts alone


def default_folder(model: str) -> Path:
    """Where an evaluation goes that is given no folder."""
    return Path("evals") / slug(model)


def slug(name: str) -> str:
    """A model or a benchmark as the name of a folder."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name.strip("/")).strip("-.")


def claim(folder: Path, now: dict[str, Any], regrade_only: bool) -> dict[str, Any]:
    """What eval.json is to hold; a folder with another evaluation is refused, key by key.

    `questions` and what is judged by have a value a benchmark. While verdicts are made again by
    another it is None there: if that is stopped, nobody knows which they have.
    """
    if not _begun(folder):
        if regrade_only:
            raise UserError(
                f"--regrade: {folder} holds no evaluation; name its folder with --out, or "
                "leave out --regrade to draw one"
            )
        return now
    before = {**_OLDER, **held(folder)}
    free = _FREE | (_OF_WEIGHTS if regrade_only else set())
    now = {**now, **({k: before[k] for k in _OF_WEIGHTS} if regrade_only else {})}
    changed = [
        f"{k} ({before.get(k)}, now {now[k]})"
        for k in now
        if k not in free and before.get(k) != now[k]
    ]
    weights = now["weights"] or before["weights"]  # a digest; empty: nobody knows
    if before["model"] == now["model"] and before["weights"] not in ("", weights):
        changed.append(f"set of weights under the name {now['model']}")
    changed += [
        f"set of questions of {k}"
        for k, v in now["questions"].items()
        if before["questions"].get(k, v) != v
    ]
    if changed:
        raise UserError(
            f"{folder}: holds an evaluation with another {', '.join(changed)}; choose another "
            "folder with --out, or give the same settings to go on with it"
        )
    found = {**now, "weights": weights, "questions": {**before["questions"], **now["questions"]}}
    for key in _JUDGED:
        was = before[key]
        other = [k for k, v in now[key].items() if was.get(k, None if regrade_only else v) != v]
        if other and not regrade_only:
            raise UserError(_other(folder, key, other[0], was, now))
        found[key] = {**was, **now[key], **dict.fromkeys(other)}
    return found


def held(folder: Path) -> dict[str, Any]:
    """What eval.json says; nothing where there is none, or no sample by what it says."""
    path = folder / "eval.json"
    if not _begun(folder):
        return {}
    try:
        found = read_json(path)
        kinds = {
            "model": str,
            "dtype": str,
            "weights": str,
            "questions": dict,
            **dict.fromkeys(_JUDGED, dict),
        }
        if not all(isinstance(found.get(k, _OLDER.get(k)), kind) for k, kind in kinds.items()):
            raise ValueError("it does not say what was evaluated")
        return found
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path} cannot be read ({type(error).__name__}: {error}): put it back from a copy, or "
            "choose another folder with --out"
        ) from None


def _begun(folder: Path) -> bool:
    """Whether anything was drawn: a call that failed before has nothing that another must fit."""
    return (folder / "eval.json").exists() and any(folder.glob("*/*.parquet"))


def keep(folder: Path, held: dict[str, Any]) -> None:
    """Write eval.json, whole or not at all."""
    path = folder / "eval.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(held, indent=1), encoding="utf-8")
        draft.rename(path)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); see --out") from None


def _other(folder: Path, key: str, name: str, was: dict[str, Any], now: dict[str, Any]) -> str:
    how = _JUDGED[key].format(was=was[name], now=now[key][name])
    if was[name] is None:
        how = "was being judged again when that was stopped"
    cut = f" with --cut {now['cut'][name]}" if key == "cut" else ""
    return (
        f"{folder}: {name} {how}; judge it again{cut} by adding --regrade, or choose another "
        "folder with --out"
    )
