"""What happens to runs of days: locks, NaNs, damaged files, full disks, preemption."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_runs import Killed, kill_at, learnt, recipe_of, run, same_weights, stored, told, weights
from test_cli import SMALL, SPS, sps

from sps.build import open_run
from sps.config.load import dump_recipe
from sps.errors import RunFailed, Stopped, UserError
from sps.loop import train
from sps.phases import irl, rl
from sps.policy.checkpoint import latest_checkpoint
from sps.policy.embedded import SHIPPED
from sps.rollout.native.engine import NativeEngine
from sps.store.evals import EvalStore

pytestmark = pytest.mark.usefixtures("one_cache")

NAN = float("nan")
SHIPPED_BASE = next(path.parent for path in sorted(SHIPPED.glob("*/config.json")))


def checkpoints(folder):
    return sorted(p.name for p in (folder / "checkpoints").iterdir())


def warnings(folder):
    return [(r["step"], r["text"]) for r in told(folder) if r["kind"] == "warning"]


# --- two jobs, one folder ---

HOLDER = """
import os, sys, time
from pathlib import Path
from sps.run.lock import hold
hold(Path(sys.argv[1]), "sps train")
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds a folder, and has a child that outlives it."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        child = int(process.stdout.readline())
        yield process
        process.kill()
        os.kill(child, signal.SIGKILL)


def test_a_folder_in_use_is_refused_by_every_command_until_its_holder_dies(
    holder, tmp_path, capsys
):
    folder, base = tmp_path / "run", next((Path(SPS).parents[2] / "src/sps/assets/bases").iterdir())
    commands = [
        ["train", SPS, *SMALL],
        ["train", SPS, *SMALL, "--resume"],
        ["compare", SPS, *SMALL],
        ["eval", base, "--bench", "countdown", "--template", "plain", "--limit", 1, "--n", 1],
    ]
    for command in commands:
        assert sps(*command, "--out", folder) == 2
        said = capsys.readouterr().err
        assert f"in use by sps train (process {holder.pid} on {os.uname().nodename}" in said
        assert [path.name for path in folder.iterdir()] == [".lock"]
    holder.kill()
    holder.wait()
    assert sps(*commands[0], "--set", "evaluation.final=false", "--out", folder) == 0


# --- NaN ---


@contextmanager
def spoilt(monkeypatch, module, name, calls):
    """The loss of some calls is NaN."""
    real, seen = getattr(module, name), []

    def faked(*arguments, **more):
        seen.append(None)
        found = real(*arguments, **more)
        if len(seen) not in calls:
            return found
        return found * NAN if isinstance(found, torch.Tensor) else (found[0] * NAN, found[1])

    with monkeypatch.context() as patch:
        patch.setattr(module, name, faked)
        yield


def state_of(optimizer):
    return [{k: v.clone() for k, v in of.items()} for of in optimizer.state.values()]


def test_an_update_that_is_not_finite_leaves_weights_and_optimizer_alone(tmp_path, monkeypatch):
    this = open_run(recipe_of(irl__steps=0), tmp_path / "run")
    seen = {}

    def look(record):
        if record["kind"] == "rl":
            own = [p.detach().clone() for p in this.policy.model.parameters()]
            seen[record["step"]] = own, state_of(this.optimizer)

    this.track.listeners.append(look)
    with spoilt(monkeypatch, rl, "policy_loss", {3, 4}):
        train(this)
    assert [r["step"] for r in learnt(tmp_path / "run") if r.get("skipped")] == [3, 4]
    for (before, moments), (after, then) in ((seen[2], seen[3]), (seen[3], seen[4])):
        assert all(map(torch.equal, before, after))
        assert all(torch.equal(a[k], b[k]) for a, b in zip(moments, then, strict=True) for k in a)
    assert not all(map(torch.equal, seen[4][0], seen[5][0]))  # it goes on
    assert all(bool(w.isfinite().all()) for w in weights(tmp_path / "run").values())


