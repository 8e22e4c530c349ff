"""docs/first_hour.md as somebody follows it: every file is written and every command run."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from test_cli import sps
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from sps.commands import init
from sps.run.track import read_records
from sps.store.rollouts import RolloutStore

PAGE = (Path(__file__).parents[2] / "docs" / "first_hour.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
# Of the page's runs of half a minute: a few steps.
QUICK = ["--set", "rl.steps=2", "--set", "irl.every=2", "--set", "evaluation.every=0"]


@pytest.fixture
def started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(init._POLICY, "steps", 30)
    return tmp_path


def commands(block, monkeypatch):
    for line in block.strip().splitlines():
        name, *arguments = shlex.split(line)
        if name == "cd":
            monkeypatch.chdir(Path.cwd() / arguments[0])
        elif name == "python":
            text = Path(*arguments).read_text().replace("steps=300", "steps=60")
            exec(compile(text, arguments[0], "exec"), {})
        else:
            assert name == "sps"
            more = QUICK if arguments[0] == "train" else []
            assert sps(*arguments, *more) == 0, line


def test_the_page_can_be_followed(started, monkeypatch, capsys):
    for kind, text in BLOCKS:
        named = re.match(r"# (\S+\.(?:py|yaml))\n", text)
        if kind == "sh":
            commands(text, monkeypatch)
        elif named:
            Path(named[1]).write_text(text)
        elif kind == "json":
            Path("rows.jsonl").write_text(text)
        else:
            assert kind == "yaml"
            Path("mixed.yaml").write_text(f"model: {{path: model}}\n{text}  template: plain\n")
        if named and named[1] == "use.py":
            capsys.readouterr()
            exec(compile(text, "use.py", "exec"), {})
            steps = [line.split()[0] for line in capsys.readouterr().out.splitlines()[-2:]]
            assert steps == ["1", "2"]
    folder = started / "first"
    assert Path.cwd() == folder
    for run in ("starter", "capitals", "python"):
        kinds = [r["kind"] for r in read_records(folder / "runs" / run / "metrics.jsonl")]
        assert kinds[-1] == "done"
    # The page's own policy knows the words: some of its answers are worth something.
    rewards = RolloutStore(folder / "runs" / "capitals" / "rollouts").read()["reward"].to_pylist()
    assert max(rewards) > 0
    for run in ("starter", "python"):
        assert (folder / "runs" / run / "report.html").stat().st_size > 10_000
    rows = [{"asked": f"The capital of {c}, as JSON", "capital": c} for c in ("A", "B", "C")]
    (folder / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    capsys.readouterr()
    assert sps("data", "mixed.yaml") == 0
    said = capsys.readouterr().out
    # 5 and 3 rows at 2 to 1: 5 and 2; 2 of them held out.
    assert re.search(r"^train +5 ", said, re.MULTILINE)
    assert "You answer in JSON.\n\nQuestion: The capital of Italy, as JSON" in said
    assert 'Answer: {"city": "Rome"}\n\nQuestion: The capital of' in said


def test_what_init_says_to_do_next_is_what_the_page_says_and_works(started, monkeypatch, capsys):
    assert sps("init", "first") == 0
    said = capsys.readouterr().out.partition("\n\n")[2]
    (first, *_) = (text for kind, text in BLOCKS if kind == "sh")
    assert f"sps init first\n{said}" == first
    commands(said, monkeypatch)
    assert Path("evals/runs-starter/table.md").exists()
    assert Path("runs/starter/report.html").exists()


def make_stranger(folder):
    """A Qwen2 with random weights, a tokenizer of bytes, and ids that it does not know."""
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {sign: i for i, sign in enumerate(signs)}
    bytewise = Tokenizer(models.BPE(words, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytewise, eos_token="<end>")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 48}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen2Config(vocab_size=264, eos_token_id=256, **shape, **heads)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def test_the_starter_takes_a_model_of_hugging_face_by_one_line(started, monkeypatch):
    assert sps("init", "mine") == 0
    monkeypatch.chdir(started / "mine")
    make_stranger(started / "stranger")
    before = Path("recipe.yaml").read_text().splitlines()
    (line,) = (i for i, text in enumerate(before) if text.startswith("model:"))
    after = [*before[:line], "model: {path: ../stranger}", *before[line + 1 :]]
    Path("recipe.yaml").write_text("\n".join(after))
    shutil.rmtree("model")  # nothing of the tiny policy is needed
    assert sps("train", "recipe.yaml", *QUICK) == 0
    records = read_records(Path("runs/starter/metrics.jsonl"))
    assert [r["step"] for r in records if r["kind"] == "rl"] == [1, 2]
    assert records[-1]["kind"] == "done"
    saved = json.loads(Path("runs/starter/checkpoints/step-000002/config.json").read_text())
    assert (saved["model_type"], saved["vocab_size"]) == ("qwen2", 264)
    asked = RolloutStore(Path("runs/starter/rollouts")).read()["prompt_ids"].to_pylist()
    signs = {len(f"Question: Two numbers that make more than {n}\n\nAnswer:") for n in (7, 16)}
    assert {len(ids) for ids in asked} == signs  # a token each


def test_data_says_counts_lengths_repeats_and_prompts(started, monkeypatch, capsys):
    assert sps("init", "mine") == 0
    monkeypatch.chdir(started / "mine")
    with open("rows.jsonl", "a") as file:
        row = {"id": "again", "question": "Two numbers that make more than 7", "target": 7}
        file.write(json.dumps(row) + "\n")
    capsys.readouterr()
    assert sps("data", "recipe.yaml", "--show", "2") == 0
    said = capsys.readouterr().out
    assert re.search(r"^train +6 +9 +9 +9$", said, re.MULTILINE)
    assert "left out again" in said
    assert "warning" not in said
    assert said.count("\nids: ") == said.count("\n--- above-") == 2
    assert "Question: Two numbers that make more than" in said


def test_a_folder_in_use_is_not_written_to(started, capsys):
    (started / "mine").mkdir()
    (started / "mine" / "notes.txt").write_text("mine")
    assert sps("init", "mine") == 2
    assert "it is there already, and not empty" in capsys.readouterr().err
    assert [p.name for p in (started / "mine").iterdir()] == ["notes.txt"]


def test_what_init_says_holds_in_a_shell_whatever_the_folder_is_called(started, capsys):
    assert sps("init", "my task; a") == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("cd "))
    assert shlex.split(line) == ["cd", "my task; a"]
