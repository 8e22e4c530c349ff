"""Results as tables: Markdown, LaTeX, and a page with every question."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sps.algo.passk import BUCKETS, Interval, accuracy_buckets
from sps.evaluation.scores import Scores
from sps.run.folder import RESULTS
from sps.types import KINDS


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
        benchmarks[name] = {**summary, "pass_at_k": every, "buckets": _buckets(score)}
    return {**about, "benchmarks": benchmarks}


def markdown(title: str, scores: Mapping[str, Scores]) -> str:
    """A table to paste; cells are per cent [95 % interval, clustered by question]."""
    ks = shown_ks(max(s.n for s in scores.values()))
    n = max(s.n for s in scores.values())
    head = ["benchmark", "questions", f"Avg@{n}", *(f"Pass@{k}" for k in ks), "not judged"]
    lines = [f"| {' | '.join(head)} |", f"| --- {'| ---: ' * (len(head) - 1)}|"]
    for name, score in scores.items():
        cells = [cell(score.pass_at_k(k)) for k in (1, *ks)]
        lines.append(f"| {name} | {len(score.ids)} | {' | '.join(cells)} | {not_judged(score)} |")
    tables = (_solution_table(scores), _bucket_table(scores), _kind_table(scores))
    return "\n\n".join([f"# {title}", "\n".join(lines), *filter(None, tables)]) + "\n"


def title_of(about: Mapping[str, Any]) -> str:
    """Model and temperature, of results.json."""
    heat = about.get("temperature")
    return str(about["model"]) + (f", T = {heat:g}" if isinstance(heat, int | float) else "")


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
    (folder / "table.md").write_text(markdown(title_of(about), scores), encoding="utf-8")
    (folder / "table.tex").write_text(latex(scores), encoding="utf-8")
    (folder / "questions.md").write_text(question_table(scores, rows), encoding="utf-8")
    return found


def cell(value: Interval) -> str:
    """In per cent."""
    mean, low, high = (100 * v for v in value)
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def _latex_cell(value: Interval) -> str:
    mean, low, high = (100 * v for v in value)
    return f"${mean:.1f}_{{[{low:.1f},\\,{high:.1f}]}}$"


def not_judged(score: Scores) -> str:
    """Samples without a judgement on their answer: they count as wrong, and are said to."""
    lost = {k: v for k, v in score.kinds.items() if k not in ("correct", "wrong")}
    total = sum(score.kinds.values()) or 1
    return ", ".join(f"{k} {100 * v / total:.1f} %" for k, v in sorted(lost.items())) or "none"


def _buckets(score: Scores) -> dict[str, int]:
    return dict(zip(BUCKETS, accuracy_buckets(score.correct_Q, score.n), strict=True))


def _bucket_table(scores: Mapping[str, Scores]) -> str:
    lines = [
        f"| questions solved in % of samples | {' | '.join(BUCKETS)} |",
        f"| --- {'| ---: ' * len(BUCKETS)}|",
    ]
    for name, score in scores.items():
        lines.append(f"| {name} | {' | '.join(str(v) for v in _buckets(score).values())} |")
    return "\n".join(lines)


def _solution_table(scores: Mapping[str, Scores]) -> str:
    """Of the benchmarks that tell solutions apart; nothing without one."""
    told = {name: found for name, score in scores.items() if (found := score.diversity())}
    if not told:
        return ""
    lines = [
        "| solutions | distinct right a question | PCMD, % | questions with two right |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, found in told.items():
        mean, low, high = found["distinct"]
        pairs = cell(found["pcmd"]) if found["pcmd"] else "-"
        distinct = f"{mean:.2f} [{low:.2f}, {high:.2f}]"
        lines.append(f"| {name} | {distinct} | {pairs} | {found['pcmd_questions']} |")
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