@pytest.mark.parametrize("phase", ["rl", "irl"])
def test_updates_that_stay_not_finite_end_the_run_with_its_good_weights(
    phase, tmp_path, monkeypatch
):
    module, name = (rl, "policy_loss") if phase == "rl" else (irl, "forward_kl")
    recipe = recipe_of(checkpoint={"every": 2, "keep": 1}, irl__steps=4 * (phase == "irl"))
    bad = {3, 4, 5, 6, 7} if phase == "rl" else {2, 3, 4}
    with spoilt(monkeypatch, module, name, bad), pytest.raises(RunFailed) as said:
        run(recipe, tmp_path / "run")
    step = 5 if phase == "rl" else 3
    assert f"after step {step} 3 updates in a row were skipped" in str(said.value)
    assert str(said.value).count(f"stop-{step:06d}") == 1
    assert warnings(tmp_path / "run")[-1] == (step, str(said.value))
    # Of the stop the good weights, and not only those of the last checkpoint.
    kept = load_file(tmp_path / "run" / "checkpoints" / f"stop-{step:06d}" / "model.safetensors")
    assert all(bool(weight.isfinite().all()) for weight in kept.values())
    run(recipe, tmp_path / "run", resume=True)  # the fault is gone
    assert checkpoints(tmp_path / "run") == ["step-000006"]


def test_an_irl_phase_that_goes_well_does_not_hide_that_rl_learns_nothing(tmp_path, monkeypatch):
    with spoilt(monkeypatch, rl, "policy_loss", range(1, 99)), pytest.raises(RunFailed) as said:
        run(recipe_of(), tmp_path / "run")
    assert "after step 3 3 updates in a row were skipped" in str(said.value)
    texts = [text for _, text in warnings(tmp_path / "run")]
    assert sum("the update was skipped" in text for text in texts) == 1
    assert not any("Raise rl.lr" in text for text in texts)
    with spoilt(monkeypatch, rl, "policy_loss", {1, 4}):  # one at a time is no end
        run(recipe_of(), tmp_path / "other")
    texts = [text for _, text in warnings(tmp_path / "other")]
    assert sum("the update was skipped" in text for text in texts) == 2


def poisoned(this, step):
    """A listener that makes a weight NaN after a step's update, as a failing device might."""

    def listen(record):
        if (record["kind"], record["step"]) == ("rl", step):
            with torch.no_grad():
                next(this.policy.model.parameters())[0, 0] = NAN

    return listen


@pytest.mark.parametrize(
    ("step", "every"), [(3, 2), (4, 2), (4, 0)], ids=["drawing", "validating", "saving"]
)
def test_weights_that_are_not_finite_are_never_saved_nor_selected(step, every, tmp_path):
    """What comes next after the fault."""
    how = {"select": "honest" if every else "last", "every": every, "n": 4, "validation_n": 4}
    recipe = recipe_of(checkpoint={"every": 2, "keep": 1}, evaluation=how, irl__steps=0)
    this = open_run(recipe, tmp_path / "run")
    this.track.listeners.append(poisoned(this, step))
    with pytest.raises(RunFailed, match="a weight is not finite") as said:
        train(this)
    assert checkpoints(tmp_path / "run") == ["step-000002"]
    assert "the last good checkpoint is" in str(said.value)
    assert "step-000002" in str(said.value)
    assert warnings(tmp_path / "run")[-1][1] == str(said.value)
    run(recipe, tmp_path / "run", resume=True)
    assert told(tmp_path / "run")[-1]["kind"] == "done"


def test_a_rate_that_breaks_the_policy_is_said(tmp_path):
    recipe = recipe_of(rl__lr=10.0, rl__steps=12, irl__steps=0, irl__every=3, rl__entropy=0.01)
    run(recipe, tmp_path / "run")
    texts = [text for _, text in warnings(tmp_path / "run")]
    assert any("no answer was right in the last 3 steps" in text for text in texts)


# --- damage ---


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(recipe_of(**HOW), folder)
    return folder


HOW = {
    "evaluation": {"every": 2, "n": 4, "validation_n": 4, "select": "honest"},
    "irl__lr": None,  # at which the meter warns of nothing
}


def cut(folder, kill):
    with pytest.raises(Killed):
        run(recipe_of(**HOW), folder, listeners=[kill])


