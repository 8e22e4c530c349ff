"""A run folder as it is found: whole, half-written or damaged. Nothing writes, nothing raises."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sps.algo.diversity import Solutions, read_solutions
from sps.run.folder import (
    CHECKPOINTS,
    EVALS,
    RECIPE,
    RECORD,
    ROLLOUTS,
    TEMPERED,
    find_checkpoints,
    scores_path,
)
from sps.run.reading import parse_yaml, read_json, read_text
from sps.run.track import read_records
from sps.schema import MOST_SAMPLES
from sps.store.rollouts import SCHEMA, listing, strays

_BATCH = 4096
_MEANS = ("mean_length", "mean_logprob", "greedy_logprob")  # of a summary
_WORDS = {"kind", "of", "name", "text"}  # fields of a record that are words


@dataclass(frozen=True)
class Evaluation:
    """One finished evaluation."""

    name: str  # 'test', 'validation-000100', ...
    split: str  # the name without its step
    step: int | None  # RL steps the policy had seen; None: not recorded
    n: int
    correct: dict[str, int]  # correct samples of each question
    summary: dict[str, Any]  # as written
    solutions_Q: tuple[Solutions, ...] | None = None  # None: the task tells none apart


@dataclass
class RunFolder:
    """What could be read of a run, and a sentence for each thing that could not."""

    folder: Path
    name: str
    recipe: dict[str, Any] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Records of one kind, in the order they were written."""
        return [r for r in self.records if r["kind"] == kind]

    def split(self, name: str) -> list[Evaluation]:
        """Evaluations of one split, by step; those of unknown step last."""
        found = [e for e in self.evaluations if e.split == name]
        return sorted(found, key=lambda e: (e.step is None, e.step or 0, e.name))

    def base_share(self) -> float:
        """The base's in the weights that it ended with; 0 where they are not mixed, or none is
        known."""
        ends = self.of_kind("done")[-1:]
        share = ends[0].get("mixed") if ends else None
        return share if isinstance(share, int | float) else 0.0

    def lost(self) -> list[str]:
        """Validations that are on record, but have no file."""
        names = [str(record.get("name")) for record in self.of_kind("eval")]
        kept = [name for name in names if name.startswith(("validation-", "mixed-", TEMPERED))]
        return [n for n in dict.fromkeys(kept) if not scores_path(self.folder, n).exists()]

    def setting(self, *path: str) -> Any:
        """A value of the recipe, or None."""
        at: Any = self.recipe
        for key in path:
            at = at.get(key) if isinstance(at, dict) else None
        return at

    def kept(self, name: str) -> str:
        """A digest that the folder keeps; empty where there is none."""
        try:
            return read_text(self.folder / name).strip()
        except (OSError, ValueError):
            return ""

    def rollout_batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """The rollouts of every file that can be read, a few thousand rows at a time."""
        schema = pa.schema([SCHEMA.field(c) for c in columns])
        for path in self.rollout_files():
            try:
                source = pq.ParquetFile(path, page_checksum_verification=True)
                for batch in source.iter_batches(_BATCH, columns=columns):
                    yield batch.select(columns).cast(schema)
            except (OSError, ValueError, KeyError, pa.ArrowException) as error:
                self.note(f"rollouts/{path.name} cannot be read ({_short(error)})")

    def rollouts(self, columns: list[str]) -> pa.Table:
        """Those batches as one table; only for columns without tokens."""
        batches = list(self.rollout_batches(columns))
        schema = pa.schema([SCHEMA.field(c) for c in columns])
        return pa.Table.from_batches(batches) if batches else schema.empty_table()

    def rollout_files(self) -> list[Path]:
        """The files that together hold each rollout once."""
        folder = self.folder / ROLLOUTS
        return [file.path for file in listing(folder)] if folder.is_dir() else []

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Step and folder of each checkpoint."""
        found = find_checkpoints(self.folder / CHECKPOINTS)
        return [(step, path) for step, path in found.items() if path.is_dir()]

    def note(self, sentence: str) -> None:
        """Say once that something is missing."""
        if sentence not in self.missing:
            self.missing.append(sentence)


def read_run(folder: Path) -> RunFolder:
    """Whatever a folder holds of a run."""
    folder = Path(folder)
    run = RunFolder(folder, folder.name)
    if not folder.is_dir():
        run.note(f"there is no folder {folder}")
        return run
    run.recipe = _recipe(run)
    run.name = str(run.recipe.get("name") or folder.name)
    run.records = _records(run)
    run.evaluations = _evaluations(run)
    _say_what_is_not_there(run)
    return run


def _recipe(run: RunFolder) -> dict[str, Any]:
    path = run.folder / RECIPE
    try:
        tree = parse_yaml(read_text(path))
    except FileNotFoundError:
        run.note("recipe.yaml is not there: settings are unknown")
        return {}
    except (OSError, ValueError) as error:
        run.note(f"recipe.yaml cannot be read ({_short(error)})")
        return {}
    if not isinstance(tree, dict):
        run.note("recipe.yaml does not hold settings")
        return {}
    return tree


def _records(run: RunFolder) -> list[dict[str, Any]]:
    path = run.folder / RECORD
    if not path.is_file():
        run.note("metrics.jsonl is not there: no training curves, no cost")
        return []
    try:
        good = read_records(path)
        with path.open("rb") as file:
            lines = sum(1 for line in file if line.strip())
    except OSError as error:
        run.note(f"metrics.jsonl cannot be read ({_short(error)})")
        return []
    if len(good) < lines:
        run.note(f"metrics.jsonl: {lines - len(good)} of {lines} lines are cut short or damaged")
    return [_plain(run, record) for record in good]


def _plain(run: RunFolder, record: dict[str, Any]) -> dict[str, Any]:
    """A record without words or numbers that are none: curves are drawn of all that phases hold."""
    phase = record["kind"] in ("rl", "irl", "meter")
    odd = [
        name
        for name, value in record.items()
        if (name in _WORDS and not isinstance(value, str))
        or (name not in _WORDS and (phase or name == "time") and not _is_number(value))
    ]
    if odd:
        run.note(f"metrics.jsonl: {record['kind']} records hold no usable {odd[0]!r}")
    return {name: value for name, value in record.items() if name not in odd}


def _is_number(value: Any) -> bool:
    """Or nothing; a whole number of any length is none to a plot."""
    return (
        value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
    )


def _evaluations(run: RunFolder) -> list[Evaluation]:
    steps = {r.get("name"): r["step"] for r in run.records if r["kind"] == "eval"}
    folder = run.folder / EVALS
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            summary = read_json(path)
            correct = {str(q): int(c) for q, c in summary["per_question"].items()}
            n = int(summary["n"])
            if not 1 <= n <= MOST_SAMPLES or not all(0 <= c <= n for c in correct.values()):
                raise ValueError("counts are out of range")
            kinds = {str(kind): int(count) for kind, count in summary.get("kinds", {}).items()}
            told = read_solutions(summary.get("solutions"), correct)
            means = [summary.get(name) for name in _MEANS]
            if not all(map(_is_number, means)):
                raise ValueError("a mean is no number")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            run.note(f"evals/{path.name} cannot be read ({_short(error)})")
            continue
        split, number = _split(path.stem, run.setting("evaluation", "temperature"))
        found.append(
            Evaluation(
                path.stem,
                split,
                steps.get(path.stem, number),
                n,
                correct,
                summary | {"kinds": kinds},
                told,
            )
        )
    whole = {e.name for e in found} | {*run.lost()}
    for part in sorted(p for p in folder.glob("*") if p.is_dir()):
        if part.name not in whole and not (folder / f"{part.name}.json").exists():
            run.note(f"evals/{part.name} was begun but not finished: it has no scores")
    return found


def _split(name: str, temperature: Any) -> tuple[str, int | None]:
    """'validation-000100' is of validation at step 100; 'test-000100-1.4' was drawn at 1.4."""
    match = re.fullmatch(r"(.+?)-(\d{6,})(?:-([\d.e+-]+))?", name)
    if not match:
        return name, None
    usual = match[3] is None or match[3] == f"{temperature or 1.0:g}"
    return match[1] if usual else f"{match[1]} at T={match[3]}", int(match[2])


def _say_what_is_not_there(run: RunFolder) -> None:
    kinds = {r["kind"] for r in run.records} - {"warning"}
    if kinds == {"eval"} and not run.split("validation"):
        return  # an evaluation of a policy that was not trained here: nothing else belongs to it
    if run.records and not run.of_kind("done"):
        last = max(r["step"] for r in run.records)
        of = run.setting("rl", "steps")
        run.note(f"the run has not finished: it is at step {last}" + (f" of {of}" if of else ""))
    for name in run.lost():
        run.note(
            f"evals/{name}.json is on record, but not there; made again where its checkpoint is: "
            f"sps train {run.folder / RECIPE} --out {run.folder} --resume"
        )
    if not run.evaluations:
        run.note("evals/ holds no finished evaluation: no Pass@k")
    elif not run.split("test"):
        run.note("the final evaluation (evals/test.json) is not there")
    for sentence in strays(run.folder / ROLLOUTS):
        run.note(sentence)
    if not run.rollout_files():
        run.note("rollouts/ is empty or not there: no likelihoods, no trajectories")
    if not run.checkpoints():
        run.note("checkpoints/ is empty or not there: trajectories are shown as token ids")


def _short(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:120]}" if text else type(error).__name__
