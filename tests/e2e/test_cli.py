"""The command line as a person meets it: what works, and what bad input says."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import typer
import yaml

from sps import __version__
from sps.cli import app, main
from sps.commands.jobs import Job, run_job
from sps.config.load import load_recipe
from sps.config.shipped import shipped_recipes

ROOT = Path(__file__).parents[2]
SMALL = [
    "--set", "rl.steps=4", "--set", "irl.every=2", "--set", "irl.steps=1", "--set", "task.train=40",
    "--set", "task.validation=10", "--set", "task.test=10", "--set", "evaluation.n=4",
    "--set", "evaluation.every=0", "--set", "rollout.prompts=2", "--set", "checkpoint.every=2",
]  # fmt: skip
SPS = str(ROOT / "recipes" / "demo" / "countdown_sps_phases.yaml")


def sps(*arguments):
    """Run the program in this process; returns its exit code."""
    before, sys.argv = sys.argv, ["sps", *map(str, arguments)]
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    finally:
        sys.argv = before
    return 0


def said(capsys, *arguments):
    """What a command that must be refused says: exit code 2 and one paragraph, no traceback."""
    assert sps(*arguments) == 2
    text = capsys.readouterr().err
    assert "Traceback" not in text
    assert len(text.strip().splitlines()) == 1
    return text


def test_unknown_key_names_the_file_and_the_nearest_right_one(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text("rl: {lrr: 1e-4}\n")
    assert "mine.yaml: rl.lrr: no such key; did you mean 'lr'?" in said(capsys, "train", path)


def test_malformed_yaml_names_the_line(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text("rl:\n  lr: [1\n")
    assert sps("train", path) == 2
    assert re.search(r"mine\.yaml:.*line \d", capsys.readouterr().err)


def test_missing_recipe_is_said(capsys):
    assert "no such recipe" in said(capsys, "train", "nowhere.yaml")


def test_missing_model_folder_is_said(tmp_path, capsys):
    text = said(capsys, "train", SPS, "--set", "model.path=./nowhere", "--out", tmp_path / "run")
    assert "model.path" in text
    assert "nowhere" in text


def test_task_without_enough_solvable_problems_says_what_to_widen(tmp_path, capsys):
    small = ["--set", "task.low=1", "--set", "task.high=1", "--set", "model.path=./nowhere"]
    text = said(capsys, "train", SPS, *small, "--out", tmp_path / "run")
    assert "task.train" in text
    assert "widen" in text


def test_empty_data_is_said(tmp_path, capsys):
    (tmp_path / "empty.jsonl").write_text("")
    path = tmp_path / "maths.yaml"
    shipped = next((ROOT / "src" / "sps" / "assets" / "bases").iterdir())
    data = tmp_path / "empty.jsonl"
    path.write_text(f"model: {{path: {shipped}}}\ntask: {{type: math, data: {data}}}\n")
    assert "empty.jsonl" in said(capsys, "train", path, "--out", tmp_path / "run")


def test_a_task_that_the_embedded_policy_does_not_know_asks_for_a_model(tmp_path, capsys):
    path = tmp_path / "maths.yaml"
    path.write_text("task: {type: math, data: some.jsonl}\n")
    assert "model.path" in said(capsys, "train", path, "--out", tmp_path / "run")


def test_unwritable_run_folder_is_said(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert "cannot write" in said(capsys, "train", SPS, "--out", tmp_path / "file" / "run")
    (tmp_path / "compare" / ".lock").mkdir(parents=True)
    assert "cannot write" in said(capsys, "compare", SPS, "--out", tmp_path / "compare")


def test_train_resume_and_refusal_of_a_folder_that_holds_a_run(tmp_path, capsys):
    run = tmp_path / "run"
    assert sps("train", SPS, *SMALL, "--out", run) == 0
    assert "Pass@4" in capsys.readouterr().out
    assert "--resume" in said(capsys, "train", SPS, *SMALL, "--out", run)
    text = said(capsys, "train", SPS, *SMALL, "--set", "rl.lr=1e-6", "--out", run, "--resume")
    assert "rl.lr was 0.0002, is 1e-06" in text
    assert sps("train", SPS, *SMALL, "--out", run, "--resume") == 0
    assert sps("report", run) == 0
    assert (run / "report.html").stat().st_size > 100_000


@pytest.fixture
def board(monkeypatch):
    """A stand-in for tensorboard, which makes its folder at once; what each folder got."""
    got = {}

    class Writer:
        def __init__(self, folder):
            Path(folder).mkdir(parents=True)
            self.got = got.setdefault(Path(folder), [])

        def add_scalar(self, field, value, step):
            self.got.append((field, step))

        def flush(self):
            pass

        def close(self):
            self.got.append("closed")

    fake = ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    return got


def test_a_new_run_is_sent_to_tensorboard(tmp_path, board):
    run = tmp_path / "run"
    assert sps("train", SPS, *SMALL, "--set", "track=tensorboard", "--out", run) == 0
    got = board[run / "tensorboard"]
    assert [step for field, step in got[:-1] if field == "rl/reward"] == [1, 2, 3, 4]
    assert got[-1] == "closed"


def test_a_tracker_that_is_missing_is_said_and_the_folder_stays_free(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    for command in ("train", "compare"):
        text = said(capsys, command, SPS, "--set", "track=wandb", "--out", tmp_path / "run")
        assert "track: wandb is not installed" in text
        assert not (tmp_path / "run").exists()


def test_the_runs_of_a_comparison_are_tracked_too(tmp_path, board):
    recipe = load_recipe(SPS, [*SMALL[1::2], "track=tensorboard"])
    run_job(Job("sps", recipe, tmp_path / "sps"))
    assert ("rl/reward", 4) in board[tmp_path / "sps" / "tensorboard"]
    run_job(Job("base", recipe, tmp_path / "base", train=False))  # no run
    assert list(board) == [tmp_path / "sps" / "tensorboard"]


def test_compare_writes_results_in_the_promised_form(tmp_path, capsys):
    grpo = ROOT / "recipes" / "demo" / "countdown_grpo.yaml"
    out = tmp_path / "out"
    arguments = ["--seeds", 2, "--out", out, "--early", "2", "--temperatures", "0.5", *SMALL]
    arguments += ["--set", "irl.steps=1", "--set", "evaluation.every=4"]
    assert sps("compare", grpo, SPS, *arguments) == 0
    results = json.loads((out / "results.json").read_text())
    assert set(results["methods"]) == {"base", "grpo", "grpo @2", "sps"}
    assert "T=0.5" in results["frontier"]["methods"]["sps"]["steps"]
    one = results["methods"]["sps"]
    assert one["seeds"] == 2
    assert list(one["pass_at_k"]) == ["1", "2", "4"]
    for mean, low, high in [*one["pass_at_k"].values(), one["avg"]]:
        assert 0 <= low <= mean <= high <= 1
    right = [[int(c) for c in seed.split()] for seed in one["correct"]]
    assert [len(seed) for seed in right] == [one["questions"]] * 2
    mean = sum(map(sum, right)) / (2 * one["questions"] * one["n"])
    assert one["pass_at_k"]["1"][0] == pytest.approx(mean)
    assert one["irl_seconds"] > 0
    assert results["wall_seconds"] > 0
    made = {f"{name}/seed-{seed}" for name in ("grpo", "sps") for seed in (0, 1)}
    assert made <= {*results["folders"]}
    assert all((out / name).is_dir() for name in results["folders"])
    pair = next(p for p in results["paired"] if (p["a"], p["b"], p["k"]) == ("grpo", "sps", 4))
    gain = one["pass_at_k"]["4"][0] - results["methods"]["grpo"]["pass_at_k"]["4"][0]
    assert pair["delta"][0] == pytest.approx(gain)  # paired on the same questions
    assert pair["verdict"] in {"better", "worse", "tied"}
    assert (out / "report.html").exists()
    # Of the base the runs have the scores, but the samples are in one place.
    tempered = [path.parent.parent for path in out.glob("*/*/evals/temperature-0.5-000000/")]
    assert tempered == [*(out / "base").glob("temperatures-*")]
    assert len([*out.glob("*/seed-*/evals/temperature-0.5-000000.json")]) == 4
    # Started again it takes everything from disk.
    assert sps("compare", grpo, SPS, *arguments) == 0
    again = json.loads((out / "results.json").read_text())
    assert again["methods"] == results["methods"]
    # With another recipe it does not.
    capsys.readouterr()
    text = said(capsys, "compare", grpo, SPS, *arguments, "--set", "rl.lr=1e-6")
    assert "seed-0: it holds a run of another recipe: rl.lr was 0.0002, is 1e-06" in text


def test_the_quick_demo_has_a_folder_of_its_own(monkeypatch):
    went = []
    monkeypatch.setattr(
        "sps.commands.demo.run_compare", lambda paths, seeds, out, *_: went.append(out)
    )
    monkeypatch.setattr("sps.commands.demo._fitting_seeds", lambda *_: 1)
    for arguments in ([], ["--quick"], ["--quick", "--out", "there"]):
        assert sps("demo", *arguments) == 0
    assert went == [Path("runs/demo"), Path("runs/demo-quick"), Path("there")]


def test_early_stop_without_a_checkpoint_is_refused(tmp_path, capsys):
    text = said(capsys, "compare", SPS, "--early", "3", "--out", tmp_path / "out")
    assert "checkpoint.every is 50" in text


def test_sweep_makes_one_method_a_value_of_the_last_recipe(tmp_path):
    grpo, out = ROOT / "recipes" / "demo" / "countdown_grpo.yaml", tmp_path / "out"
    arguments = ["--seeds", 1, "--out", out, "--sweep", "irl.keep=2,1", *SMALL]
    assert sps("compare", grpo, SPS, *arguments) == 0
    results = json.loads((out / "results.json").read_text())
    assert list(results["methods"]) == ["base", "grpo", "sps keep=2", "sps keep=1"]
    for keep in (1, 2):
        recipe = yaml.safe_load((out / f"sps keep={keep}" / "seed-0" / "recipe.yaml").read_text())
        assert (recipe["irl"]["keep"], recipe["name"]) == (keep, f"sps keep={keep}")
    assert "SPS keep=2" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("sweep", "text"),
    [
        ("irl.keep", "--sweep irl.keep: write it as key.path=value,value"),
        ("irl.keep=1,,2", "write it as key.path=value,value"),
        ("=1,2", "write it as key.path=value,value"),
        ("irl.keep=1,2,1", "1 is there twice"),
        ("irl.keap=1,2", "irl.keap: no such key; did you mean 'keep'?"),
        ("irl.keep=1,many", "irl.keep"),
    ],
)
def test_bad_sweep_is_said(tmp_path, capsys, sweep, text):
    assert text in said(capsys, "compare", SPS, "--sweep", sweep, "--out", tmp_path / "out")


def commands(path):
    """The sps commands of a Markdown file's code blocks."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", path.read_text(), re.M | re.S)
    joined = [re.sub(r"\\\n\s*", " ", text) for kind, text in blocks if kind != "python"]
    lines = [line.split("#")[0].strip() for block in joined for line in block.splitlines()]
    return [line for line in lines if line.startswith("sps ")]


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_commands_in_the_documentation_are_understood(path):
    group = typer.main.get_command(app)
    for line in commands(path):
        name, *arguments = shlex.split(line)[1:]
        command = group.get_command(None, name)
        assert command is not None, line
        command.make_context(name, list(arguments))


