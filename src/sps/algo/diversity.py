"""How many different solutions the right samples of a prompt are. A mode is what `Task.mode` says:
equal for equal solutions, None where a task does not tell them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence


def distinct_modes(modes: Sequence[Hashable]) -> int:
    """Different solutions among the right samples of one prompt."""
    return len(set(modes))


def pcmd(modes: Sequence[Hashable]) -> float | None:
    """Pairwise diversity of correct modes: the chance that two of the n right samples of a prompt,
    drawn without replacement, are different solutions; None where n < 2.

    1 - sum over modes m of n_m (n_m - 1) / (n (n - 1)): unbiased for two new right samples, so it
    does not rise with n, as the number of distinct modes does.
    """
    n = len(modes)
    if n < 2:
        return None
    same = sum(count * (count - 1) for count in Counter(modes).values())
    return 1 - same / (n * (n - 1))
