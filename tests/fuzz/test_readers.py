"""Whatever is sent: a reader returns, or says what is wrong. Never anything else, never for long.

Few examples here, the same ones every time. `SPS_FUZZ=20000 pytest tests/fuzz` draws so many new
ones of each.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_folders import make_run

from sps.commands.report import run_report
from sps.config.load import load_recipe, parse_recipe
from sps.config.recipe import Recipe
from sps.data.duplicates import drop_duplicates
from sps.data.load import READERS, load_problems
from sps.diagnose.run import diagnose
from sps.errors import UserError
from sps.evaluation.scores import load_scores
from sps.run.track import read_records
from sps.store.evals import EvalStore
from sps.store.rollouts import SCHEMA, RolloutStore
from sps.tasks import answers, choice, countdown
from sps.tasks.math import notation, numbers, units
from sps.types import KINDS, Problem, Rollout, Verdict

LONG = "SPS_FUZZ" in os.environ
SECONDS = 20.0  # an example may take, on a machine that does other things, too
RECIPES = [*sorted((Path(__file__).parents[2] / "recipes").rglob("*.yaml"))]


def examples(share: float = 1.0):
    """How many: `share` of the usual for readers that take long."""
    count = int(int(os.environ.get("SPS_FUZZ", "25")) * share)
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(
        max_examples=max(count, 5),
        derandomize=not LONG,
        deadline=None,
        database=None,
        suppress_health_check=[*checks, HealthCheck.function_scoped_fixture],
    )


@contextlib.contextmanager
def in_time():
    """Bad input may be said to be bad; nothing else is raised, and nothing takes long."""
    began = time.process_time()
    with contextlib.suppress(UserError):
        yield
    assert time.process_time() - began < SECONDS


@pytest.fixture(scope="module")
def place():
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


words = st.sampled_from(
    ["name", "rl", "irl", "task", "model", "type", "math", "data", "lr", "algorithm", "grpo",
     "lora", "extends", "rollout", "n", "keep", "selector", "evaluation", "columns", "settings",
     "id", "problem", "answer", "kind", "step", "per_question", "prompt", "role", "content", "user"]
)  # fmt: skip
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-9, 99),
    st.floats(),
    words,
    st.text(max_size=30),
    st.sampled_from(["1e999", "\ud800", "\0", "../x", "~", "<<", "nan", "####", "2001-99-99"]),
)
trees = st.recursive(
    scalars,
    lambda below: st.one_of(
        st.lists(below, max_size=4), st.dictionaries(words | st.text(max_size=9), below, max_size=5)
    ),
    max_leaves=20,
)


@st.composite
def damaged(draw, whole: bytes) -> bytes:
    """A file of which pieces were cut out, doubled, overwritten or put in."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(len(content) - 1, 0)))
        size = draw(st.sampled_from([1, 1, 1, 2, 4, 8, 64, 10_000]))
        how = draw(st.integers(0, 3))
        if how == 0:
            del content[at : at + size]
        elif how == 1:
            content[at:at] = content[at : at + size]
        elif how == 2:
            content[at : at + min(size, 8)] = draw(st.binary(min_size=1, max_size=8))
        else:
            content[at:at] = draw(st.binary(max_size=8)) * draw(st.sampled_from([1, 1, 1, 3000]))
    return bytes(content)


@examples()
@given(tree=trees)
def test_any_tree_is_a_recipe_or_an_error(tree):
    with in_time():
        assert isinstance(
            parse_recipe(tree if isinstance(tree, dict) else {"rl": tree}, "r"), Recipe
        )


@examples()
@given(data=st.data())
def test_any_text_is_a_recipe_or_an_error(place, data):
    texts = (
        st.text(max_size=300) | trees.map(lambda tree: yaml.safe_dump(tree)) | trees.map(json.dumps)
    )
    known = st.sampled_from(RECIPES).flatmap(lambda path: damaged(path.read_bytes()))
    content = data.draw(known | texts.map(lambda text: text.encode("utf-8", "surrogatepass")))
    (place / "r.yaml").write_bytes(content)
    with in_time():
        assert isinstance(load_recipe(place / "r.yaml"), Recipe)


@examples()
@given(key=words | st.text(max_size=20), value=st.text(max_size=40) | trees.map(json.dumps))
def test_any_override_is_taken_or_an_error(key, value):
    with in_time():
        load_recipe(RECIPES[0], [f"{key}={value}"])


def rows_as(suffix: str) -> bytes:
    rows = [{"id": f"r{i}", "problem": f"What is {i}?", "answer": str(i)} for i in range(5)]
    out = io.StringIO()
    if suffix == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    if suffix == ".csv":
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader(), writer.writerows(rows)
        return out.getvalue().encode()
    if suffix == ".parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows), sink)
        return sink.getvalue().to_pybytes()
    return json.dumps(rows).encode()


