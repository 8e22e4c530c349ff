"""The endpoint engine against a real HTTP server on this machine."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sps.errors import UserError
from sps.rollout.openai import OpenAIEngine
from sps.rollout.texts import Ask
from sps.types import Sampling

SAMPLING = Sampling(n=2, max_new_tokens=32, temperature=0.7, seed=5)


class Server:
    """Answers as `reply(path, body, number)` says: (status, headers, text)."""

    def __init__(self, reply):
        outer, self.requests, self.busy, self.most = self, [], 0, 0
        self.lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    number = len(outer.requests)
                    outer.requests.append((self.path, body, dict(self.headers)))
                    outer.busy += 1
                    outer.most = max(outer.most, outer.busy)
                status, headers, text = reply(self.path, body, number)
                with outer.lock:
                    outer.busy -= 1
                data = text.encode()
                self.send_response(status)
                for key, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def chat_reply(path, body, number):
    text = f"{body['messages'][-1]['content']} seed {body['seed']}"
    choice = {
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
        "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]},
    }
    return 200, {}, json.dumps({"choices": [choice], "usage": {"completion_tokens": 2}})


def asks(count, samples=(0, 1)):
    return [Ask(i, [{"role": "user", "content": f"q{i}"}], samples) for i in range(count)]


def engine(server, **more):
    return OpenAIEngine(server.url, "m", **{"first_wait": 0.01, "concurrency": 4, **more})


def test_chat_samples_come_back_each_once_with_likelihood_and_length():
    with Server(chat_reply) as server:
        written = list(engine(server, api_key="k").write(asks(3), SAMPLING))
    assert sorted((w.index, w.sample) for w in written) == [
        (i, s) for i in range(3) for s in (0, 1)
    ]
    assert {(w.length, w.sum_logprob, w.finished) for w in written} == {(2, -0.75, True)}
    assert len({w.text for w in written}) == 6  # every sample has a seed of its own
    path, body, headers = server.requests[0]
    assert path == "/v1/chat/completions"
    assert (body["model"], body["max_tokens"], body["temperature"], body["n"]) == ("m", 32, 0.7, 1)
    assert headers["Authorization"] == "Bearer k"


def test_a_sample_asked_for_again_has_the_same_seed():
    with Server(chat_reply) as server:
        first = {(w.index, w.sample): w.text for w in engine(server).write(asks(2), SAMPLING)}
        again = {(w.index, w.sample): w.text for w in engine(server).write(asks(2, (1,)), SAMPLING)}
    assert again == {key: first[key] for key in again}


def test_plain_text_goes_to_completions_and_length_is_cut_off():
    def reply(path, body, number):
        logprobs = {"token_logprobs": [None, -1.0, -2.0]}
        choice = {"text": body["prompt"] + "!", "finish_reason": "length", "logprobs": logprobs}
        return 200, {}, json.dumps({"choices": [choice]})

    with Server(reply) as server:
        (written,) = engine(server).write([Ask(0, "hello", (0,))], SAMPLING)
    assert server.requests[0][0] == "/v1/completions"
    assert (written.text, written.finished, written.sum_logprob) == ("hello!", False, -3.0)


def test_no_more_requests_are_under_way_than_allowed():
    def reply(path, body, number):
        time.sleep(0.02)
        return chat_reply(path, body, number)

    with Server(reply) as server:
        assert len(list(engine(server, concurrency=3).write(asks(10), SAMPLING))) == 20
    assert server.most == 3


def test_passing_failures_are_tried_again():
    def reply(path, body, number):
        failures = {
            0: (503, {}, "busy"),
            1: (429, {"Retry-After": "0.05"}, ""),
            2: (200, {}, "<html>"),
        }
        return failures.get(number) or chat_reply(path, body, number)

    with Server(reply) as server:
        written = list(engine(server).write(asks(1, (0,)), SAMPLING))
    assert len(written) == 1
    assert len(server.requests) == 4  # three failures and the answer


def test_log_probabilities_are_given_up_where_refused():
    def reply(path, body, number):
        if "logprobs" in body:
            return 400, {}, '{"error": "logprobs are not supported"}'
        choice = {"message": {"content": "x"}, "finish_reason": "stop"}
        return 200, {}, json.dumps({"choices": [choice]})

    with Server(reply) as server:
        # That is another question, not another try.
        (written,) = engine(server, retries=0).write(asks(1, (0,)), SAMPLING)
    assert (written.text, written.sum_logprob, written.length) == ("x", None, None)


@pytest.mark.parametrize(
    ("message", "reason", "text"),
    [
        ({"content": "4", "reasoning_content": "2 + 2"}, "stop", "<think>\n2 + 2\n</think>\n4"),
        ({"content": "4", "reasoning": "2 + 2"}, "stop", "<think>\n2 + 2\n</think>\n4"),
        ({"content": None, "reasoning": "2 +"}, "length", "<think>\n2 +"),
        ({"reasoning_content": "2 +"}, "length", "<think>\n2 +"),
        ({"content": None}, "length", ""),
        ({"content": "half \ud83d"}, "stop", "half ?"),  # of a pair: it can be stored nowhere
    ],
)
def test_what_was_thought_stands_before_what_was_said(message, reason, text):
    choice = {"message": message, "finish_reason": reason}
    with Server(lambda *_: (200, {}, json.dumps({"choices": [choice]}))) as server:
        (written,) = engine(server).write(asks(1, (0,)), SAMPLING)
    assert (written.text, written.finished) == (text, reason == "stop")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((401, {}, "no"), "API key is missing or wrong.*--api-key-env"),
        ((404, {}, "no"), "no model 'm'.*ends in /v1"),
        ((422, {}, "bad max_tokens"), "refused the request.*bad max_tokens"),
        ((200, {}, '{"hello": 1}'), "no completion.*hello"),
        ((200, {}, "[1]"), "no completion"),
        ((200, {}, '{"choices": [{"message": {}}]}'), "no completion"),
        ((200, {}, "<html>garbage"), "gave up after 2 tries.*not JSON"),
        ((500, {}, "boom"), "gave up after 2 tries: 500: boom"),
    ],
)
def test_an_endpoint_that_answers_garbage_is_an_error_with_its_fix(answer, message):
    with Server(lambda *_: answer) as server, pytest.raises(UserError, match=message):
        list(engine(server, retries=1).write(asks(1), SAMPLING))


def test_after_an_error_nothing_is_waited_for_or_asked_again():
    over, under_way = threading.Event(), threading.Barrier(3, timeout=10)
    waited_for = []

    def reply(path, body, number):
        under_way.wait()
        if number == 1 and not over.wait(10):
            waited_for.append(number)
        return (401, {}, "no") if number == 0 else (503, {"Retry-After": "10"}, "")

    with Server(reply) as server:
        with pytest.raises(UserError, match="API key"):
            list(engine(server, concurrency=3).write(asks(3, (0,)), SAMPLING))
        over.set()
    assert not waited_for
    assert len(server.requests) == 3


def test_an_endpoint_that_is_down_is_said_after_the_last_try():
    with Server(chat_reply) as server:
        url = server.url
    down = OpenAIEngine(url, "m", retries=1, first_wait=0.01)
    with pytest.raises(
        UserError, match=r"gave up after 2 tries: ConnectionRefused.*server running"
    ):
        list(down.write(asks(1), SAMPLING))


@pytest.mark.parametrize(
    "endpoint",
    ["ftp://x", "http://localhost:80a/v1", "http://localhost:99999/v1", "http://[::1/v1"],
)
def test_a_word_or_a_bad_port_is_not_a_url(endpoint):
    with pytest.raises(UserError, match="not a URL"):
        OpenAIEngine(endpoint, "m")
