"""Checkpoints as others meet them: a card that tells the truth, and weights that load anywhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import yaml

from sps.build import open_run
from sps.config.load import parse_recipe
from sps.evaluation.scores import read_scores
from sps.lifecycle.card import card, front_matter, is_hub_id, plain, recipe_differences
from sps.loop import train
from sps.policy.resolve import resolve_model
from sps.run.track import read_records

HOSTILE = "x](http:a) `b` | <script>alert(1)<script> --- # head ```` $1$ &amp; ünï"


def recipe_of(name="card", **changes):
    """The embedded policy that is shipped, two RL phases of two steps, an IRL phase after each."""
    tree = {
        "name": name,
        "seed": 3,
        "model": {"device": "cpu"},
        "task": {"train": 12, "validation": 4, "test": 6},
        "rollout": {"prompts": 2, "n": 4},
        "rl": {"steps": 4},
        "irl": {"steps": 1, "every": 2, "keep": 2},
        "evaluation": {"n": 4, "validation_n": 2, "every": 2, "temperature": 0.7, "top_k": 9},
        "checkpoint": {"every": 2},
        "meter": {"problems": 2, "samples": 2},
    }
    return parse_recipe({**tree, **changes}, "test")


def run(recipe, folder, resume=False, listeners=None):
    this = open_run(recipe, folder, resume, listeners)
    train(this)
    return this


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with a hostile name, which ends up in its card."""
    folder = tmp_path_factory.mktemp("card") / "run"
    this = run(recipe_of(HOSTILE), folder)
    return folder, this


def readme(folder, step):
    return (folder / "checkpoints" / f"step-{step:06d}" / "README.md").read_text(encoding="utf-8")


def blocks(text):
    """Fenced blocks by language, and what is left without them; fences as CommonMark reads them."""
    found, left, fence, language = {}, [], None, ""
    for line in text.splitlines():
        match = re.fullmatch(r"(`{3,})(\w*)", line)
        if fence is None and match:
            fence, language = match[1], match[2]
            found[language] = []
        elif fence is not None and match and len(match[1]) >= len(fence) and not match[2]:
            fence = None
        elif fence is None:
            left.append(line)
        else:
            found[language].append(line)
    assert fence is None
    return {name: "\n".join(lines) for name, lines in found.items()}, "\n".join(left)


def rows(text):
    """Cells of every table row, by the first cell."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in lines}


def shown(summary, ks):
    return [
        "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * v for v in summary["pass_at_k"][str(k)]))
        for k in ks
    ]


def test_a_hostile_name_breaks_neither_the_front_matter_nor_the_markdown(finished):
    folder, _ = finished
    for step in (2, 4):
        text = readme(folder, step)
        head, body = text.removeprefix("---\n").split("\n---\n", 1)
        found = yaml.safe_load(head)
        assert found["library_name"] == "transformers"
        assert found["pipeline_tag"] == "text-generation"
        assert found["tags"] == ["sps", "rlvr", "reinforcement-learning", "grpo", "countdown"]
        assert "base_model" not in found
        inside, outside = blocks(body)
        assert yaml.safe_load(inside["yaml"])["name"] == HOSTILE
        headings = re.findall(r"^#+ .*", outside, re.M)
        assert headings[0] == f"# {plain(HOSTILE)}, step {step}"
        assert headings[1:] == [
            "## Load it", "## Data", "## Pass@k", "## How concentrated it is", "## How it was made",
        ]  # fmt: skip
        assert not re.search(r"(?<!\\)[<\[]script|(?<!\\)<|---$", outside.replace("| ---", ""))


def test_plain_text_means_itself():
    # By hand: every sign of Markdown behind a backslash, and one line.
    assert plain("a*b\n# [x](y) <z>") == "a\\*b \\# \\[x\\](y) \\<z\\>"


def test_tables_hold_the_numbers_of_the_evaluations(finished):
    folder, _ = finished
    for step in (2, 4):
        summary = json.loads((folder / "evals" / f"validation-{step:06d}.json").read_text())
        table = rows(readme(folder, step))
        assert table["validation"] == ["4 x 2", *shown(summary, (1, 2))]
        assert ("test" in table) == (step == 4)
    summary = json.loads((folder / "evals" / "test.json").read_text())
    assert rows(readme(folder, 4))["test"] == ["6 x 4", *shown(summary, (1, 4))]


def test_squeeze_figures_are_those_of_the_record(finished):
    folder, _ = finished
    records = read_records(folder / "metrics.jsonl")
    rl = [r for r in records if r["kind"] == "rl"]
    tried = [r["greedy_logprob"] for r in records if r.get("name", "").startswith("validation")]
    table = rows(readme(folder, 2))
    assert table["log-probability of a sampled token"] == [
        f"{rl[0]['logprob']:.3f} (1)", f"{rl[1]['logprob']:.3f} (2)",
    ]  # fmt: skip
    table = rows(readme(folder, 4))
    assert table["log-probability of a sampled token"][1] == f"{rl[3]['logprob']:.3f} (4)"
    name = "log-probability of a greedy answer to a validation problem"
    assert table[name] == [f"{tried[0]:.3f} (0)", f"{tried[2]:.3f} (4)"]
    for meter in (r for r in records if r["kind"] == "meter" and r["step"] == 4):
        said = f"The last {meter['of'].upper()} phase, up to step 4, moved the policy by a KL of "
        assert f"{said}{meter['kl']:.2e} a token" in readme(folder, 4)


def test_the_recipe_of_a_card_is_the_recipe(finished):
    _, this = finished
    inside, _ = blocks(readme(finished[0], 4))
    assert parse_recipe(yaml.safe_load(inside["yaml"]), "card") == this.recipe
    tree = recipe_differences(recipe_of(rl={"algorithm": {"type": "dapo", "eps": 0.1}}))
    assert tree["rl"] == {"algorithm": {"type": "dapo", "eps": 0.1}}
    assert list(tree)[:2] == ["name", "seed"]


class Killed(Exception):
    pass


def killer(record):
    if (record["kind"], record["step"]) == ("rl", 3):
        raise Killed


def test_a_resumed_run_writes_the_same_cards(finished, tmp_path):
    recipe = recipe_of(HOSTILE)
    with pytest.raises(Killed):
        run(recipe, tmp_path / "run", listeners=[killer])
    run(recipe, tmp_path / "run", resume=True)
    for step in (2, 4):
        assert readme(tmp_path / "run", step) == readme(finished[0], step)
    run(recipe, tmp_path / "run", resume=True)  # a finished run, resumed: evaluated anew
    assert readme(tmp_path / "run", 4) == readme(finished[0], 4)


def loads(checkpoint, more=""):
    """Run the card's own lines in its folder, in a process that must not need this program."""
    inside, _ = blocks((checkpoint / "README.md").read_text(encoding="utf-8"))
    code = inside["python"] + "\nimport sys\nassert 'sps' not in sys.modules\n" + more
    out = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=checkpoint, capture_output=True, text=True
    )
    assert out.returncode == 0, out.stderr
    return out.stdout


