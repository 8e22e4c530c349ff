"""Results as tables: Markdown, LaTeX, and a page with every question."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sps.algo.passk import Interval
from sps.evaluate.scores import Scores
from sps.run.folder import RESULTS
from sps.types import KINDS

BUCKETS = ("0", "0-25", "25-50", "50-75", "75-100", "100")  # per cent of a question's samples


def buckets(scores: Scores) -> dict[str, int]:
    """Questions by the share of their samples that are correct; none and all stand alone."""
    share_Q = scores.correct_Q / scores.n
    inner = np.clip(np.ceil(share_Q * 4).astype(int), 1, 4)  # 25 % is in 0-25, 26 % in 25-50
    place_Q = np.where(share_Q == 0, 0, np.where(share_Q == 1, 5, inner))
    return {name: int((place_Q == i).sum()) for i, name in enumerate(BUCKETS)}


def shown_ks(n: int) -> list[int]:
    """The k of a table: powers of 4, and n."""
    return sorted({4**i for i in range(1, 12) if 4**i < n} | {n})


def results(about: Mapping[str, Any], scores: Mapping[str, Scores]) -> dict[str, Any]:
    """All numbers of an evaluation, plain: results.json."""
    benchmarks = {}
    for name, score in scores.items():
        summary = score.summary()
        every = {str(k): list(score.pass_at_k(k)) for k in range(1, score.n + 1)}
        # In four places: the last bits depend on which samples shared a batch.
        summary["mean_logprob"] = round(summary["mean_logprob"], 4)
        benchmarks[name] = {**summary, "pass_at_k": every, "buckets": buckets(score)}
    return {**about, "benchmarks": benchmarks}


def markdown(title: str, scores: Mapping[str, Scores]) -> str:
    """A table to paste; cells are per cent [95 % interval, clustered by question]."""
    ks = shown_ks(max(s.n for s in scores.values()))
    n = max(s.n for s in scores.values())
    head = ["benchmark", "questions", f"Avg@{n}", *(f"Pass@{k}" for k in ks), "not judged"]
    lines = [f"| {' | '.join(head)} |", f"| --- {'| ---: ' * (len(head) - 1)}|"]
    for name, score in scores.items():
        cells = [_cell(score.pass_at_k(k)) for k in (1, *ks)]
        lines.append(f"| {name} | {len(score.ids)} | {' | '.join(cells)} | {_lost(score)} |")
    parts = [f"# {title}", "", *lines, "", _bucket_table(scores), "", _kind_table(scores)]
    return "\n".join(parts) + "\n"


def latex(scores: Mapping[str, Scores]) -> str:
    """The same table with booktabs rules."""
    ks = shown_ks(max(s.n for s in scores.values()))
    n = max(s.n for s in scores.values())
    head = ["Benchmark", f"Avg@{n}", *(f"Pass@{k}" for k in ks)]
    lines = [
        f"\\begin{{tabular}}{{l{'r' * (len(ks) + 1)}}}",
        "\\toprule",
        " & ".join(head) + " \\\\",
        "\\midrule",
    ]
    for name, score in scores.items():
        cells = [_latex_cell(score.pass_at_k(k)) for k in (1, *ks)]
        lines.append(" & ".join([name.replace("_", "\\_"), *cells]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def question_table(scores: Mapping[str, Scores], rows: Mapping[str, Sequence[dict]]) -> str:
    """Every question: how many samples were right, what became of the others, the usual answer."""
    lines = [
        "| question | correct | other verdicts | commonest answer |",
        "| --- | ---: | --- | --- |",
    ]
    for name, score in scores.items():
        by_question = defaultdict(list)
        for row in rows[name]:
            by_question[row["problem_id"]].append(row)
        for question, correct in zip(score.ids, score.correct_Q.tolist(), strict=True):
            mine = by_question[question]
            others = _count(r["verdict"] for r in mine if r["verdict"] != "correct")
            usual = next(iter(_count(r["answer"] for r in mine if r["answer"])), "")
            shown = " ".join(usual.split())[:40].replace("|", "\\|")
            kinds = ", ".join(f"{k} {v}" for k, v in others.items())
            answer = f"`{shown}`" if shown else ""
            lines.append(f"| {question} | {correct}/{score.n} | {kinds} | {answer} |")
    return "\n".join(lines) + "\n"


def write_results(
    folder: Path,
    about: Mapping[str, Any],
    scores: Mapping[str, Scores],
    rows: Mapping[str, Sequence[dict]],
) -> dict[str, Any]:
    """results.json, table.md, table.tex and questions.md in a folder."""
    found = results(about, scores)
    (folder / RESULTS).write_text(json.dumps(found, indent=1), encoding="utf-8")
    (folder / "table.md").write_text(markdown(str(about["model"]), scores), encoding="utf-8")
    (folder / "table.tex").write_text(latex(scores), encoding="utf-8")
    (folder / "questions.md").write_text(question_table(scores, rows), encoding="utf-8")
    return found


def _cell(value: Interval) -> str:
    mean, low, high = (100 * v for v in value)
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def _latex_cell(value: Interval) -> str:
    mean, low, high = (100 * v for v in value)
    return f"${mean:.1f}_{{[{low:.1f},\\,{high:.1f}]}}$"


def _lost(score: Scores) -> str:
    """Samples without a judgement on their answer: they count as wrong, and are said to."""
    lost = {k: v for k, v in score.kinds.items() if k not in ("correct", "wrong")}
    total = sum(score.kinds.values()) or 1
    return ", ".join(f"{k} {100 * v / total:.1f} %" for k, v in sorted(lost.items())) or "none"


def _bucket_table(scores: Mapping[str, Scores]) -> str:
    lines = [
        f"| questions solved in % of samples | {' | '.join(BUCKETS)} |",
        f"| --- {'| ---: ' * len(BUCKETS)}|",
    ]
    for name, score in scores.items():
        lines.append(f"| {name} | {' | '.join(str(v) for v in buckets(score).values())} |")
    return "\n".join(lines)


def _kind_table(scores: Mapping[str, Scores]) -> str:
    lines = [f"| verdicts | {' | '.join(KINDS)} |", f"| --- {'| ---: ' * len(KINDS)}|"]
    for name, score in scores.items():
        lines.append(f"| {name} | {' | '.join(str(score.kinds.get(k, 0)) for k in KINDS)} |")
    return "\n".join(lines)


def _count(values: Any) -> dict[str, int]:
    """How often each occurs, the commonest first and ties in alphabetical order."""
    counts: dict[str, int] = defaultdict(int)
    for value in values:
        counts[value] += 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
