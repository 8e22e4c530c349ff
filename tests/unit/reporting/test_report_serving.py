"""Watching, trackers, and the commands."""

import contextlib
import http.client
import json
import socket
import struct
import sys
import threading
import types
from pathlib import Path

import pytest
from made_folders import make_run

from sps.commands.report import run_diagnose, run_report
from sps.errors import UserError
from sps.progress.trackers import make_tracker, numbers
from sps.reporting.watch import folder_stamp, make_server


@pytest.fixture
def served(tmp_path):
    folder = make_run(tmp_path / "run")
    server = make_server(folder, 0, rest=0.0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield folder, server
    server.shutdown()
    thread.join()
    server.server_close()


def _get(server, path, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    headers = {"Host": host} if host else {}
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_watch_serves_a_page_that_follows_the_run(served):
    folder, server = served
    assert server.server_address[0] == "127.0.0.1"
    status, page = _get(server, "/")
    _, stamp = _get(server, "/stamp")
    assert status == 200
    assert f'data-live="{stamp}"' in page
    assert "connect-src 'self'" in page
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "warning", "step": 7, "time": 1, "text": "the disk is nearly full"}\n')
    _, later = _get(server, "/stamp")
    assert later != stamp
    assert "the disk is nearly full" in _get(server, "/")[1]


def test_watch_leaves_those_who_never_finish(served, monkeypatch, capfd):
    _, server = served
    monkeypatch.setattr(server.RequestHandlerClass, "timeout", 0.2)
    monkeypatch.setattr("sps.reporting.watch._PATIENCE", 0.2)
    silent, halting = (socket.create_connection(server.server_address) for _ in range(2))
    halting.sendall(b"GET / HT")
    for client in (silent, halting):
        client.settimeout(60)
        assert client.recv(1) == b""  # the server has hung up
        client.close()
    greedy = socket.create_connection(server.server_address)
    greedy.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
    greedy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    greedy.close()  # without having taken the page
    assert _get(server, "/stamp")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_watch_leaves_one_who_asks_a_byte_at_a_time(served, monkeypatch):
    _, server = served
    monkeypatch.setattr("sps.reporting.watch._PATIENCE", 0.3)
    with socket.create_connection(server.server_address) as client:
        client.settimeout(0.05)
        sent, open_still = 0, True
        while open_still and sent < 200:  # 10 s, half of what a silent one has
            with contextlib.suppress(TimeoutError):
                open_still = client.recv(1) != b""
            with contextlib.suppress(OSError):
                client.sendall(b"G")
                sent += 1
    assert not open_still


def test_watch_answers_only_this_machine_and_only_its_pages(served):
    _, server = served
    assert _get(server, "/stamp", host="evil.example")[0] == 403
    assert _get(server, "/../recipe.yaml")[0] == 404


def test_watch_of_nothing_and_on_a_taken_port_is_the_users_error(served, tmp_path):
    folder, server = served
    with pytest.raises(UserError, match="no such folder"):
        make_server(tmp_path / "nowhere", 0)
    with pytest.raises(UserError, match="cannot listen"):
        make_server(folder, server.server_address[1])


def test_stamp_is_of_names_sizes_and_times(tmp_path):
    first = folder_stamp(tmp_path)
    (tmp_path / "a.json").write_text("1")
    assert folder_stamp(tmp_path) != first
    (tmp_path / "b.txt").write_text("no record")
    assert folder_stamp(tmp_path) == folder_stamp(tmp_path)


def test_numbers_of_records():
    record = {"kind": "eval", "step": 5, "time": 1.0, "name": "validation-000005", "n": 8}
    record |= {"pass_at_k": {"8": [0.5, 0.4, 0.6]}, "distinct": [1.5, 1, 2], "pcmd": None}
    told = {"eval/validation/pass@8": 0.5, "eval/validation/n": 8.0}
    assert numbers(record) == told | {"eval/validation/distinct": 1.5}
    assert numbers({"kind": "meter", "step": 5, "of": "irl", "kl": 0.1}) == {"meter/irl/kl": 0.1}


@pytest.mark.parametrize("key", ["trackio", "wandb"])
def test_tracker_gets_every_number_and_is_finished(monkeypatch, tmp_path, key):
    seen = []
    fake = types.ModuleType(key)
    fake.define_metric = lambda *a, **k: None
    fake.log = lambda found, step=None: seen.append(
        found if step is None else {**found, "step": step}
    )
    fake.finish = lambda: seen.append("finished")
    fake.init = lambda **k: fake
    monkeypatch.setitem(sys.modules, key, fake)
    listen = make_tracker(key, "grpo", tmp_path, {"seed": 0})
    listen({"kind": "rl", "step": 3, "time": 0.0, "reward": 0.5})
    listen({"kind": "done", "step": 3, "time": 0.0})
    assert seen == [{"rl/reward": 0.5, "step": 3}, "finished"]


def test_tensorboard_gets_scalars(monkeypatch, tmp_path):
    seen = []

    class Writer:
        def __init__(self, folder):
            seen.append(Path(folder).name)

        def add_scalar(self, *args):
            seen.append(args)

        def flush(self):
            pass

        def close(self):
            seen.append("closed")

    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    listen = make_tracker("tensorboard", "grpo", tmp_path, {})
    listen({"kind": "rl", "step": 3, "time": 0.0, "reward": 0.5})
    listen({"kind": "done", "step": 3, "time": 0.0})
    assert seen == ["tensorboard", ("rl/reward", 0.5, 3), "closed"]


def test_tracker_that_is_not_there_is_the_users_error(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"sps-rl\[track\]"):
        make_tracker("wandb", "x", tmp_path, {})
    with pytest.raises(UserError, match="choose one of trackio, wandb, tensorboard"):
        make_tracker("mlflow", "x", tmp_path, {})


def test_run_diagnose_writes_numbers_and_says_the_gist(tmp_path):
    folder = make_run(tmp_path / "run")
    said = run_diagnose(folder)
    assert "Pass@16" in said
    assert "questions gained" in said
    assert "distinct right solutions a question, PCMD" in said
    assert json.loads((folder / "diagnosis.json").read_text())["name"] == "made"
    with pytest.raises(UserError, match="no such folder"):
        run_diagnose(tmp_path / "nowhere")


def test_run_report_writes_beside_the_run(tmp_path):
    folder = make_run(tmp_path / "run")
    assert run_report([folder]) == str(folder / "report.html")
    assert (folder / "report.html").stat().st_size > 1_000_000


def test_the_folder_that_runs_are_in_is_refused_with_the_first_of_them(tmp_path):
    """Also where a recipe of the user's own lies beside it."""
    (tmp_path / "recipe.yaml").write_text("name: mine")
    (tmp_path / "runs").mkdir()
    with pytest.raises(UserError, match=r"runs: holds no run .*; give the folder of a run$"):
        run_report([tmp_path / "runs"])
    run = make_run(tmp_path / "runs" / "b")
    make_run(tmp_path / "runs" / "c")
    with pytest.raises(UserError, match=f"runs: holds no run .*; give {run}$"):
        run_report([tmp_path / "runs"])


def test_folders_that_hold_no_run_are_refused_with_what_to_give(tmp_path):
    run = make_run(tmp_path / "compare" / "sps" / "seed-0")
    (tmp_path / "empty").mkdir()
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "eval.json").write_text("{}")
    (tmp_path / "eval" / "results.json").write_text("{}")
    for command in (run_diagnose, lambda folder: run_report([folder])):
        with pytest.raises(UserError, match=r"empty: holds no run .*; give the folder of a run"):
            command(tmp_path / "empty")
        with pytest.raises(UserError, match=f"holds no run .*; give {run}$"):
            command(run / "checkpoints")
        with pytest.raises(
            UserError, match=r"eval: this is an evaluation by sps eval; .*--compare"
        ):
            command(tmp_path / "eval")
        assert [p.name for p in (tmp_path / "empty").iterdir()] == []
    with pytest.raises(UserError, match=f"this is a comparison; give .*, such as {run}$"):
        run_diagnose(tmp_path / "compare")
