"""`sps report`, `sps diagnose` and `sps watch`: plain arguments in, what to print out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sps.errors import UserError
from sps.reporting.blocks import clean
from sps.reporting.style import spelled
from sps.run.folder import CHECKPOINTS, EVALS, RECIPE, RECORD, RESULTS, ROLLOUTS, find_runs

_OF_A_RUN = (RECIPE, RECORD, EVALS, ROLLOUTS, CHECKPOINTS)


def run_diagnose(run: Path, out: Path | None = None) -> str:
    """Every analysis of a run: the numbers as JSON in `out`, the gist as text to print."""
    from sps.diagnose.run import diagnose

    _check_folder(Path(run), comparisons=False)
    found = diagnose(run)
    path = Path(out) if out else Path(run) / "diagnosis.json"
    try:
        path.write_text(json.dumps(clean(found), indent=1), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot write the diagnosis ({error.strerror})") from None
    return "\n".join([*_gist(found), f"All numbers: {path}"])


def run_report(places: Sequence[Path], out: Path | None = None, svg: Path | None = None) -> str:
    """Write the report, or the plots when asked, or both when a page is named, too; returns what
    was written."""
    from sps.reporting.content import diagnose_study, sections
    from sps.reporting.export import export_figures
    from sps.reporting.page import write_report
    from sps.reporting.study import load_study

    if not places:
        raise UserError("give at least one run folder or comparison folder to report on")
    places = [Path(place) for place in places]
    for place in places:
        if not place.is_file():
            _check_folder(place, comparisons=True)
    said = []
    if out or not svg:
        said.append(str(write_report(places, Path(out) if out else report_path(places[0]))))
    if svg:
        study = load_study(places)
        plots = export_figures(sections(study, diagnose_study(study)), Path(svg))
        said.append(str(svg) if len(plots) == 1 else f"{len(plots)} plots in {svg}")
    return "\n".join(said)


def report_path(place: Path) -> Path:
    """Where the page of a folder, or of a file of results, goes unless told."""
    return place.with_suffix(".html") if place.is_file() else place / "report.html"


def run_watch(run: Path, port: int = 8765, browser: bool = False) -> None:
    """Serve the report on this machine until interrupted, and say where."""
    from rich.console import Console

    from sps.reporting.watch import address, make_server, watch

    if port == 0:  # take the free one first, so that it can be said
        with make_server(Path(run), 0) as server:
            port = int(server.server_address[1])
            where = address(server)
    else:
        where = f"http://127.0.0.1:{port}/"
    Console(stderr=True, highlight=False).print(f"{where} shows {run} until Ctrl-C", markup=False)
    watch(Path(run), port, browser)


def _check_folder(folder: Path, comparisons: bool) -> None:
    """Refuse a folder that holds nothing of a run, and say what it is; comparisons on request."""
    if not folder.is_dir():
        raise UserError(
            f"{folder}: there is no such folder; give the folder of a run (--out of train)"
        )
    if any((folder / name).exists() for name in _OF_A_RUN):
        return
    runs = find_runs(folder)
    if (folder / "eval.json").exists():
        raise UserError(
            f"{folder}: this is an evaluation by sps eval; its tables are in table.md and "
            "questions.md, and sps eval --compare A B sets two side by side. Give the folder of "
            "a run (--out of train)"
        )
    if not runs and not (folder / RESULTS).exists():
        below = sorted(path.parent for path in folder.glob(f"*/{RECORD}"))
        # A recipe alone may be the user's own, in the folder where runs/ is.
        of_a_run = (folder.parent / RECORD).exists()
        near = below[0] if below else folder.parent if of_a_run else "the folder of a run"
        raise UserError(f"{folder}: holds no run (no recipe.yaml, no metrics.jsonl); give {near}")
    if not comparisons:
        near = runs[0] if runs else "a run"
        raise UserError(f"{folder}: this is a comparison; give one of its runs, such as {near}")


def _gist(found: dict[str, Any]) -> list[str]:
    lines = [spelled(str(found["name"]))]
    for e in found["evaluations"] or []:
        ks = sorted(e["pass_at_k"], key=int)
        cells = [
            f"Pass@{k} {100 * e['pass_at_k'][k][0]:.1f} %"
            for k in dict.fromkeys([*ks[:1], *ks[-1:]])
        ]
        lines.append(
            f"  {e['name']}: {', '.join(cells)} of {e['questions']} questions, n = {e['n']}"
        )
        if "distinct" in e:
            pairs = f", PCMD {100 * e['pcmd'][0]:.1f} %" if e["pcmd"] else ""
            lines.append(f"    {e['distinct'][0]:.2f} distinct right solutions a question{pairs}")
    for q in found["questions"] or []:
        gained, lost = len(q["gained"]), len(q["lost"])
        lines.append(f"  {q['before']} to {q['after']}: {gained} questions gained, {lost} lost")
    for g in found["greedy"] or []:
        lines.append(f"  {g['name']}: log p of greedy answers {g['greedy_logprob']:.2f}")
    for of in ("rl", "irl"):
        moves = [p["to_greedy"] for p in found["phases"] or [] if p["of"] == of]
        if moves:
            mean = f"{100 * sum(moves) / len(moves):+.2f} points of probability to the greedy token"
            lines.append(f"  {of.upper()} phases: {mean} a phase, mean of {len(moves)}")
    cost = found["cost"]
    for row in cost["stages"] if cost else []:
        lines.append(f"  {row['stage']}: {row['seconds']:.1f} s ({100 * row['share']:.0f} %)")
    lines += [f"  warning, step {w['step']}: {w['text']}" for w in found["warnings"]]
    return lines + [f"  missing: {text}" for text in found["missing"]]