def test_transformers_loads_a_checkpoint_and_samples_as_it_was_evaluated(finished):
    folder, this = finished
    checkpoint = folder / "checkpoints" / "step-000004"
    config = json.loads((checkpoint / "generation_config.json").read_text())
    del config["transformers_version"]
    assert config == {
        "do_sample": True, "temperature": 0.7, "top_p": 1.0, "top_k": 9, "max_new_tokens": 20,
        "eos_token_id": this.policy.eos_ids[0], "pad_token_id": 0,
    }  # fmt: skip
    prompt = blocks((checkpoint / "README.md").read_text(encoding="utf-8"))[0]["text"]
    said = loads(
        checkpoint,
        f"ids = tokenizer({prompt!r}, return_tensors='pt')['input_ids']\n"
        "out = model.generate(ids)[0, ids.shape[1]:].tolist()\n"
        "print(len(out), out[-1], model.generation_config.top_k)",
    )
    length, last, top_k = map(int, said.split())
    assert last == this.policy.eos_ids[0] or length == 20
    assert top_k == 9


def test_greedy_evaluation_is_a_greedy_generation_config(finished):
    _, this = finished
    from sps.lifecycle.card import generation

    config = json.loads(generation(this.policy, recipe_of(evaluation={"temperature": 0})))
    assert config["do_sample"] is False
    assert "temperature" not in config
    assert "top_k" not in config


def test_adapters_say_so_load_with_peft_and_stand_for_their_run(tmp_path):
    pytest.importorskip("peft")
    recipe = recipe_of(model={"device": "cpu", "lora": {"rank": 2}}, rl={"steps": 2})
    run(recipe, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000002"
    text = readme(tmp_path / "run", 2)
    assert yaml.safe_load(text.split("---\n")[1])["library_name"] == "peft"
    assert "LoRA adapters, without the model itself," in text
    assert "`adapter_config.json` names the model's folder" in text
    said = loads(checkpoint, "print(type(model).__name__, model.generation_config.top_k)")
    assert said.split() == ["PeftModelForCausalLM", "9"]
    assert resolve_model(str(tmp_path / "run")) == str(checkpoint)


def maths(**changes):
    task = {"type": "math", "data": "owner/data", "benchmarks": ["aime24", "gsm8k"]}
    return recipe_of(model={"path": "Qwen/Qwen2.5-Math-1.5B"}, task=task, **changes)


def test_hub_ids_are_named_and_local_folders_are_not(tmp_path):
    found = front_matter(maths())
    assert found["base_model"] == "Qwen/Qwen2.5-Math-1.5B"
    assert found["base_model_relation"] == "finetune"
    assert found["datasets"] == ["owner/data"]
    local = recipe_of(
        model={"path": str(tmp_path / "mine")},
        task={"type": "math", "data": str(tmp_path / "q.jsonl"), "data_dir": str(tmp_path)},
    )
    assert not {"base_model", "datasets"} & set(front_matter(local))
    written = yaml.safe_dump(recipe_differences(local))
    assert str(tmp_path) not in written
    assert recipe_differences(local)["model"]["path"] == "mine"
    assert recipe_differences(local)["task"]["data"] == "q.jsonl"
    assert not is_hub_id("data/gsm8k.jsonl")
    assert not is_hub_id("a/b/c")


def test_a_test_set_of_benchmarks_has_a_row_for_each(finished, tmp_path):
    _, this = finished
    (tmp_path / "evals").mkdir()
    right = {"aime24/1": 0, "aime24/2": 2, "gsm8k/1": 2}
    summary = {
        "n": 2, "per_question": right, "kinds": {}, "details": {}, "mean_logprob": -1.0,
        "mean_length": 3.0, "greedy_logprob": None,
    }  # fmt: skip
    (tmp_path / "evals" / "test.json").write_text(json.dumps(summary))
    from dataclasses import replace

    text = card(replace(this, recipe=maths(), folder=tmp_path), 4, share=0.0)
    table = rows(text)
    # By hand: one of two questions always right is 50 %, the one of gsm8k is always right.
    assert table["aime24"][0] == "2 x 2"
    assert [table[name][1].split()[0] for name in ("aime24", "gsm8k", "all")] == [
        "50.0", "100.0", "66.7",
    ]  # fmt: skip
    want = "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * v for v in read_scores(summary).pass_at_k(2)))
    assert table["all"][2] == want
    assert "It is the last checkpoint; none was selected." in text
