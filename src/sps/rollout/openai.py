"""Texts from an OpenAI-compatible endpoint (vLLM, SGLang, llama.cpp, a provider) over HTTP."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit

from sps.errors import UserError
from sps.rollout.texts import Ask, Written
from sps.types import Sampling

_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504}  # worth another try


class _Refused(Exception):
    """The endpoint answered with an error that trying again does not mend."""

    def __init__(self, status: int, body: str):
        super().__init__(f"{status}: {body[:300]}")
        self.status, self.body = status, body


class _Passing(Exception):
    """The endpoint failed in a way that may pass; `after` is how long it asked us to wait."""

    def __init__(self, why: str, after: float = 0.0):
        super().__init__(why)
        self.after = after


class OpenAIEngine:
    """Chat messages go to /chat/completions, plain text to /completions; one request a sample."""

    def __init__(
        self,
        endpoint: str,  # such as http://localhost:8000/v1
        model: str,
        *,
        api_key: str = "",
        concurrency: int = 16,  # requests under way at once
        retries: int = 6,
        timeout: float = 600.0,  # seconds without a byte
        first_wait: float = 0.5,  # seconds before the second try; doubles each time
    ):
        parts = _parts(endpoint)
        self.endpoint, self.model, self.api_key = endpoint, model, api_key
        self.concurrency, self.retries = concurrency, retries
        self.timeout, self.first_wait = timeout, first_wait
        self._parts = parts
        self._logprobs = True  # until the endpoint says that it gives none
        self._local = threading.local()
        self._open: list[http.client.HTTPConnection] = []  # of every thread
        self._stop = threading.Event()

    def write(self, asks: Sequence[Ask], sampling: Sampling) -> Iterator[Written]:
        """Bounded concurrency: a sample is asked for only when an earlier one has come."""
        jobs = deque((ask, sample) for ask in asks for sample in ask.samples)
        under_way: set[Future[Written]] = set()
        self._stop.clear()
        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="endpoint")
        try:
            while jobs or under_way:
                while jobs and len(under_way) < self.concurrency:
                    under_way.add(pool.submit(self._one, *jobs.popleft(), sampling))
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            self.close()
            pool.shutdown(cancel_futures=True)
            while self._open:  # only now does no thread use one
                self._open.pop().close()

    def close(self) -> None:
        """Requests under way fail at once, and are not tried again."""
        self._stop.set()
        for connection in list(self._open):
            if (raw := connection.sock) is not None:
                with suppress(OSError):  # the other end was faster
                    socket.socket.shutdown(raw, socket.SHUT_RDWR)

    def _one(self, ask: Ask, sample: int, sampling: Sampling) -> Written:
        chat = not isinstance(ask.prompt, str)
        path = "/chat/completions" if chat else "/completions"
        reply = self._post(path, self._body(ask, sample, sampling, chat))
        try:
            choice = reply["choices"][0]
            text = _chat_text(choice) if chat else choice["text"]
            if not isinstance(text, str):
                raise TypeError("no text")
            # JSON can hold half a surrogate pair, which can be stored nowhere.
            text = text.encode("utf-8", "replace").decode("utf-8")
            usage = reply.get("usage") or {}
            logprobs = _logprobs(choice, chat)
            length = usage.get("completion_tokens") or (len(logprobs) if logprobs else None)
            finished = choice.get("finish_reason") != "length"
        except (KeyError, IndexError, TypeError, AttributeError):
            raise UserError(
                f"--endpoint {self.endpoint}: {path} answered something that is no completion: "
                f"{json.dumps(reply)[:200]}. Is it an OpenAI-compatible server, and is the URL the "
                "one that ends in /v1?"
            ) from None
        total = float(sum(logprobs)) if logprobs else None
        return Written(ask.index, sample, text, length, finished, total)

    def _body(self, ask: Ask, sample: int, sampling: Sampling, chat: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "n": 1,
            # Samples of one question must differ, and be the same when asked for again.
            "seed": (sampling.seed * 1_000_003 + ask.index) * 10_007 + sample & 0x7FFFFFFF,
        }
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if self._logprobs:
            body["logprobs"] = True if chat else 0
        return body | ({"messages": ask.prompt} if chat else {"prompt": ask.prompt})

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """One answer, with as many tries as it takes and is allowed."""
        pause, attempt = self.first_wait, 0
        while True:
            try:
                return self._request(path, body)
            except _Refused as error:
                if "logprob" in error.body and body.pop("logprobs", None) is not None:
                    self._logprobs = False
                    continue  # another question, not another try
                raise UserError(self._explain(error, path)) from None
            except _Passing as error:
                attempt += 1
                if attempt > self.retries or self._stop.is_set():
                    raise UserError(
                        f"--endpoint {self.endpoint}: gave up after {attempt} tries: {error}. "
                        "Is the server running, and is this its address? What was answered before "
                        "is stored; the same command goes on from there"
                    ) from None
                self._stop.wait(max(error.after, pause * random.uniform(0.75, 1.25)))
                pause = min(2 * pause, 30.0)

    def _request(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        try:
            connection = self._connection()
            where = self._parts.path.rstrip("/") + path
            connection.request("POST", where, json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read().decode("utf-8", errors="replace")
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            raise _Passing(f"{type(error).__name__}: {error}") from None
        if response.status in _AGAIN:
            after = response.headers.get("Retry-After", "")
            wait_for = min(float(after), 60.0) if after.replace(".", "", 1).isdigit() else 0.0
            raise _Passing(f"{response.status}: {content[:200]}", wait_for)
        if response.status >= 300:
            raise _Refused(response.status, content)
        try:
            reply = json.loads(content)
        except json.JSONDecodeError:
            raise _Passing(f"the answer is not JSON: {content[:120]!r}") from None
        return reply if isinstance(reply, dict) else {"answer": reply}

    def _connection(self) -> http.client.HTTPConnection:
        """One a thread, kept open; none after close(), which can only end what it can see."""
        if getattr(self._local, "connection", None) is None:
            kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
            kind = kinds[self._parts.scheme]
            host = str(self._parts.hostname)
            self._local.connection = kind(host, self._parts.port, timeout=self.timeout)
            self._open.append(self._local.connection)
        if self._local.connection.sock is None:
            self._local.connection.connect()
        if self._stop.is_set():
            raise ConnectionAbortedError("another request failed")
        return self._local.connection

    def _drop(self) -> None:
        self._open.remove(self._local.connection)
        self._local.connection.close()
        self._local.connection = None

    def _explain(self, error: _Refused, path: str) -> str:
        hints = {
            401: "the API key is missing or wrong; put it into the variable named by --api-key-env",
            403: "the API key may not use this model",
            404: f"there is no {path} or no model {self.model!r}; the URL usually ends in /v1",
        }
        hint = hints.get(error.status, "the server refused the request")
        return f"--endpoint {self.endpoint}: {hint} ({error})"


def _parts(endpoint: str) -> SplitResult:
    try:
        parts = urlsplit(endpoint if "//" in endpoint else f"http://{endpoint}")
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:  # what stands for the port is no number from 0 to 65535
        pass
    raise UserError(f"--endpoint {endpoint}: not a URL such as http://localhost:8000/v1")


def _chat_text(choice: dict[str, Any]) -> Any:
    """What was said, after what was thought; an answer cut off while thinking says nothing yet."""
    message = choice["message"]
    thought = message.get("reasoning_content") or message.get("reasoning")  # by kind of server
    said = message.get("content") if thought else message["content"]
    said = "" if said is None else said
    if not thought:
        return said
    cut_off = not said and choice.get("finish_reason") == "length"
    return f"<think>\n{thought}" if cut_off else f"<think>\n{thought}\n</think>\n{said}"


def _logprobs(choice: dict[str, Any], chat: bool) -> list[float]:
    """Log-probabilities of the tokens, where they were given."""
    given = choice.get("logprobs") or {}
    if chat:
        return [token["logprob"] for token in given.get("content") or []]
    return [value for value in given.get("token_logprobs") or [] if value is not None]