@pytest.mark.parametrize("suffix", READERS)
@examples()
@given(data=st.data())
def test_any_file_is_problems_or_an_error(place, suffix, data):
    path = place / f"data{suffix}"
    path.write_bytes(data.draw(damaged(rows_as(suffix)) | st.binary(max_size=200)))
    with in_time():
        problems = load_problems(str(path))
        kept, dropped = drop_duplicates(problems)
        assert len(kept) + len(dropped) == len(problems)
        json.dumps([[p.id, p.question, p.answer] for p in problems], ensure_ascii=False).encode()


@examples()
@given(rows=st.lists(st.dictionaries(words, trees, max_size=5), max_size=4))
def test_any_rows_are_problems_or_an_error(place, rows):
    (place / "rows.json").write_text(json.dumps(rows))
    with in_time():
        for problem in load_problems(str(place / "rows.json")):
            assert problem.question.strip()
            assert problem.answer.strip()


latex = st.lists(
    st.sampled_from(
        [r"\boxed", r"\boxed{", "{", "}", r"\frac", "{1}{2}", r"\text{", "cm", "^", "2", "1,000",
         "%", r"\{", "\\", "$", " ", "and", ",", "=", "12", "7.5", "-", "\n", "A", "answer is",
         "(", ")", "->", ".", "+", "*", "/", "10", "9" * 50, r"\sqrt{2}", r"\,", "\u2212", "\0",
         "\ud800"]
    )
    | st.text(max_size=8),
    max_size=60,
).map("".join)  # fmt: skip


@examples(2)
@given(text=latex, times=st.sampled_from([1, 1, 1, 1, 300]))
def test_any_text_has_an_answer_or_none(text, times):
    text *= times
    with in_time():
        for read in (answers.boxes, answers.last_boxes):
            assert isinstance(read(text), list)
        if answers.boxes(text):
            assert isinstance(answers.stated_after_boxes(text), str)
        for tidy in (answers.stated, notation.clean, notation.parsable, notation.squeeze):
            assert isinstance(tidy(text), str)
        assert isinstance(answers.prose(text).text, str)
        assert answers.is_bare(text) in (True, False)
        answers.after_thinking(text), notation.numeral(text), notation.words(text)
        notation.without_percent(text), units.split(text), units.with_letter(text)
        assert answers.nesting(text) >= 0
        numbers.exact(text)


@examples(2)
@given(
    text=latex, times=st.sampled_from([1, 1, 1, 300]), finished=st.booleans(), wrap=st.booleans()
)
def test_any_text_has_a_verdict(text, times, finished, wrap):
    text = "(" * (times if wrap else 0) + text * times
    sums = Problem("c", "3 4 5 6 -> 24 :", "24", {"numbers": [3, 4, 5, 6], "target": 24})
    options = Problem("o", "Which?\n\nA) one\nB) two\nC) 3", "B")
    with in_time():
        for judge, problem in ((countdown.judge, sums), (choice.judge, options)):
            verdict = judge(problem, text, finished)
            assert verdict.kind in KINDS
            assert verdict.reward == float(verdict.kind == "correct")


def write_step(folder: Path) -> bytes:
    ids, logprobs = np.arange(3, dtype=np.int32), np.full(3, -0.5, dtype=np.float32)
    verdict = Verdict("wrong", 0.0, "wrong_target", "8")
    rows = [Rollout("p", ids, ids, logprobs, 0.0, verdict, 1, 0, 0, s) for s in range(4)]
    RolloutStore(folder).append(1, rows)
    return (folder / "step-000001.parquet").read_bytes()


@examples()
@given(data=st.data())
def test_any_file_of_the_store_is_rollouts_or_an_error(place, data):
    whole = write_step(place / "whole")
    folder = place / "store"
    shutil.rmtree(folder, ignore_errors=True)
    store = RolloutStore(folder)
    (folder / "step-000001.parquet").write_bytes(data.draw(damaged(whole)))
    name = data.draw(st.from_regex(r"(step|phase)?-?[0-9]{0,8}-?[0-9]{0,8}", fullmatch=True))
    (folder / f"{name}.parquet").write_bytes(whole)
    with in_time():
        assert store.read(columns=["step", "reward"]).column_names == ["step", "reward"]
    with in_time():
        assert store.read(1, 2).schema.equals(SCHEMA)
    with in_time():
        store.close_phase(1, 2, {(1, 0, 0)})
    with in_time():
        RolloutStore(folder).forget_after(data.draw(st.integers(0, 9)))