def test_recipes_named_in_the_documentation_exist():
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for name in re.findall(r"recipes/[\w/.-]+\.yaml", path.read_text()):
            assert (ROOT / name).exists(), (path.name, name)
        words = [word for line in commands(path) for word in shlex.split(line)]
        short = [word for word in words if re.match(r"(demo|countdown|gsm8k|paper|rivals)/", word)]
        assert {*short} <= {*shipped_recipes()}, path.name


def test_every_option_that_the_documentation_names_is_an_option_of_sps_eval():
    named = set(re.findall(r"`(--[a-z-]+)", (ROOT / "docs" / "evaluation.md").read_text()))
    command = typer.main.get_command(app).get_command(None, "eval")
    known = {name for parameter in command.params for name in parameter.opts}
    assert named - known == set()


def test_the_quick_demo_promises_a_smoke_test_alone(monkeypatch, capsys):
    monkeypatch.setattr("sps.commands.demo.run_compare", lambda *_: None)
    monkeypatch.setattr("sps.commands.demo._fitting_seeds", lambda *_: 1)
    assert sps("demo", "--quick", "--out", "there") == 0
    quick = capsys.readouterr().out
    assert "A smoke test: 30 steps, 60 test problems, one seed." in quick
    assert "Pass@128" not in quick
    assert sps("demo", "--out", "there") == 0
    assert "Watch Pass@1 rise and Pass@128 fall" in capsys.readouterr().out


