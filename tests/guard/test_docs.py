"""Pages name only what is there: files, recipe keys, commands and their options, headings; and
their tables are what the results files say."""

import ast
import json
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import typer
import yaml
from pydantic import BaseModel

from sps.cli import app
from sps.config.recipe import Recipe

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
]
TOPS = ("bench", "docs", "examples", "launch", "recipes", "src", "tests")
FOLDERS = {p.name for p in (ROOT / "src" / "sps").rglob("*") if p.is_dir()} | set(TOPS)
# Folders that runs and commands make, and prefixes of metrics.
OTHERS = {"rollouts", "runs", "report-plots", "irl", "memory"}
COMMANDS = {
    name: {flag for p in command.params for flag in p.opts} | {"--help"}
    for name, command in typer.main.get_command(app).commands.items()
}
OVERRIDES = {"--set", "--sweep", "--over"}


def branches(kind):
    """The classes of config that an annotation names."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [found for part in typing.get_args(kind) for found in branches(part)]


def keys_of(kind, place=()):
    for key, field in kind.model_fields.items():
        yield (*place, key)
        for inner in branches(field.annotation):
            yield from keys_of(inner, (*place, key))


KEYS = {".".join(place) for place in keys_of(Recipe)}
# Mappings whose keys are the user's own.
OPEN = ("task.settings.",)


def is_key(name):
    return name in KEYS or name.startswith(OPEN)


def code_in(text):
    """Blocks with their language, and what stands between single backticks outside of them."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return blocks, re.findall(r"`([^`\n]+)`", rest)


def shell_lines(text):
    """Commands: lines of blocks that are no other language, and those between backticks."""
    blocks, spans = code_in(text)
    for language, block in blocks:
        if language in ("", "sh", "bash"):
            yield from re.sub(r"\\\n", " ", block).splitlines()
    yield from spans


def expanded(pattern):
    """`a_{b,c}` is two names."""
    inner = re.search(r"\{([^}]*,[^}]*)\}", pattern)
    if not inner:
        return [pattern]
    rest = pattern[: inner.start()], pattern[inner.end() :]
    return [p for one in inner[1].split(",") for p in expanded(rest[0] + one + rest[1])]


def missing_paths(text):
    for span in re.findall(r"[\w./{},*~-]+", " ".join(shell_lines(text))):
        name = span.rstrip(".,")
        top = name.partition("/")[0]
        if "/" not in name or re.search(r"[A-Z]{3}", name.replace("README", "")):
            continue  # NAME and the like stand for something
        if top in TOPS:
            places = [ROOT]
        elif name.endswith(".py"):
            places = [ROOT / "src" / "sps", ROOT]
        else:
            continue
        for one in expanded(name):
            if not any(list(place.glob(one.strip("/"))) for place in places):
                yield name
    for name in re.findall(r"`([\w-]+)/`", text):
        if name not in FOLDERS | OTHERS:
            yield f"{name}/"


def named_in(path):
    """What a Python file defines or assigns, at any depth."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name):
            yield node.id


def missing_names(text):
    """`phases/rl.py: rl_step` has a function of that name."""
    for path, name in re.findall(r"`([\w/]+\.py): (\w+)[`,]", text):
        file = ROOT / "src" / "sps" / path
        if not file.exists() or name not in set(named_in(file)):
            yield f"{path}: {name}"


def wrong_commands(text):
    for line in shell_lines(text):
        for words in re.findall(r"(?:^|\s)sps ([a-z]+(?: [^|#&;\n]*)?)", line.split("#")[0]):
            name, *rest = (word.strip("'\"") for word in words.split())
            if name not in COMMANDS:
                if line.lstrip().startswith("sps "):
                    yield f"sps {name}"
                continue
            for at, word in enumerate(rest):
                if word.startswith("--") and word.partition("=")[0] not in COMMANDS[name]:
                    yield f"sps {name} {word}"
                key = rest[at + 1].partition("=")[0] if word in OVERRIDES and rest[at + 1 :] else ""
                if "." in key and key != "a.b" and not is_key(key):
                    yield f"sps {name} {word} {key}"
        for module in re.findall(r"python -m (bench(?:\.\w+)?(?: \w+)?)", line):
            module = re.sub(r"^bench ", "bench.", module).split()[0]
            if (
                not (ROOT / module.replace(".", "/")).with_suffix(".py").exists()
                and module != "bench"
            ):
                yield f"python -m {module}"
        for target in re.findall(r"^make ([\w-]+)", line):
            if f"\n{target}:" not in (ROOT / "Makefile").read_text():
                yield f"make {target}"


def yaml_keys(tree, place=""):
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield f"{place}{key}"
        for part in value if isinstance(value, list) else [value]:
            yield from yaml_keys(part, f"{place}{key}.")


def wrong_keys(text):
    blocks, spans = code_in(text)
    recipes = [block for language, block in blocks if language == "yaml"]
    for span in spans:
        plain = re.fullmatch(r"(\w+)(\.\w+)+(?=(: .*)?$)(: .*)?", span)
        name = span.partition(":")[0]
        if plain and plain[1] in Recipe.model_fields and not name.endswith((".py", ".yaml")):
            if not is_key(name) and not re.search(r"\.[A-Z]+$", name):  # rollout.NAME
                yield name
        elif re.match(r"\w+: \{", span) and name in Recipe.model_fields:
            recipes.append(span)
    for recipe in recipes:
        tree = yaml.safe_load(recipe)
        for key in yaml_keys(tree) if set(tree) <= {*Recipe.model_fields, "extends"} else ():
            if key != "extends" and not is_key(key):
                yield key


def anchors(path):
    """Of a page's headings, as GitHub makes them."""
    plain = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", plain, re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def broken_links(text, page):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http", "mailto")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in set(anchors(file))):
            yield target


def test_comments_name_pages_that_are_there():
    files = (p for top in ("src", "bench", "recipes", "tests") for p in (ROOT / top).rglob("*"))
    texts = (p.read_text() for p in files if p.suffix in (".py", ".yaml"))
    found = {name for text in texts for name in re.findall(r"docs/[a-z_]+\.(?:md|json)", text)}
    assert "docs/results_speed.md" in found
    assert {name for name in found if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_page_names_only_what_is_there(page):
    text = page.read_text()
    assert list(broken_links(text, page)) == []
    assert list(missing_paths(text)) == []
    assert list(missing_names(text)) == []
    assert list(wrong_commands(text)) == []
    assert list(wrong_keys(text)) == []


def test_every_kind_of_stale_name_is_found():
    text = """
[a](nowhere.md) [b](results.md#no-such-heading) `recipes/demo/{countdown_grpo,gone}.yaml`
`phases/gone.py` `gone/rl.py` `gone/` `phases/rl.py: gone` `phases/rl.py` `phases/`
`irl.gone` `rollout: {gone: 1}` `irl.reach`
`sps gone`, `sps train RECIPE --gone`, `python -m bench.gone`, `python -m bench verify`, `make gone`
```
sps compare recipes/demo/countdown_grpo.yaml \\
  --sweep irl.gone_too=1 --seeds 3
```
```yaml
task: {type: python, lost: 1}
```
"""
    page = ROOT / "docs" / "results.md"
    assert list(broken_links(text, page)) == ["nowhere.md", "results.md#no-such-heading"]
    paths = ["recipes/demo/{countdown_grpo,gone}.yaml", "phases/gone.py", "gone/rl.py", "gone/"]
    assert list(missing_paths(text)) == paths
    assert list(missing_names(text)) == ["phases/rl.py: gone"]
    found = ["sps compare --sweep irl.gone_too", "sps gone", "sps train --gone"]
    assert list(wrong_commands(text)) == [*found, "python -m bench.gone", "make gone"]
    assert list(wrong_keys(text)) == ["irl.gone", "task.lost", "rollout.gone"]


def test_tables_are_what_the_results_say():
    asked = [sys.executable, "-m", "bench.tables", "--check"]
    done = subprocess.run(asked, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"stale: {done.stderr}; run: python -m bench.tables"


def test_numbers_to_watch_are_recorded():
    """Each is written down somewhere under the name that settings.md gives it."""
    table = (ROOT / "docs" / "settings.md").read_text().partition("## What to watch")[2]
    cells = re.findall(r"^\| ([^|]+) \|", table.partition("\n## ")[0], re.MULTILINE)
    names = [name for cell in cells for name in re.findall(r"`([\w/]+)`", cell)]
    assert len(names) > 12
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "sps").rglob("*.py"))
    lost = [name for name in names if not re.search(rf'["/]{name.split("/")[-1]}"', source)]
    assert lost == []


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    listed = re.findall(r"^\| \[(\w+\.md)\]\(\1\)", index, re.MULTILINE)
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert sorted(listed) == sorted(pages)
    readme = (ROOT / "README.md").read_text()
    assert [name for name in listed if f"](docs/{name})" not in readme] == []


@pytest.mark.parametrize(
    ("right", "shown", "gap"),
    [
        # Up to Pass@1 37.5, at each of which `better` has 75 and `worse` 50.
        ([2, 1, 0, 0], ["37.5", "50.0"], "+25.0 ["),
        # `worse` has no Pass@1 above the base's.
        ([2, 0, 0, 0], ["25.0", "25.0"], "no shared range"),
    ],
)
def test_a_table_of_a_bed_by_hand(right, shown, gap, tmp_path):
    # 4 problems x 2 samples. Base: 2 of 8 right, 2 of 4 problems solved. `better`: 4 of 8, 3 of 4.
    counts = {"worse": right, "better": [2, 1, 1, 0], "late": [2, 2, 2, 2]}
    lines = [
        {"bed": "embedded", "method": name, "seed": seed, "ended": True, "seconds": 10 + seed}
        | {"n": 2, "right": {"0": [1, 1, 0, 0], "10": right}}
        for name, right in counts.items()
        for seed in range(1 if name == "late" else 2)
    ]
    file = tmp_path / "bed.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = [sys.executable, "-m", "bench.beds", "embedded", "--markdown", "worse"]
    done = subprocess.run([*asked, "--results", file], cwd=ROOT, capture_output=True, text=True)
    said = done.stdout.splitlines()
    assert said[0] == (
        "2 seeds, 4 problems x 2 samples, after 10 steps; base: 25.0 / 50.0 (Pass@1 / Pass@2). "
        "Left out, with fewer seeds: `late` (1)."
    )
    better, worse = (line.split(" | ") for line in said[-2:])
    assert [cell.split()[0] for cell in better[1:3]] == ["50.0", "75.0"]
    assert [cell.split()[0] for cell in worse[1:3]] == shown
    assert better[4].startswith(gap)
    assert better[5].startswith(gap)  # as at three quarters of it
    assert (worse[4:6], better[6], worse[0]) == (["", ""], "10 |", "| `worse`")


def test_a_share_is_chosen_on_one_half_and_scored_on_the_other_by_hand(tmp_path):
    from bench.bed_tables import kept

    # 4 problems x 2 samples, after 10 steps; a mix with 0.1 of the base is at step 9.
    trained, tenth, base = [2, 0, 0, 0], [2, 1, 0, 0], [1, 1, 0, 0]
    right = {"0": base, "1": base, "3": base, "5": base, "7": base, "9": tenth, "10": trained}
    line = {"bed": "x", "method": "a_mixed", "seed": 0, "ended": True, "n": 2, "right": right}
    (tmp_path / "bed_x.jsonl").write_text(json.dumps(line) + "\n")
    # The first and third problem keep what the base solves of them without a mix, of the others
    # nothing is right then; the second and fourth ask for a tenth, and half of the others is right.
    assert kept(tmp_path, {"x": "X"}, {"a_mixed": "A", "b_mixed": "B"})[2:] == [
        "| base | 25.0 / 50.0 |",
        "| A | 25.0 / 25.0, share 0.05 (1) |",
        "| B |  |",
    ]


def test_what_is_established_is_in_a_table_of_the_other_pages():
    """Intervals hold for all rows of a table at once: they change when rows are added."""
    head = (ROOT / "docs" / "results.md").read_text().partition("**Not established:**")[0]
    rest = "\n".join(page.read_text() for page in (ROOT / "docs").glob("results_*.md"))
    triple = re.compile(r"[+-][\d.]+ \[[+-][\d.]+, [+-][\d.]+\]")
    claims = triple.findall(head)
    assert len(claims) >= 2
    found = set(triple.findall(rest))
    assert {claim for claim in claims if not {claim, negated(claim)} & found} == set()


def negated(triple):
    mean, low, high = re.findall(r"[+-][\d.]+", triple.translate(str.maketrans("+-", "-+")))
    return f"{mean} [{high}, {low}]"


def test_tuned_methods_are_the_best_trials_by_the_names_that_methods_have():
    from bench.bed_tables import winners

    found = winners(ROOT / "bench" / "results" / "tune_embedded.jsonl", "embedded")
    # its own setting, a setting that has a name, another setting
    assert {"gspo", "grpo_half", "memory_sps:irl.memory.weight=3"} <= {*found}
    assert len(found) == 23