@examples()
@given(data=st.data())
def test_any_samples_are_read_or_an_error(place, data):
    folder = place / "samples"
    shutil.rmtree(folder, ignore_errors=True)
    store = EvalStore(folder)
    store.append({"problem_id": "a", "sample": 0, "text": "x", "verdict": "wrong"})
    store.flush()
    path = folder / "part-00000.parquet"
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    with in_time():
        assert all(isinstance(row, dict) for row in EvalStore(folder).read())


@examples()
@given(lines=st.lists(trees.map(json.dumps) | st.text(max_size=50), max_size=8))
def test_any_lines_are_records_or_left_out(place, lines):
    (place / "metrics.jsonl").write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    with in_time():
        for record in read_records(place / "metrics.jsonl"):
            assert isinstance(record["kind"], str)
            assert isinstance(record["step"], int)


@examples()
@given(tree=trees, data=st.data())
def test_any_scores_are_read_or_an_error(place, tree, data):
    whole = {"n": 2, "per_question": {"a": 1}, "kinds": {}, "details": {}, "mean_logprob": -1.0,
             "mean_length": 2.0, "greedy_logprob": None, "solutions": {"a": [1]}}  # fmt: skip
    whole[data.draw(st.sampled_from(sorted(whole)))] = tree
    content = json.dumps(data.draw(st.sampled_from([whole, tree]))).encode()
    (place / "test.json").write_bytes(data.draw(damaged(content) | st.just(content)))
    with in_time():
        load_scores(place / "test.json").summary()


@pytest.fixture(scope="module")
def run_folder(place):
    return make_run(place / "run")


@examples(0.25)
@given(data=st.data())
def test_a_run_in_which_anything_was_changed_is_diagnosed(place, run_folder, data):
    folder = place / "changed"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run_folder, folder)
    tables = [*folder.glob("rollouts/*.parquet"), *folder.glob("evals/test/*.parquet")]
    texts = [folder / name for name in ("metrics.jsonl", "evals/test.json", "recipe.yaml")]
    path = data.draw(st.sampled_from([*texts, *sorted(tables)]))
    whole = path.read_bytes()
    if path.suffix == ".jsonl":
        records = [json.loads(line) for line in whole.splitlines()]
        for _ in range(data.draw(st.integers(1, 4))):
            record = data.draw(st.sampled_from(records))
            record[data.draw(st.sampled_from(sorted(record)))] = data.draw(trees)
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif path.suffix == ".json":
        scores = json.loads(whole)
        scores[data.draw(st.sampled_from(sorted(scores)))] = data.draw(trees)
        path.write_text(json.dumps(scores))
    else:
        path.write_bytes(data.draw(damaged(whole)))
    with in_time():
        json.dumps(diagnose(folder))


COUNTS = {"0": [1, 1], "10": [2, 1], "20": [4, 0]}
SCORES = {"pass_at_k": {"1": [0.5, 0.1, 0.9], "4": [1, 0.5, 1]}, "n": 4, "correct": ["2 2"]}
PATH = {"steps": [10, 20], "correct": [["2 1", "2 1"], ["4 0", "4 2"]]}
RESULTS = {
    ".jsonl": {"method": "grpo", "seed": 0, "n": 4, "right": COUNTS},
    ".json": {
        "methods": {"base": SCORES, "grpo": SCORES},
        "paired": [{"a": "base", "b": "grpo", "k": 1, "delta": [0, 0, 0], "verdict": "tied"}],
        "frontier": {"k": 4, "base": {"correct": "1 1"}, "methods": {"grpo": PATH}},
        "validation": {"grpo": {"0": {"1": [0.1], "4": [0.2]}, "5": {"1": [0.3], "4": [0.1]}}},
    },
}


@st.composite
def changed(draw, tree):
    """A tree with one of its branches replaced, dropped, or put in another's place."""
    if not isinstance(tree, dict | list) or not tree or draw(st.integers(0, 4)) == 0:
        return draw(trees | st.sampled_from([10**30, -1, 1e300, [], {}, "1 1", "9 9 9"]))
    if isinstance(tree, list):
        at = draw(st.integers(0, len(tree) - 1))
        return [*tree[:at], draw(changed(tree[at])), *tree[at + 1 :]]
    key = draw(st.sampled_from(sorted(tree)))
    rest = {k: v for k, v in tree.items() if k != key}
    return rest if draw(st.integers(0, 4)) == 0 else rest | {key: draw(changed(tree[key]))}


@pytest.mark.parametrize("suffix", RESULTS)
@given(data=st.data())
@examples(0.4)
def test_any_file_of_results_is_drawn_or_an_error(place, suffix, data):
    path = place / f"results{suffix}"
    text = json.dumps(data.draw(changed(RESULTS[suffix])))
    text = data.draw(damaged(text.encode())) if data.draw(st.booleans()) else text.encode()
    path.write_bytes(text)
    with in_time():
        run_report([path], svg=place / "drawn")
