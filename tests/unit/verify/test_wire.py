"""The protocol between trainer and worker: what is sent arrives, and nothing else gets through."""

import json
import math
import os
import struct
import sys
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sps.errors import RunFailed
from sps.types import KINDS, Problem, Verdict
from sps.verify import pool as pool_module
from sps.verify import wire
from sps.verify.pool import VerifierPool

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())
META = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


def framed(body: bytes) -> bytearray:
    return bytearray(struct.pack("<I", len(body)) + body)


@given(meta=st.dictionaries(st.text(), META, max_size=3), text=st.text(st.characters()))
@settings(max_examples=25, deadline=None)
def test_a_sample_arrives_as_it_was_sent(meta, text):
    problem = Problem("p", "question", "answer", meta)
    sent = wire.request(7, problem, text, False)
    number, got, *rest = wire.read_request(sent[4:])
    assert (number, rest) == (7, [text, False])
    assert repr(got) == repr(problem)  # repr: a tuple is no list, 1 no True and 0.0 no -0.0
    assert struct.unpack("<I", sent[:4])[0] == len(sent) - 4


@pytest.mark.parametrize("meta", [{"(tuple)": [1]}, {"a": {"(table)": 3}}, {"a": {1: (2, [3])}}])
def test_the_marks_of_the_protocol_may_stand_in_a_sample(meta):
    sent = wire.request(1, Problem("p", "", "", meta), "\ud800", True)
    assert wire.read_request(sent[4:])[1].meta == meta
    assert wire.read_request(sent[4:])[2] == "\ud800"


def test_what_no_worker_can_read_is_said_when_it_is_submitted():
    with pytest.raises(TypeError, match="problem p: its meta holds a set"):
        wire.request(1, Problem("p", "", "", {"a": {1, 2}}), "", True)


@given(st.sampled_from(KINDS), st.text(st.characters()), st.text(st.characters()))
@settings(max_examples=60, deadline=None)
def test_a_verdict_arrives_cut_to_length(kind, detail, answer):
    verdict = Verdict(kind, float(kind == "correct"), 600 * detail, 600 * answer)
    buffer = bytearray(wire.reply(wire.Judged(3, verdict)))
    [got] = wire.replies(buffer)
    cut = Verdict(kind, verdict.reward, (600 * detail)[:500], (600 * answer)[:500])
    assert got == wire.Judged(3, cut)
    assert buffer == b""


def test_half_a_surrogate_pair_in_a_verdict_can_be_stored():
    """What runs in a worker may put one into its reply, and Parquet takes none."""
    [got] = wire.replies(
        bytearray(wire.reply(wire.Judged(3, Verdict("wrong", 0.0, "d\ud800", "\udfffa"))))
    )
    assert got.verdict == Verdict("wrong", 0.0, "d?", "?a")


GOOD = ["judged", 3, "correct", 1.0, "", ""]
BAD = [
    [],
    {},
    "ready",
    None,
    ["ready", 1],
    ["failed"],
    ["failed", 3],
    ["failed", "x" * 501],
    ["full", "3"],
    ["full", True],
    ["judged"],
    GOOD[:-1],
    [*GOOD, ""],
    [GOOD],
    *(
        [*GOOD[:at], value, *GOOD[at + 1 :]]
        for at, values in {
            1: ["3", 3.0, True, None],
            2: ["right", "", 1, None, "wrong"],  # a wrong answer that is paid for
            3: [0.0, -1.0, 1.5, 1, True, "1.0", None, math.nan, math.inf, 1e308],
            4: [3, None, "x" * 501],
            5: [3, None, "x" * 501],
        }.items()
        for value in values
    ),
    ["judged", 3, "wrong", 1.0, "", ""],
    ["judged", 3, "unparsed", 0.5, "", ""],
]


@pytest.mark.parametrize("message", BAD, ids=lambda m: json.dumps(m)[:40])
def test_a_reply_of_another_form_is_malformed(message):
    with pytest.raises(wire.Malformed):
        list(wire.replies(framed(json.dumps(message).encode())))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" * 16000,
        b"9" * 16000,
        b"\x80\x04K\x01.",  # a pickle
        json.dumps(GOOD).encode("utf-16"),
        b'["judged",3,"correct",1.0,"","\xc3\xa4"]',
        b'["ready"]["ready"]',
    ],
)
def test_a_body_that_is_no_reply_is_malformed(body):
    with pytest.raises(wire.Malformed):
        list(wire.replies(framed(body)))