def test_version_is_the_packages(capsys):
    assert sps("--version") == 0
    assert capsys.readouterr().out.strip() == __version__


def test_eval_says_where_it_writes_by_default(tmp_path, monkeypatch, capsys):
    assert sps("eval", "--help") == 0
    assert "Default: evals/<model>." in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    shipped = next((ROOT / "src" / "sps" / "assets" / "bases").iterdir())
    how = ["--n", 1, "--limit", 1, "--template", "plain", "--max-new-tokens", 2]
    assert sps("eval", shipped, "--bench", "countdown", *how) == 0
    assert len(list((tmp_path / "evals").iterdir())) == 1


def test_eval_on_the_embedded_task(tmp_path, capsys):
    shipped = next((ROOT / "src" / "sps" / "assets" / "bases").iterdir())
    out = tmp_path / "eval"
    how = ["--n", 4, "--limit", 10, "--template", "plain", "--max-new-tokens", 20]
    assert sps("eval", shipped, "--bench", "countdown", *how, "--out", out) == 0
    assert "Pass@4" in capsys.readouterr().out
    assert json.loads((out / "results.json").read_text())
    assert sps("eval", shipped, "--bench", "aime99", "--out", tmp_path / "other") == 2
    assert "aime24" in capsys.readouterr().err