def same_run(folder, whole, but=(), steps=(2, 4, 6)):
    """Weights, rollouts, evaluations and records. A meter that was resumed in mid-phase reads from
    there, and says so: it is left out on both sides."""
    for step in steps:
        assert same_weights(weights(folder, step), weights(whole, step))
    assert stored(folder) == stored(whole)
    for name in sorted(path.name for path in (whole / "evals").glob("*.json")):
        assert (folder / "evals" / name).read_bytes() == (whole / "evals" / name).read_bytes()
        store = name.removesuffix(".json")
        rows, own = (EvalStore(place / "evals" / store).read() for place in (whole, folder))
        assert sorted(map(str, own)) == sorted(map(str, rows))
    late = {(r["of"], r["step"]) for r in told(folder) if "since_step" in r}

    def shown(place):
        kept = [r for r in told(place) if r["kind"] not in but]
        return [r for r in kept if (r.get("of"), r["step"]) not in late]

    assert shown(folder) == shown(whole)


def test_a_damaged_checkpoint_is_put_aside_and_the_run_ends_the_same(tmp_path, whole):
    folder = tmp_path / "run"
    cut(folder, kill_at("rl", 6))
    flip(folder / "checkpoints" / "step-000004" / "model.safetensors")
    run(recipe_of(**HOW), folder, resume=True)
    ((step, text),) = warnings(folder)
    assert step == 2
    assert "step-000004: model.safetensors is not as it was saved" in text
    assert "Going on from step-000002: steps 3 to 6 are taken again" in text
    same_run(folder, whole, but=("warning",))
    names = ["damaged-step-000004", "step-000002", "step-000004", "step-000006"]
    assert checkpoints(folder) == names


def test_a_run_without_a_sound_checkpoint_is_not_begun_anew_in_silence(tmp_path):
    folder = tmp_path / "run"
    cut(folder, kill_at("rl", 3))
    flip(folder / "checkpoints" / "step-000002" / "trainer.pt")
    with pytest.raises(UserError, match=r"every checkpoint is damaged \(step-000002: trainer.pt"):
        open_run(recipe_of(**HOW), folder, resume=True)


def halved(folder, whole):
    """A run that was cut after its second checkpoint."""
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "checkpoints" / "step-000006")
    return folder / "checkpoints" / "step-000004"


def test_a_checkpoint_without_checksums_is_gone_on_from_and_that_is_said(tmp_path, whole):
    """As versions wrote them that had none; nor did they say which data the run was of."""
    folder = tmp_path / "run"
    newest = halved(folder, whole)
    (newest / "checksums.json").unlink()
    state = json.loads((newest / "trainer.json").read_text())
    assert state.pop("data")
    (newest / "trainer.json").write_text(json.dumps(state))
    run(recipe_of(**HOW), folder, resume=True)
    ((step, text),) = warnings(folder)
    assert (step, text.startswith("step-000004 has no checksums")) == (4, True)
    same_run(folder, whole, but=("warning",))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("checksums.json", "[]"),
        ("checksums.json", "{}"),
        ("trainer.json", "[]"),
        ("trainer.json", "{}"),
        ("trainer.json", '{"step": 4, "cursor": -1, "version": 4}'),
        ("trainer.json", '{"step": 2, "cursor": 8, "version": 2}'),
    ],
)
def test_json_that_is_no_state_of_a_run_is_damage_too(name, text, tmp_path, whole):
    newest = halved(tmp_path / "run", whole)
    if name == "trainer.json":
        (newest / "checksums.json").unlink()  # which would have found it
    (newest / name).write_text(text)
    this = open_run(recipe_of(**HOW), tmp_path / "run", resume=True)
    assert this.start == 2
    assert f"step-000004: it cannot be read: {name} " in warnings(tmp_path / "run")[-1][1]


def test_a_state_that_lacks_a_part_is_one_sentence_with_the_fix(tmp_path, whole):
    newest = halved(tmp_path / "run", whole)
    (newest / "checksums.json").unlink()
    torch.save({"optimizer": {}}, newest / "trainer.pt")
    with pytest.raises(UserError, match=r"trainer.pt: it lacks irl_optimizer, probe\..*or remove"):
        open_run(recipe_of(**HOW), tmp_path / "run", resume=True)


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", "rollouts", "evals"])
def test_a_file_for_a_folder_and_the_reverse_are_said_before_any_work(name, tmp_path, whole):
    halved(tmp_path / "run", whole)
    path = tmp_path / "run" / name
    if path.is_dir():
        shutil.rmtree(path)
        path.touch()
    else:
        path.unlink()
        path.mkdir()
    with pytest.raises(UserError, match=rf"{name}: it is no (file|folder)\. Put the run's own"):
        open_run(recipe_of(**HOW), tmp_path / "run", resume=True)


