"""A sample of trajectories for the page: whole groups, token by token, in compact columns."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from sps.diagnose.read import RunFolder
from sps.reporting.blocks import clean
from sps.reporting.study import Study

MOST_ROWS = 10_000
MOST_TOKENS = 600_000  # in all: long trajectories are shown whole, but fewer of them
_CUT = 16_384  # tokens of one trajectory
_PROMPT = 4000  # characters of a prompt that are shown
_KEY = 1_000_000  # step * _KEY + group names a group
_HEAVY = ["step", "group", "sample", "problem_id", "prompt_ids", "ids", "logprobs"]
_HEAVY += ["mean_logprob", "reward", "verdict", "detail", "answer", "kept", "finished"]
_LEVELS = 20.0  # steps a nat in the stored log-probabilities: 0 to 12.75 nats in one byte


def explorer_data(
    study: Study, most: int = MOST_ROWS, tokens: int = MOST_TOKENS, seed: int = 0
) -> dict[str, Any] | None:
    """Columns for the page, or None where no rollout can be read."""
    runs = [(s.name, run) for s in study.subjects for run in s.runs if run.rollout_files()]
    rows: list[dict[str, Any]] = []
    names: list[str] = []
    total = 0
    for i, (name, run) in enumerate(runs):
        chosen, drawn = _chosen_groups(run, most // len(runs), tokens // len(runs), seed + i)
        total += drawn
        several = sum(other == name for other, _ in runs) > 1
        names.append(f"{name} {run.folder.name}" if several else name)
        rows += [row | {"run": i} for row in _read(run, chosen)]
    if not rows:
        return None
    readers = [_tokenizer(run) for _, run in runs]
    rows.sort(key=lambda r: (r["run"], r["step"], r["group"], r["sample"]))
    return _columns(rows[:most], names, readers, total)


def _chosen_groups(run: RunFolder, most: int, tokens: int, seed: int) -> tuple[np.ndarray, int]:
    """Keys of groups drawn at random, as many as fit into the rows and tokens, one at least."""
    table = run.rollouts(["step", "group", "length"])
    key_N = table["step"].to_numpy().astype(np.int64) * _KEY + table["group"].to_numpy()
    key_G, group_N, count_G = np.unique(key_N, return_inverse=True, return_counts=True)
    length_G = np.bincount(group_N, np.minimum(table["length"].to_numpy(), _CUT), len(key_G))
    order = np.random.default_rng(seed).permutation(len(key_G))
    fits = np.cumsum(length_G[order]) <= tokens
    fits[:1] = True
    inside = (np.cumsum(count_G[order]) <= most) & fits
    return np.sort(key_G[order[inside]]), len(key_N)


def _read(run: RunFolder, chosen: np.ndarray) -> Iterable[dict[str, Any]]:
    for batch in run.rollout_batches(_HEAVY):
        key_N = batch["step"].to_numpy().astype(np.int64) * _KEY + batch["group"].to_numpy()
        found = np.flatnonzero(np.isin(key_N, chosen))
        yield from batch.take(found).to_pylist()


def _columns(
    rows: list[dict[str, Any]], names: list[str], readers: list[Tokenizer | None], total: int
) -> dict[str, Any]:
    questions, kinds, details, words = _Names(), _Names(), _Names(), _Names()
    ids: list[int] = []
    logq: list[np.ndarray] = []
    offset = [0]
    prompts: list[str] = []
    for row in rows:
        reader = row["run"] if readers[row["run"]] else -1
        tokens = row["ids"][:_CUT]
        if questions.add(row["problem_id"] or "") == len(prompts):
            prompts.append(_prompt(row, readers))
        ids += [words.add((reader, t)) for t in tokens]
        logq.append(np.clip(np.round(-_LEVELS * np.array(row["logprobs"][:_CUT])), 0, 255))
        offset.append(offset[-1] + len(tokens))
    column = {
        "run": _pack([r["run"] for r in rows], "u1"),
        "question": _pack([questions.add(r["problem_id"] or "") for r in rows], "u4"),
        "step": _pack([r["step"] for r in rows], "u4"),
        "sample": _pack([r["sample"] for r in rows], "u2"),
        "kind": _pack([kinds.add(r["verdict"] or "?") for r in rows], "u1"),
        "detail": _pack([details.add(r["detail"] or "") for r in rows], "u2"),
        "reward": _pack([clean(r["reward"]) or 0.0 for r in rows], "f4"),
        "mean": _pack([clean(r["mean_logprob"]) or 0.0 for r in rows], "f4"),
        "kept": _pack([bool(r["kept"]) for r in rows], "u1"),
        "finished": _pack([bool(r["finished"]) for r in rows], "u1"),
        "length": _pack([len(r["ids"]) for r in rows], "u4"),
        "offset": _pack(offset, "u4"),
        "token": _pack(ids, "u4" if len(words.order) > 65535 else "u2"),
        "logq": _pack(np.nan_to_num(np.concatenate(logq), nan=255.0), "u1"),
    }
    return {
        "total": total,
        "shown": len(rows),
        "runs": names,
        "questions": [[q, p] for q, p in zip(questions.order, prompts, strict=True)],
        "kinds": kinds.order,
        "details": details.order,
        "answers": [(r["answer"] or "")[:200] for r in rows],
        "words": _texts(words.order, readers),
        "column": column,
    }


class _Names:
    """Numbers for names, in the order they are first seen."""

    def __init__(self) -> None:
        self.order: list[Any] = []
        self._place: dict[Any, int] = {}

    def add(self, name: Any) -> int:
        """The number of a name, a new one for a new name."""
        if name not in self._place:
            self._place[name] = len(self.order)
            self.order.append(name)
        return self._place[name]


def _tokenizer(run: RunFolder) -> Tokenizer | None:
    for _, folder in reversed(run.checkpoints()):
        path = Path(folder) / "tokenizer.json"
        if path.is_file():
            try:
                return Tokenizer.from_file(str(path))
            except Exception as error:  # the library raises plain Exception on a damaged file
                run.note(f"checkpoint {folder.name}: its tokenizer cannot be read ({error})"[:200])
    return None


def _prompt(row: dict[str, Any], readers: list[Tokenizer | None]) -> str:
    reader = readers[row["run"]]
    if reader is None:
        return " ".join(f"#{t}" for t in row["prompt_ids"][:200])
    return reader.decode(row["prompt_ids"], skip_special_tokens=False)[:_PROMPT]


def _texts(order: list[tuple[int, int]], readers: list[Tokenizer | None]) -> list[str]:
    """Each token as it looks in running text: what it adds after another token."""
    out = []
    for which, token in order:
        reader = readers[which] if which >= 0 else None
        out.append(f" #{token}" if reader is None else _in_text(reader, token))
    return out


def _in_text(reader: Tokenizer, token: int) -> str:
    before = reader.decode([token], skip_special_tokens=False)
    both = reader.decode([token, token], skip_special_tokens=False)
    return both[len(before) :] if both.startswith(before) and len(both) > len(before) else before


def _pack(values: Any, dtype: str) -> dict[str, str]:
    data = np.asarray(values).astype(f"<{dtype}").tobytes()
    return {"dtype": dtype, "base64": base64.b64encode(data).decode("ascii")}