SEVEN = ROOT / "recipes" / "paper" / "qwen2.5-math-7b_10k_grpo.yaml"


def test_doctor_says_what_fits_and_fails_where_nothing_does(capsys):
    assert sps("doctor", SEVEN, "--gpus", 32, "--gpu-memory", 80) == 0
    out = capsys.readouterr().out
    assert "fsdp2, native engine:" in out
    assert f"recipes/ and launch/ are in {ROOT}\n" in out
    assert "launch/fsdp2.yaml --num_processes 32 -m sps train" in out
    how = ["--gpus", 32, "--gpu-memory", 80, "--engine", "vllm", "--set", "rl.lr=1e-6"]
    assert sps("doctor", SEVEN, *how) == 0
    wanted = f"sps train {SEVEN} --set rl.lr=1e-6 --set rollout.engine=vllm"
    assert wanted in capsys.readouterr().out
    text = said(capsys, "doctor", ROOT / "recipes" / "paper" / "sps.yaml")
    assert "the embedded policy knows Countdown alone" in text
    text = said(capsys, "doctor", SEVEN, "--gpus", 1, "--gpu-memory", 139)
    assert "does not fit into 1 x 139 GiB" in text
    assert "model.lora" in text
    assert sps("doctor", SEVEN, "--sharding", "zero") == 2


def test_train_refuses_a_model_that_cannot_fit_before_it_touches_anything(
    tmp_path, capsys, monkeypatch
):
    import torch

    card = SimpleNamespace(total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    text = said(capsys, "train", SEVEN, "--out", tmp_path / "run")
    assert "take 113 GiB, the GPU has 80" in text
    text = said(capsys, "compare", SEVEN, "--out", tmp_path / "run")
    assert "take 113 GiB, the GPU has 80" in text
    assert not (tmp_path / "run").exists()


def test_resume_starts_a_run_that_is_not_there_yet(tmp_path, capsys):
    assert sps("train", SPS, *SMALL, "--out", tmp_path / "run", "--resume") == 0
    assert "Pass@4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["eval", "m", "--bench", "countdown", "--device", "foo"], "--device"),
        (["eval", "m", "--bench", "countdown", "--time-limit", "-1"], "--time-limit"),
        (["compare", SPS, "--workers", "-2"], "--workers"),
        (["watch", "r", "--port", "99999"], "--port"),
    ],
)
def test_an_option_out_of_range_is_refused_by_its_name(capsys, arguments, named):
    assert sps(*arguments) == 2
    assert named in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on_and_is_no_success(tmp_path):
    folder = tmp_path / "run"
    more = ["--out", str(folder), *SMALL, "--set", "rl.steps=10000"]
    program = [sys.executable, "-m", "sps", "train", SPS, *more]
    out = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    # A shell's background jobs, and what they start, ignore Ctrl-C unless they ask for it.
    own = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with subprocess.Popen(program, **out, **own) as running:
        until = time.monotonic() + 120
        while not list(folder.glob("checkpoints/step-*/trainer.json")):
            assert running.poll() is None, running.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        text = running.communicate(timeout=60)[1].decode()
    assert running.returncode == 130
    assert "stopped; what has finished is kept" in text
    assert "--resume" in text
    assert "Traceback" not in text


def test_making_an_embedded_policy_is_said_also_where_there_is_no_terminal(capsys, monkeypatch):
    from sps import build
    from sps.commands.train import make_base
    from sps.config.recipe import Recipe

    monkeypatch.setattr(build, "ensure_base", lambda recipe, progress: progress(1, 3000, 2.0))
    make_base(Recipe())
    assert "it is made first, in 3000 steps" in capsys.readouterr().out
    monkeypatch.setattr(build, "ensure_base", lambda recipe, progress: None)  # it is there
    make_base(Recipe())
    assert capsys.readouterr().out.strip() == ""