def test_a_reply_longer_than_any_is_malformed_before_it_has_come():
    with pytest.raises(wire.Malformed, match="16385 bytes"):
        list(wire.replies(bytearray(struct.pack("<I", (1 << 14) + 1))))
    assert list(wire.replies(bytearray(struct.pack("<I", 1 << 14)))) == []  # still to come


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda b: bytes(framed(b))))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_no_reply(data):
    buffer = bytearray(data)
    try:
        got = list(wire.replies(buffer))
    except wire.Malformed:
        return
    assert got == []
    assert data.endswith(bytes(buffer))
    assert len(buffer) < 4 or struct.unpack_from("<I", buffer)[0] > len(buffer) - 4


# A worker of the attacker's: it knows the protocol, and sends what the sample's text says.
ROGUE = """
    import os, struct, sys
    from sps.verify import wire
    os.write(1, wire.reply(wire.Ready()))
    while head := sys.stdin.buffer.read(4):
        number, problem, text, _ = wire.read_request(
            sys.stdin.buffer.read(struct.unpack("<I", head)[0])
        )
        right = wire.reply(wire.Judged(number, wire.Verdict("correct", 1.0)))
        if text == "right":
            os.write(1, right)
        elif text == "twice":
            os.write(1, right + right)
        elif text == "other":
            os.write(1, wire.reply(wire.Judged(number + 1, wire.Verdict("correct", 1.0))))
        elif text == "failed":
            os.write(1, wire.reply(wire.Failed("the pool must end")))
        elif text == "shut":
            os.close(1)
            sys.stdin.buffer.read()
        elif text == "flood":
            while True:
                os.write(1, bytes(1 << 16))
        elif text == "deaf":  # it owes nothing, and reads no more
            os.write(1, right)
            import time
            time.sleep(600)
        else:
            data = bytes.fromhex(text)
            while data:
                data = data[os.write(1, data) :]
"""


@pytest.fixture
def rogue(tmp_path, monkeypatch):
    script = tmp_path / "rogue.py"
    script.write_text(textwrap.dedent(ROGUE))
    started = pool_module.subprocess.Popen

    def start(command, **options):
        return started([sys.executable, str(script)], **options)

    monkeypatch.setattr(pool_module.subprocess, "Popen", start)


def kinds(pool, texts):
    futures = [pool.submit(Problem("p", "?", "!"), text, True) for text in texts]
    return [future.result(timeout=60).kind for future in futures]


def test_a_rogue_worker_costs_its_own_sample_and_its_life(rogue, workers):
    with VerifierPool("none:none", workers=1, time_limit=20, batch=1) as pool:
        assert kinds(pool, ["right", "other", "right"]) == ["correct", "crashed", "correct"]
        assert kinds(pool, ["failed", "right"]) == ["crashed", "correct"]
        assert kinds(pool, ["shut", "right"]) == ["crashed", "correct"]
        assert kinds(pool, ["flood", "right"]) == ["crashed", "correct"]
        assert len(workers) == 5


def test_a_second_reply_is_no_verdict_on_the_next_sample(rogue):
    with VerifierPool("none:none", workers=1, time_limit=20, batch=4) as pool:
        kinds(pool, ["right"])  # it is up; what follows goes to it in one batch
        futures = [pool.submit(Problem("p", "?", "!"), t, True) for t in ["twice", "other"]]
        assert [f.result(timeout=60).kind for f in futures] == ["correct", "crashed"]


def test_a_worker_that_reads_no_more_is_late_and_nobody_waits_for_its_pipe(rogue):
    long = "00" * (1 << 20)  # more than a pipe holds
    with VerifierPool("none:none", workers=1, time_limit=0.5, batch=1) as pool:
        assert kinds(pool, ["deaf", long, "right"]) == ["correct", "timeout", "correct"]


def test_random_replies_never_fool_or_end_the_pool(rogue):
    @given(st.lists(st.binary(min_size=1, max_size=64), min_size=1, max_size=4))
    @settings(max_examples=6, deadline=None)
    def check(bodies):
        texts = [bytes(framed(body)).hex() for body in bodies]
        assert set(kinds(pool, texts)) == {"crashed"}
        assert kinds(pool, ["right"]) == ["correct"]

    with VerifierPool("none:none", workers=2, time_limit=20) as pool:
        check()


def test_a_sample_that_cannot_be_sent_leaves_the_pool_as_it_was(rogue):
    with VerifierPool("none:none", workers=1, time_limit=20, pending=1) as pool:
        for _ in range(3):
            with pytest.raises(TypeError):
                pool.submit(Problem("p", "?", "!", {"a": object()}), "x", True)
        assert kinds(pool, ["right"]) == ["correct"]
    with pytest.raises(RunFailed):
        pool.submit(Problem("p", "?", "!"), "x", True)


def test_workers_see_no_keys_and_tokens(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    seen = pool_module._environment("SPS_WORKER=1")
    assert "HF_TOKEN" not in seen
    assert seen["LC_ALL"] == "C.UTF-8"
    assert seen["PATH"] == os.environ["PATH"]