def test_strange_files_in_a_run_are_left_alone(tmp_path, whole):
    folder = tmp_path / "run"
    halved(folder, whole)
    strange = ["rollouts/own.draft/", "evals/own.draft/", "rollouts/notes.txt", "notes.txt"]
    strange += ["checkpoints/step-000002.1.draft", "checkpoints/stop-000001", "checkpoints/own/"]
    for name in strange:
        (folder / name).mkdir() if name.endswith("/") else (folder / name).touch()
    run(recipe_of(**HOW), folder, resume=True)
    same_run(folder, whole)


def test_rollouts_that_the_next_irl_phase_learns_from_are_missed_at_once(tmp_path, whole):
    """Without them it would learn from others than the run that was not cut, and say nothing."""
    folder = tmp_path / "run"
    halved(folder, whole)
    shutil.move(folder / "rollouts", tmp_path / "kept")
    with pytest.raises(UserError, match=r"the rollouts of step 4 are missing, and the next IRL"):
        open_run(recipe_of(**HOW), folder, resume=True)
    shutil.rmtree(folder / "rollouts")
    shutil.move(tmp_path / "kept", folder / "rollouts")
    (folder / "rollouts" / "phase-000001-000003.parquet").unlink()  # of a phase that is over
    run(recipe_of(**HOW), folder, resume=True)
    assert same_weights(weights(folder), weights(whole))


def test_a_run_does_not_go_on_with_other_answers(tmp_path):
    """The recipe names a file; what is in it may have changed."""
    data = tmp_path / "train.jsonl"

    def write(gold):
        made = [{"problem": f"{i}?\n\nA) x\nB) y", "answer": "AB"[i % 2]} for i in range(20)]
        made[7]["answer"] = gold
        data.write_text("".join(json.dumps(row) + "\n" for row in made))

    task = {"type": "choice", "data": str(data), "template": "plain", "validation": 4, "test": 4}
    recipe = recipe_of(task=task, rl__steps=2, irl__steps=0, model={"path": str(SHIPPED_BASE)})
    write("B")
    run(recipe, tmp_path / "run")
    write("A")
    with pytest.raises(UserError, match="the questions or answers are not those the run began"):
        open_run(recipe, tmp_path / "run", resume=True)
    write("B")
    open_run(recipe, tmp_path / "run", resume=True)


def test_a_damaged_checkpoint_is_not_selected(tmp_path):
    recipe = recipe_of(evaluation__select="paper", evaluation__final=True, irl__steps=0)

    def damaged(record):
        if (record["kind"], record["step"]) == ("checkpoint", 6):
            flip(tmp_path / "run" / "checkpoints" / "step-000004" / "model.safetensors")

    run(recipe, tmp_path / "run", listeners=[damaged])
    names = [r["name"] for r in told(tmp_path / "run") if r["kind"] == "eval"]
    assert names == ["select-000002", "select-000006", "test"]
    assert "step-000004 is damaged, and not selected" in warnings(tmp_path / "run")[-1][1]


def test_a_kill_while_selecting_leaves_each_evaluation_on_record_once(tmp_path):
    recipe = recipe_of(evaluation__select="paper", evaluation__final=True, irl__steps=0)
    with pytest.raises(Killed):
        run(recipe, tmp_path / "run", listeners=[kill_at("eval", 4)])
    run(recipe, tmp_path / "run", resume=True)
    names = [r["name"] for r in told(tmp_path / "run") if r["kind"] == "eval"]
    assert names == ["select-000002", "select-000004", "select-000006", "test"]


def test_lines_of_the_record_that_cannot_be_read_are_said(tmp_path):
    folder = tmp_path / "run"
    cut(folder, kill_at("rl", 3))
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = "\0" * 40  # a block that never reached the disk
    path.write_text(
        "\n".join(lines) + '\n{"kind": "rl", "st'
    )  # and a line cut short, which is usual
    open_run(recipe_of(**HOW), folder, resume=True)
    assert warnings(folder)[-1] == (
        2,
        "1 lines of metrics.jsonl could not be read, and are left out",
    )


