"""What every TextEngine promises."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sps.evaluation.evaluate import PolicyTexts
from sps.rollout.fake import FakeEngine
from sps.rollout.native.engine import NativeEngine
from sps.rollout.openai import OpenAIEngine
from sps.rollout.texts import Ask, Written
from sps.types import Sampling

LIMIT = 6
SAMPLING = Sampling(3, LIMIT, seed=4)


class Endpoint(BaseHTTPRequestHandler):
    """Writes as many words as the seed says, at most as many as are allowed."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        length = 1 + body["seed"] % 9
        words = [f"{body['seed']}"] * min(length, body["max_tokens"])
        choice = {
            "text": " ".join(words),
            "finish_reason": "stop" if length < body["max_tokens"] else "length",
            "logprobs": {"token_logprobs": [-1.0] * len(words)},
        }
        usage = {"completion_tokens": len(words)}
        data = json.dumps({"choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *given):
        pass


@pytest.fixture(scope="module")
def endpoint():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(params=["openai", "native", "fake"])
def texts(request, policy):
    if request.param == "openai":
        made = OpenAIEngine(request.getfixturevalue("endpoint"), "m", concurrency=3)
    elif request.param == "native":
        eos = [*range(1, 20), *policy.eos_ids]  # many ends: texts of many lengths
        made = PolicyTexts(policy, NativeEngine(policy.model, eos, policy.pad_id))
    else:
        made = PolicyTexts(policy, FakeEngine(100, range(20)))
    yield made
    made.close()


def asks(samples=(0, 1, 2)):
    return [Ask(i, f"{i} 1 -> 2 :", samples) for i in (0, 5)]


def write(texts, asked, sampling=SAMPLING):
    out: dict[tuple[int, int], Written] = {}
    for w in texts.write(asked, sampling):
        assert (w.index, w.sample) not in out, "a sample came twice"
        out[w.index, w.sample] = w
    assert set(out) == {(a.index, s) for a in asked for s in a.samples}
    return out


def test_every_sample_comes_once_and_as_it_is_described(texts):
    kinds = set()
    many = [Ask(i, "1 1 -> 2 :", tuple(range(12))) for i in (0, 5)]
    for w in write(texts, many).values():
        assert isinstance(w.text, str)
        assert 1 <= w.length <= LIMIT
        assert w.finished or w.length == LIMIT
        assert w.sum_logprob < 0
        kinds.add(w.finished)
    assert kinds == {True, False}


def test_a_sample_does_not_depend_on_what_else_is_asked(texts):
    whole = write(texts, asks())
    parts = write(texts, asks((2,))) | write(texts, asks((1, 0))[::-1])
    assert {k: w.text for k, w in parts.items()} == {k: w.text for k, w in whole.items()}


def test_seed_and_sample_change_what_is_drawn(texts):
    one, other = (write(texts, asks(), Sampling(3, LIMIT, seed=seed)) for seed in (4, 5))
    assert len({w.text for w in one.values()}) > 1
    assert [w.text for w in one.values()] != [w.text for w in other.values()]


def test_nothing_asked_gives_nothing(texts):
    assert list(texts.write([], SAMPLING)) == []


def test_a_stream_may_be_left_and_another_begun(texts):
    stream = texts.write(asks(), SAMPLING)
    next(iter(stream))
    stream.close()
    write(texts, asks())
