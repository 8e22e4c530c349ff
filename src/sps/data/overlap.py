"""Do training questions occur in the benchmarks? Exact and near duplicates, before any training."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sps.data.messages import asked_of
from sps.types import Problem

RUN = 8  # words in a row that two questions must share to be compared at all
NEAR = 0.5  # share of the shorter question's runs that makes a near duplicate


@dataclass(frozen=True)
class Overlap:
    """A training question that is a benchmark's."""

    train_id: str
    benchmark: str
    test_id: str
    kind: str  # 'exact' or 'near'
    share: float  # of the shorter one's 8-word runs that the other has; 1 for exact


def find_overlaps(
    train: Sequence[Problem], benchmarks: Mapping[str, Sequence[Problem]]
) -> list[Overlap]:
    """Exact: the same letters and digits. Near: they share half of the shorter one's runs."""
    exact: dict[str, list[tuple[str, str]]] = defaultdict(list)
    runs: dict[tuple[str, ...], set[tuple[str, str]]] = defaultdict(set)
    size: dict[tuple[str, str], int] = {}
    for name, problems in benchmarks.items():
        for problem in problems:
            words = _words(asked_of(problem))
            exact["".join(words) or problem.question].append((name, problem.id))
            own = _runs(words)
            size[name, problem.id] = len(own)
            for run in own:
                runs[run].add((name, problem.id))
    found = []
    for problem in train:
        words = _words(asked_of(problem))
        same = exact.get("".join(words) or problem.question, [])
        found += [Overlap(problem.id, name, test, "exact", 1.0) for name, test in same]
        own = _runs(words)
        hits = Counter(key for run in own for key in runs.get(run, ()))
        for (name, test), count in sorted(hits.items()):  # a set has another order in each process
            share = count / max(1, min(len(own), size[name, test]))
            if share >= NEAR and (name, test) not in same:
                found.append(Overlap(problem.id, name, test, "near", share))
    return found


def summary(overlaps: Sequence[Overlap], benchmarks: Mapping[str, Sequence[Problem]]) -> str:
    """One sentence for the log."""
    if not overlaps:
        return f"no training question occurs in {', '.join(benchmarks)}"
    return (
        f"{_rows(overlaps)} training questions occur in benchmarks ({_counts(overlaps)}), such as "
        f"{_shown(overlaps)}; task.overlap: drop leaves them out"
    )


def held_out_summary(overlaps: Sequence[Overlap]) -> str:
    """What is said of training questions like those held out; nothing where there are none."""
    if not overlaps:
        return ""
    pairs = ", ".join(f"{o.train_id} and {o.test_id}" for o in overlaps[:5])
    return (
        f"{_rows(overlaps)} training and validation questions are nearly the same as held-out ones "
        f"({_counts(overlaps)}), such as {pairs}: scores there flatter; take one of each pair out "
        "of the data. Where all questions are of one form, task.overlap: off looks for none"
    )


def letters(question: str) -> str:
    """The letters and digits of a question: what equal ones share, however they are set."""
    return "".join(_words(question))


def _rows(overlaps: Sequence[Overlap]) -> int:
    return len({o.train_id for o in overlaps})


def _counts(overlaps: Sequence[Overlap]) -> str:
    """Of the held-out questions, each once: one may be like many that are trained on."""
    once = {(o.benchmark, o.kind, o.test_id) for o in overlaps}
    counts = Counter((name, kind) for name, kind, _ in once)
    return "; ".join(f"{name}: {n} {kind}" for (name, kind), n in sorted(counts.items()))


def _shown(overlaps: Sequence[Overlap]) -> str:
    return ", ".join(sorted({o.train_id for o in overlaps})[:5])


def _words(question: str) -> list[str]:
    return re.findall(r"[^\W_]+", question.lower())


def _runs(words: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1)}