@pytest.mark.parametrize("lost", ["metrics.jsonl", "recipe.yaml"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_run_with_a_file_missing_is_not_taken_for_an_empty_folder(tmp_path, whole, lost, resume):
    folder = tmp_path / "run"
    cut(folder, kill_at("rl", 3))
    (folder / lost).unlink()
    before = sorted(path.name for path in folder.rglob("*"))
    for recipe in (recipe_of(**HOW), recipe_of(**HOW, rl__lr=0.5)):
        with pytest.raises(UserError) as said:
            open_run(recipe, folder, resume)
        assert str(folder) in str(said.value)
    if resume and lost == "recipe.yaml":
        assert "recipe.yaml is missing" in str(said.value)
    assert sorted(path.name for path in folder.rglob("*")) == before
    if resume and lost == "metrics.jsonl":  # the way out that the error of the same recipe names
        with pytest.raises(UserError, match=r"metrics.jsonl: .*make an empty one"):
            open_run(recipe_of(**HOW), folder, resume)
        (folder / lost).touch()
        open_run(recipe_of(**HOW), folder, resume)


def test_all_that_a_checkpoint_rests_on_is_on_the_disk_before_it_has_its_name(
    tmp_path, monkeypatch
):
    synced, named = set(), []

    def fsync(number, real=os.fsync):
        synced.add(os.fstat(number).st_ino)
        real(number)

    def rename(path, target, real=Path.rename):
        if Path(target).parent.name == "checkpoints":
            run = Path(target).parents[1]
            needed = [run / "metrics.jsonl", *path.rglob("*"), path]
            needed += [p for place in ("rollouts", "evals") for p in (run / place).rglob("*")]
            assert [p for p in needed if p.stat().st_ino not in synced] == []
            named.append((Path(target).name, len(needed)))
            synced.clear()
        return real(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    run(recipe_of(**HOW), tmp_path / "run")
    assert [name for name, _ in named] == ["step-000002", "step-000004", "step-000006"]
    assert min(count for _, count in named) > 10
    assert (tmp_path / "run" / "checkpoints").stat().st_ino in synced  # its name is, after it


# --- full disks ---


@contextmanager
def at_most(size):
    """No file of this process may grow beyond some bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_one_paragraph_and_the_run_goes_on_when_there_is_room(
    tmp_path, whole, capsys
):
    """Less and less room is missing: for rollouts, the record, the weights, the optimizer."""
    recipe, folder = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(dump_recipe(recipe_of(**HOW)))
    sizes = {
        "rollouts": 5000,
        "metrics.jsonl": 9000,
        "model.safetensors": (path := whole / "checkpoints/step-000002/model.safetensors")
        .stat().st_size - 1,
        "trainer.pt": path.with_name("trainer.pt").stat().st_size - 1,
    }  # fmt: skip
    for size in sizes.values():
        with at_most(size):
            assert sps("train", recipe, "--out", folder, "--resume") == 1
        said = capsys.readouterr().err
        assert "Traceback" not in said
        (line,) = [line for line in said.splitlines() if line.startswith("failed")]
        assert "--resume" in line
        assert line.startswith(f"failed: {folder}")
    assert not list(folder.rglob("checkpoints/*.draft"))  # the space is given back
    assert sps("train", recipe, "--out", folder, "--resume") == 0
    same_run(folder, whole)


def test_a_permission_that_is_lost_in_mid_run_is_one_paragraph(tmp_path, whole, capsys):
    recipe, folder = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(dump_recipe(recipe_of(**HOW)))
    halved(folder, whole)
    (folder / "rollouts").chmod(0o555)
    if os.access(folder / "rollouts", os.W_OK):
        pytest.skip("this user may write everywhere")
    assert sps("train", recipe, "--out", folder, "--resume") == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert f"failed: {folder / 'rollouts'}" in said
    assert "permission is missing" in said
    (folder / "rollouts").chmod(0o755)
    assert sps("train", recipe, "--out", folder, "--resume") == 0
    same_run(folder, whole)


# --- asked to stop ---


def signalled(kind, step, nth=1):
    """A listener that sends SIGTERM after the nth record of a kind at a step."""
    seen = []

    def listen(record):
        seen.append((record["kind"], record["step"]) == (kind, step))
        if seen[-1] and sum(seen) == nth:
            os.kill(os.getpid(), signal.SIGTERM)

    return listen


def stopped(folder, listener):
    this = open_run(recipe_of(**HOW), folder, True, [listener])
    with this.stop.listening(), pytest.raises(Stopped) as said:
        train(this)
    assert told(folder)[-1]["kind"] == "stopped"
    return str(said.value)


STOPS = {
    "before_the_first_step": ("eval", 0, []),
    "at_a_step": ("rl", 3, ["step-000002", "stop-000003"]),
    "before_a_validation": ("rl", 2, ["stop-000002"]),
    "in_irl": ("irl", 3, ["step-000002", "stop-000003"]),
    "in_the_last_irl": ("irl", 6, ["step-000002", "step-000004", "stop-000006"]),
    "at_a_checkpoint": ("checkpoint", 4, ["step-000002", "step-000004"]),
}


@pytest.mark.parametrize("name", sorted(STOPS))
def test_a_run_that_is_asked_to_stop_goes_on_as_if_it_was_not(name, tmp_path, whole):
    kind, step, saved = STOPS[name]
    folder = tmp_path / "run"
    said = stopped(folder, signalled(kind, step))
    assert "SIGTERM" in said
    assert "go on with --resume" in said
    assert (checkpoints(folder) if saved else []) == saved
    run(recipe_of(**HOW), folder, resume=True)
    same_run(folder, whole)
    assert checkpoints(folder) == ["step-000002", "step-000004", "step-000006"]


@pytest.mark.parametrize(
    ("kind", "step", "saved"),
    [("rl", 3, "stop-000003"), ("rl", 2, "stop-000002"), ("checkpoint", 6, "step-000006")],
    ids=["rl", "validation", "test"],
)
def test_drawing_is_left_at_once_and_what_was_done_is_kept(
    kind, step, saved, tmp_path, whole, monkeypatch
):
    """SIGTERM at the third completion after a record; no further one is drawn."""
    real, folder, drawn = NativeEngine.generate, tmp_path / "run", []

    def generate(engine, requests, sampling):
        for completion in real(engine, requests, sampling):
            if armed:
                drawn.append(completion)
            if len(drawn) == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            yield completion

    armed = []

    def arm(record):
        if (record["kind"], record["step"]) == (kind, step):
            armed.append(record)

    monkeypatch.setattr(NativeEngine, "generate", generate)
    stopped(folder, arm)
    assert len(drawn) == 3
    assert told(folder)[-1]["step"] == step
    assert checkpoints(folder)[-1] == saved
    monkeypatch.setattr(NativeEngine, "generate", real)
    run(recipe_of(**HOW), folder, resume=True)
    same_run(folder, whole)


def test_a_run_stops_after_the_time_it_was_given(tmp_path, capsys):
    endless = ["--set", "rl.steps=1000000", "--set", "checkpoint.every=0"]
    how = [SPS, *SMALL, *endless, "--out", tmp_path / "run"]
    assert sps("train", *how, "--stop-after", "2s") == 0
    said = capsys.readouterr().err
    assert "--stop-after 2s" in said
    assert "go on with --resume" in said
    for wrong in ("soon", "0s", "99999999999h"):
        assert sps("train", *how, "--stop-after", wrong) == 2
        assert "write a time such as 90s, 25m" in capsys.readouterr().err


WAITING = """
import time
from sps.run import stop
stop._ONE = 0.0
this = stop.Stop()
with this.listening():
    print("ready", flush=True)
    while not this.asked:
        time.sleep(0.01)
    print(this.asked, flush=True)
    time.sleep(600)
"""


def test_a_second_sigterm_ends_the_process_at_once():
    command = [sys.executable, "-c", WAITING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "SIGTERM\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


def test_sigterm_to_the_program_is_a_success_that_says_how_to_go_on(tmp_path):
    folder = tmp_path / "run"
    more = ["--out", str(folder), *SMALL, "--set", "rl.steps=100000", "--set", "checkpoint.every=0"]
    program = [sys.executable, "-m", "sps", "train", SPS, *more]
    with subprocess.Popen(program, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as running:
        until = time.monotonic() + 120
        while not (folder / "rollouts" / "step-000001.parquet").exists():
            assert running.poll() is None, running.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        text = running.communicate(timeout=60)[1].decode()
    assert running.returncode == 0
    assert "(SIGTERM); everything is kept: go on with --resume" in text
    assert "Traceback" not in text
    assert latest_checkpoint(folder / "checkpoints") is None
