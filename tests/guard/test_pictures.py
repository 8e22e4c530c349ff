"""Pictures of the documentation are there, and are what their commands draw today."""

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from made_folders import make_run

from sps.commands.report import run_report

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# `sps report PLACE... --svg FILE`, where the pages say how a picture was made; PLACE may be a file
# of stored lines, which the command before it prints.
COMMANDS = sorted(
    {
        (lines, tuple(places.split()), out)
        for page in PAGES
        for lines, places, out in re.findall(
            r"(?:`python -m (bench\.beds [^`]+?) > paths\.jsonl` and )?"
            r"`sps report ([^`]+?) --svg (docs/[^`\s]+)`",
            page.read_text(),
        )
    }
)


def files(place):
    return [place] if place.suffix else sorted(place.iterdir())


@pytest.mark.parametrize(("lines", "places", "out"), COMMANDS, ids=[out for _, _, out in COMMANDS])
def test_picture_is_what_its_command_draws(lines, places, out, tmp_path):
    made = tmp_path / Path(out).name
    if lines:
        asked = [sys.executable, "-m", *lines.split()]
        told = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        (tmp_path / "paths.jsonl").write_text(told)
    run_report([(tmp_path if lines else ROOT) / place for place in places], svg=made)
    kept, drawn = files(ROOT / out), files(made)
    assert [path.name for path in kept] == [path.name for path in drawn]
    stale = [a.name for a, b in zip(kept, drawn, strict=True) if a.read_bytes() != b.read_bytes()]
    assert stale == [], f"run: sps report {' '.join(places)} --svg {out}"


def test_every_drawing_has_its_command():
    made = {path for _, _, out in COMMANDS for path in files(ROOT / out)}
    assert made == set((ROOT / "docs" / "figures").rglob("*.svg"))
    assert len(made) > 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pictures_of_a_page_are_there(page):
    for text, name in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text()):
        assert (page.parent / name).is_file(), name
        assert text, f"{name}: say what it shows"


def test_what_is_kept_of_a_run_draws_as_the_run_does(tmp_path):
    run = make_run(tmp_path / "run")
    asked = [sys.executable, "-m", "bench.slim", run, tmp_path / "kept"]
    subprocess.run(asked, cwd=ROOT, check=True)
    for place in ("run", "kept"):
        run_report([tmp_path / place], svg=tmp_path / f"{place}-plots")
    # Numbers have four digits, so a line may lie a tenth of a pixel off.
    whole, kept = ({p.name: p.read_text().count("<") for p in files(tmp_path / f"{place}-plots")}
                   for place in ("run", "kept"))  # fmt: skip
    assert {*whole} - {*kept} == {"likelihood-0.svg"}  # of rollouts
    assert kept.items() <= whole.items()


def test_the_readme_opens_with_the_frontier_of_a_pretrained_model():
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert pictures[:2] == ["docs/figures/smollm2_memory.svg", "docs/figures/report.png"]


def test_the_screenshot_is_small():
    content = (ROOT / "docs" / "figures" / "report.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert struct.unpack(">II", content[16:24])[0] > 800  # pixels across
    assert len(content) < 300_000
