"""`sps data`: what it says of a recipe's data."""

import json
import re

import pytest
from test_cli import sps

from sps.policy.embedded import make_tokenizer

WORDS = ["<system>", "<user>", "<assistant>", "Be", "brief", "what", "is", "it", "now", "yes", "."]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def recipe(tmp_path):
    tokenizer = make_tokenizer(WORDS)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path / "model")
    asked = [{"role": "user", "content": "what is it"}, {"role": "assistant", "content": "yes"}]
    rows = [
        {"id": f"r{i}", "prompt": [*asked, {"role": "user", "content": f"now {i}"}], "answer": [i]}
        for i in range(6)
    ]
    rows.append({**rows[0], "id": "again"})
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = tmp_path / "mine.py"
    task.write_text("def judge(problem, text):\n    return text == str(problem.answer)\n")
    tree = {
        "model": {"path": str(tmp_path / "model")},
        "task": {"type": "python", "path": str(task), "data": str(data), "system": "Be brief"},
    }
    tree["task"] |= {"validation": 1, "test": 1}
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(tree))
    return path


def test_prompts_are_shown_as_the_chat_template_renders_them_with_their_ids(recipe, capsys):
    assert sps("data", str(recipe), "--show", "2") == 0
    said = capsys.readouterr().out
    # <system> Be brief <user> what is it <assistant> yes <user> now [a number, unknown] <assistant>
    want = [1, 4, 5, 2, 6, 7, 8, 3, 10, 2, 9, 0, 3]
    assert said.count(f"\nids: {' '.join(map(str, want))}\n") == 2
    shown = r"--- r(\d), answer \[\1\]\n<system> Be brief <user> what is it <assistant> yes <user>"
    assert len(re.findall(shown, said)) == 2
    assert re.search(r"^train +4 +13 +13 +13$", said, re.MULTILINE)
    lost = r"warning: 6 of 6 prompts hold words that the policy's tokenizer does not know, such as "
    assert re.search(lost + r".*'\d'; it cannot", said)


@pytest.mark.parametrize("path", ["nowhere", "nowhere/some.gguf"])
def test_a_model_that_is_not_here_is_refused_before_the_data_are_read(recipe, capsys, path):
    assert (
        sps("data", str(recipe), "--set", f"model.path={path}", "--set", "task.data=none.csv") == 2
    )
    assert "model.path: there is no f" in capsys.readouterr().err


def test_repeats_answers_of_any_type_and_what_was_not_looked_for_are_said(recipe, capsys):
    assert sps("data", str(recipe)) == 0
    said = capsys.readouterr().out
    assert "left out again" in said
    assert "answers: 6 different ones; most frequent: [" in said
    assert "no prompts are the same as another" in said
    assert "not looked for" not in said
    assert sps("data", str(recipe), "--set", "task.overlap=off") == 0
    assert "not looked for, as task.overlap: off says" in capsys.readouterr().out


def test_a_task_that_makes_its_problems_claims_nothing_about_questions(capsys, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("task: {train: 5, validation: 2, test: 2}\n")
    assert sps("data", str(path)) == 0
    said = capsys.readouterr().out
    assert "question" not in said
    assert "no prompts are the same as another" in said
    assert said.count("\nids: ") == 5


@pytest.mark.parametrize(
    ("overlap", "want"),
    [
        ("report", ["1 training questions occur in benchmarks (aime24: 1 exact), such as rows-00"]),
        (
            "drop",
            ["1 training questions of benchmarks are left out", "no training question occurs"],
        ),
    ],
)
def test_overlap_with_a_benchmark_is_said(overlap, want, recipe, tmp_path, capsys):
    rows = [{"problem": f"How many are {i} of them?", "answer": str(i)} for i in range(9)]
    for name, some in (("rows", rows), ("aime_2024", [rows[4], {"problem": "x?", "answer": "1"}])):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in some))
    task = {"type": "math", "data": str(tmp_path / "rows.jsonl"), "template": "plain"}
    task |= {"benchmarks": ["aime24"], "data_dir": str(tmp_path), "validation": 2}
    tree = {"model": {"path": str(tmp_path / "model")}, "task": {**task, "overlap": overlap}}
    recipe.write_text(json.dumps(tree))
    assert sps("data", recipe) == 0
    said = capsys.readouterr().out
    assert all(text in said for text in want)
    assert re.search(rf"^train +{9 - 2 - (overlap == 'drop')} ", said, re.MULTILINE)
    assert re.search(r"^test +2 ", said, re.MULTILINE)


def test_the_options_of_a_row_are_shown(recipe, tmp_path, capsys):
    rows = [{"question": f"{i}?", "choices": ["dog", f"red{i}"], "answer": 1} for i in range(6)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"type": "choice", "data": str(path), "template": "plain", "validation": 1, "test": 1}
    recipe.write_text(json.dumps({"model": {"path": str(tmp_path / "model")}, "task": task}))
    assert sps("data", recipe, "--show", "1") == 0
    said = capsys.readouterr().out
    assert "answers: 1 different ones; most frequent: B (6)" in said
    assert re.search(r", answer 'B'\nQuestion: (\d)\?\n\nA\) dog\nB\) red\1\n", said)
