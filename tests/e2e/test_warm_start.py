"""examples/warm_start.py on a small Llama: it learns answers by heart, and where they end."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sps.build import make_engine, make_policy, make_task
from sps.config.load import parse_recipe
from sps.errors import UserError
from sps.types import Request, Sampling

SCRIPT = Path(__file__).parents[2] / "examples" / "warm_start.py"
START, END = "<|im_start|>", "<|im_end|>"
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROWS = [
    {
        "problem": f"{name} has {n} clips and gets {n + 2} more. How many are there?",
        "solution": f"{name} has {n}+{n + 2} = <<{n}+{n + 2}={2 * n + 2}>>{2 * n + 2} clips.\n"
        f"#### {2 * n + 2}",
        "answer": str(2 * n + 2),
    }
    for name, n in [("Ann", 3), ("Bob", 8), ("Cleo", 14), ("Dan", 21), ("Eve", 40), ("Finn", 55)]
]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("warm_start", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A byte-level BPE that puts a token before every text, and two layers of random weights."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<pad>", START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([row["problem"] + row["solution"] for row in ROWS], trainer)
    core.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, core.token_to_id(START))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token=START, eos_token=END
    )
    tokenizer.chat_template = CHAT
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    folder = tmp_path_factory.mktemp("base")
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("template", ["plain", "chat"])
def test_a_warm_start_learns_the_answers_and_where_they_end(
    tmp_path, script, model, template, capsys
):
    data, out = write(tmp_path / "data.jsonl", ROWS), tmp_path / "a" / "start"
    how = ["--first", "4", "--epochs", "200", "--lr", "5e-3", "--batch", "4"]
    script.main([str(model), str(data), str(out), *how, "--template", template, "--device", "cpu"])
    losses = [float(x) for x in re.findall(r"loss (\S+)", capsys.readouterr().out)]
    assert len(losses) == 1 + 20  # at the first step and at every tenth of 200
    assert losses[0] > 4  # a random model: about the logarithm of 340 tokens, 5.8
    assert losses[-1] < 0.05

    # What the start did not use is there for RL, as it was written.
    assert (out / "rest.jsonl").read_text() == "".join(json.dumps(r) + "\n" for r in ROWS[4:])

    task = {"type": "math", "data": str(data), "template": template, "validation": 1, "test": 1}
    recipe = parse_recipe({"model": {"path": str(out), "device": "cpu"}, "task": task}, "test")
    policy, shown = make_policy(recipe), make_task(recipe)
    assert policy.tokenizer.chat_template == CHAT
    by_question = {
        p.question: p for s in ("train", "validation", "test") for p in shown.problems(s)
    }
    problems = [by_question[row["problem"]] for row in ROWS[:4]]
    prompts = [policy.encode(shown.prompt(problem)) for problem in problems]
    assert all(ids.count(policy.tokenizer.bos_token_id) == (1 if template == "plain" else 2)
               for ids in prompts)  # fmt: skip
    requests = [Request(i, ids, (0,)) for i, ids in enumerate(prompts)]
    drawn = list(make_engine(policy, 8).generate(requests, Sampling(1, 80, temperature=0)))
    assert len(drawn) == 4
    for completion in drawn:
        row, text = ROWS[completion.index], policy.decode(completion.ids)
        n = int(row["answer"])
        steps = f"{row['problem'].split()[0]} has {n // 2 - 1}+{n // 2 + 1} = {n} clips."
        assert text.strip() == f"{steps}\nThe answer is \\boxed{{{n}}}"
        assert completion.finished
        assert completion.ids[-1] == policy.tokenizer.eos_token_id
        assert shown.judge(problems[completion.index], text, completion.finished).reward == 1.0


def test_learnt_ids_are_those_of_the_whole_text(script, model):
    policy = script.load_policy(str(model))
    tokenizer, answer = policy.tokenizer, "Ann has 3 clips."
    for prompt, whole in [
        ("Question: 1?\nAnswer:", f"{START}Question: 1?\nAnswer: {answer}{END}"),
        ("Question: 1?\n", f"{START}Question: 1?\n{answer}{END}"),
        (
            [{"role": "user", "content": "1?"}],
            f"{START}user\n1?{END}\n{START}assistant\n{answer}{END}",
        ),
    ]:
        ids, learnt = script.encode(policy, prompt, answer)
        assert tuple(ids) == policy.encode(prompt)
        assert [*ids, *learnt] == tokenizer(whole, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode([*ids, *learnt]) == whole


@pytest.mark.parametrize(
    ("second", "first", "message"),
    [
        ({"problem": "1?", "answer": "1"}, 2, r"data\.jsonl: line 3 has no `solution`; .*add it"),
        ({"problem": "1?", "solution": "1"}, 2, r"data\.jsonl: line 3 has no `answer`; .*add it"),
        ([1], 2, r"data\.jsonl: line 3 is not a JSON object; mend or remove it"),
        (ROWS[1], 3, r"data\.jsonl has 2 rows; --first is a number from 1 to that"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path, script, model, second, first, message):
    data = tmp_path / "data.jsonl"
    data.write_text(f"{json.dumps(ROWS[0])}\n\n{json.dumps(second)}\n")
    with pytest.raises(UserError, match=message):
        script.main([str(model), str(data), str(tmp_path / "out"), "--first", str(first)])
    assert not (tmp_path / "out").exists()


def test_a_warm_start_on_countdown_learns_to_take_steps(tmp_path, script, model):
    out = tmp_path / "start"
    how = ["--first", "512", "--epochs", "20", "--lr", "5e-3", "--device", "cpu"]
    script.main([str(model), "countdown", str(out), *how])
    assert not (out / "rest.jsonl").exists()
    recipe = parse_recipe({"model": {"path": str(out), "device": "cpu"}}, "test")
    policy, task = make_policy(recipe), make_task(recipe)
    problems = task.problems("test")[:16]
    requests = [
        Request(i, policy.encode(task.prompt(p)), tuple(range(4))) for i, p in enumerate(problems)
    ]
    drawn = list(make_engine(policy, 64).generate(requests, Sampling(4, 60, seed=0)))
    texts = [policy.decode(c.ids) for c in drawn if c.finished]
    assert len(texts) > 48
    verdicts = [task.judge(problems[0], text, True).kind for text in texts]
    assert sum(kind != "unparsed" for kind in verdicts) > len(texts) / 2


@pytest.mark.parametrize(("given", "low", "high"), [([], 0.4, 0.65), (["--solved", "1"], 1, 1)])
def test_as_many_attempts_on_countdown_are_right_as_asked(script, given, low, high):
    options = script.read_options(["m", "countdown", "o", "--first", "400", *given])
    questions, texts, _ = script.countdown(options)
    targets = [re.findall(r"\d+", question)[-1] for question in questions]
    results = [re.findall(r"\d+", text)[-1] for text in texts]
    right = sum(a == b for a, b in zip(targets, results, strict=True)) / len(texts)
    assert low <= right <= high


def test_a_folder_that_is_there_is_left_alone(tmp_path, script, model):
    data = write(tmp_path / "data.jsonl", ROWS)
    with pytest.raises(UserError, match="is there already; choose another folder"):
        script.main([str(model), str(data), str(tmp_path)])
