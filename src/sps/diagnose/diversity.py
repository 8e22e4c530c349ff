"""How different the answers to one question are: stated measures, the same on every machine.

    distinct    different correct texts of a question, white space aside
    jaccard     mean over pairs of |A & B| / |A | B|, A and B the sets of word n-grams (n = 3)
    edit        mean over pairs of 1 - Levenshtein(a, b) / max(len a, len b), in words

Similarities are means over the pairs of a question, then over questions; lower is more diverse. The
paper prints a mean similarity without saying of what, so its figures (base 88.34, GRPO 88.18, SPS
86.82) are not comparable with these.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sps.algo.passk import pass_at_k

_WORDS = 1024  # of a long text, for the edit distance, whose cost grows with the square


def word_ngrams(text: str, n: int = 3) -> frozenset[tuple[str, ...]]:
    """The set of word n-grams; a text shorter than n is one gram."""
    words = text.split()
    if len(words) < n:
        return frozenset([tuple(words)]) if words else frozenset()
    return frozenset(zip(*(words[i:] for i in range(n)), strict=False))


def jaccard(a: frozenset, b: frozenset) -> float:
    """Shared over all; two empty sets are alike."""
    return len(a & b) / len(a | b) if a or b else 1.0


def edit_similarity(a: Sequence[str], b: Sequence[str]) -> float:
    """1 - Levenshtein distance over the longer length; two empty sequences are alike."""
    longer = max(len(a), len(b))
    return 1 - levenshtein(a, b) / longer if longer else 1.0


def levenshtein(a: Sequence[str], b: Sequence[str]) -> int:
    """Least insertions, deletions and exchanges from a to b.

    Myers' bit-parallel form (1999): a column of the table is two integers, `up` and `down`, with
    a bit for each place where the column rises or falls by one.
    """
    if not a:
        return len(b)
    places: dict[str, int] = {}
    for i, word in enumerate(a):
        places[word] = places.get(word, 0) | 1 << i
    full, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
    up, down, distance = full, 0, len(a)
    for word in b:
        same = places.get(word, 0)
        straight = same | down
        cross = (((same & up) + up) ^ up) | same
        right, left = down | (full & ~(cross | up)), up & cross
        distance += bool(right & last) - bool(left & last)
        right, left = (right << 1 | 1) & full, (left << 1) & full
        up, down = left | (full & ~(straight | right)), right & straight
    return distance


def mean_pairwise(texts: Sequence[str], pairs: int, seed: int = 0) -> tuple[float, float] | None:
    """Mean Jaccard and edit similarity over all pairs, or over `pairs` drawn with a seed."""
    every = list(itertools.combinations(range(len(texts)), 2))
    if not every:
        return None
    if len(every) > pairs:
        every = random.Random(seed).sample(every, pairs)
    grams = [word_ngrams(t) for t in texts]
    words = [t.split()[:_WORDS] for t in texts]
    return (
        sum(jaccard(grams[i], grams[j]) for i, j in every) / len(every),
        sum(edit_similarity(words[i], words[j]) for i, j in every) / len(every),
    )


def distinct_correct(texts: Iterable[str]) -> int:
    """Different texts, white space aside."""
    return len({" ".join(t.split()) for t in texts})


def expected_distinct(counts: Mapping[str, int], n: int, k: int) -> float:
    """Different correct texts expected in k of the n samples, drawn without replacement."""
    if not counts:
        return 0.0
    return float(pass_at_k(np.array(list(counts.values())), n, k).sum())


def diversity(
    rows: Iterable[Mapping[str, Any]], pairs: int = 20, questions: int = 200, seed: int = 0
) -> dict[str, Any] | None:
    """The measures over judged samples (problem_id, text, verdict); None where there are none."""
    answers: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for row in rows:
        answers[row["problem_id"]].append((row["text"], row["verdict"] == "correct"))
    if not answers:
        return None
    chosen = sorted(answers)
    if len(chosen) > questions:
        chosen = sorted(random.Random(seed).sample(chosen, questions))
    over_all = [mean_pairwise([t for t, _ in answers[q]], pairs, seed) for q in chosen]
    right = {q: [t for t, ok in answers[q] if ok] for q in answers}
    over_right = [mean_pairwise(right[q], pairs, seed) for q in chosen]
    found = [distinct_correct(texts) for texts in right.values()]
    return {
        "questions": len(answers),
        "samples": sum(len(a) for a in answers.values()),
        "distinct_correct": float(np.mean(found)),
        "distinct_correct_solved": float(np.mean([d for d in found if d])) if any(found) else None,
        "distinct_total": int(sum(found)),
        "jaccard": _mean([s[0] for s in over_all if s]),
        "edit": _mean([s[1] for s in over_all if s]),
        "jaccard_correct": _mean([s[0] for s in over_right if s]),
        "edit_correct": _mean([s[1] for s in over_right if s]),
    }


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
