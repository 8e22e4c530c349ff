"""`write_report`: one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from plotly.offline import get_plotlyjs

import sps
from sps.diagnose.read import RunFolder
from sps.errors import UserError
from sps.reporting import markup
from sps.reporting.content import diagnose_study, sections
from sps.reporting.explorer import explorer_data
from sps.reporting.study import Study, load_study
from sps.reporting.style import DARK, LIGHT, spelled
from sps.reporting.words import summary


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Report on run folders and comparison folders; whole or damaged, there is always a page."""
    out = Path(out)
    if out.is_dir():
        raise UserError(f"{out}: it is a folder; name a file, such as {out / 'report.html'}")
    html = render(load_study(folders))
    draft = out.with_name(f"{out.name}.{os.getpid()}.draft")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(html, encoding="utf-8")
        draft.replace(out)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise UserError(f"{out}: cannot write the report ({error.strerror})") from None
    return out


def render(study: Study, stamp: str | None = None) -> str:
    """The page as text. With a stamp it is live: it comes again when there is news."""
    parts = sections(study, diagnose_study(study))
    rollouts = explorer_data(study)
    scripts = {name: _asset(f"{name}.js") for name in ("report", "explorer", "start")}
    scripts["plotly"] = get_plotlyjs().replace("</script", "<\\/script")
    fields = {
        "policy": _policy(scripts.values(), live=stamp is not None),
        "title": escape(study.title),
        "css": _asset("report.css"),
        "live": f' data-live="{escape(stamp)}"' if stamp else "",
        "navigation": markup.navigation(parts, rollouts is not None),
        "summary": markup.summary(*summary(study)),
        "facts": markup.facts(_facts(study)),
        "sections": "".join(markup.section(p) for p in parts),
        "explorer": _explorer(rollouts),
        "settings": _settings(study),
        "version": escape(sps.__version__),
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "figures": markup.safe_json(markup.figure_specs(parts)),
        "palettes": markup.safe_json({"light": LIGHT, "dark": DARK}),
        "rollouts": markup.safe_json(rollouts),
        "alerts": markup.alerts(
            _warnings(study), study.all_missing()
        ),  # last: drawing may find more
    }
    fields |= {f"{name}_js": text for name, text in scripts.items()}
    return fill(_asset("page.html"), fields)


def fill(template: str, fields: dict[str, str]) -> str:
    """Put each field in its {{place}}, in one pass: a field is never read as a template."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], template)


def _policy(scripts: Any, live: bool) -> str:
    """Only these very scripts may run, nothing may be loaded: the second lock on hostile text."""
    digests = [hashlib.sha256(s.encode("utf-8")).digest() for s in scripts]
    allowed = " ".join(f"'sha256-{base64.b64encode(d).decode()}'" for d in digests)
    connect = "; connect-src 'self'" if live else ""
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: "
        f"blob:; base-uri 'none'; form-action 'none'{connect}"
    )


def _asset(name: str) -> str:
    return (files("sps.reporting") / "assets" / name).read_text(encoding="utf-8")


def _explorer(data: dict[str, Any] | None) -> str:
    if data is None:
        return ""
    lead = (
        f"{data['shown']:,} of the {data['total']:,} rollouts in the store, drawn as whole groups. "
        "The colour of a token is its probability when sampled: the stronger, the less likely."
    )
    return fill(_asset("explorer.html"), {"lead": escape(lead)})


def _facts(study: Study) -> list[tuple[str, str]]:
    trained = study.trained()
    run = next((r for s in (trained or study.subjects) for r in s.runs), None)
    out = []
    if study.comparison:
        out.append(("methods", _number_of_methods(study)))
        out.append(("seeds", str(max((len(s.runs) for s in study.subjects), default=0))))
    if run is not None:
        how = _learns_by(run)
        steps = max((r["step"] for r in run.of_kind("rl")), default=0)
        wanted = [
            ("algorithm", None if study.comparison else how),
            ("task", _task(run)),
            ("RL steps", f"{steps} of {run.setting('rl', 'steps')}" if steps else None),
            ("prompts a step", run.setting("rollout", "prompts")),
            ("rollouts a prompt", run.setting("rollout", "n")),
            ("model", (run.setting("model", "path") or "embedded") if run.recipe else None),
        ]
        out += [(name, str(value)) for name, value in wanted if value is not None]
    scored = [s for s in study.scored() if s.counts]
    if scored:
        out.append(("test questions", str(len(scored[0].counts[0][0]))))
        out.append(("samples a question", str(scored[0].counts[0][1])))
    if study.wall_seconds:
        out.append(("wall time", f"{study.wall_seconds / 60:.1f} min"))
    return out


def _learns_by(run: RunFolder) -> str | None:
    """The RL algorithm, and what goes with it."""
    how = run.setting("rl", "algorithm", "type")
    if not how:
        return None
    parts = {"memory": ("irl", "memory", "weight"), "SPS": ("irl", "steps")}
    more = [name for name, key in parts.items() if run.setting(*key)]
    return spelled(str(how)) + (f" with {' and '.join(more)}" if more else "")


def _number_of_methods(study: Study) -> str:
    """As the summary counts them: the base is none."""
    own = sum(not s.is_base() for s in study.subjects)
    return f"{own} and the base" if own < len(study.subjects) else str(own)


def _task(run: RunFolder) -> Any:
    """Its name; of the user's own, that of the file."""
    path, module = (run.setting("task", key) for key in ("path", "module"))
    return Path(path).name if isinstance(path, str) else module or run.setting("task", "type")


def _warnings(study: Study) -> list[tuple[str, str]]:
    out = []
    for s in study.subjects:
        for run in s.runs:
            for r in run.of_kind("warning"):
                place = f"{s.name} {run.folder.name}, " if study.comparison else ""
                out.append((f"{place}step {r['step']}", str(r.get("text", ""))))
    return out


def _settings(study: Study) -> str:
    out = []
    for s in study.subjects:
        for run in s.runs[:1]:
            text = yaml.safe_dump(run.recipe, sort_keys=False, allow_unicode=True)
            summary = f"<summary>{escape(s.name)}: {escape(str(run.folder.name))}</summary>"
            out.append(f'<details class="recipe">{summary}<pre>{escape(text)}</pre></details>')
    return "".join(out) or "<p>No recipe could be read.</p>"
