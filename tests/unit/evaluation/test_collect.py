"""Collecting samples: what is stored is not drawn again, and what is drawn is stored."""

import operator
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from sps.errors import RunFailed
from sps.evaluation.evaluate import EvalJob, JudgeFails, Tally, collect, regrade
from sps.evaluation.progress import PlainProgress, describe
from sps.evaluation.scores import count_scores
from sps.evaluation.tables import latex, markdown, question_table, results, shown_ks
from sps.ranks import Ranks
from sps.rollout.texts import Written
from sps.store.evals import EvalStore
from sps.tasks.math.task import Mathematics
from sps.types import Problem, Sampling, Verdict
from sps.verify import InlineVerifier

PROBLEMS = [Problem(f"b/{i}", f"{i}+{i}?", str(2 * i)) for i in range(4)]
TASK = Mathematics({"test": PROBLEMS}, "plain")
SAMPLING = Sampling(n=4, max_new_tokens=8)


class Oracle:
    """Right on sample s of question i when s < i; stops after `limit` samples, as if killed."""

    def __init__(self, limit=None):
        self.limit, self.drawn = limit, []

    def write(self, asks, sampling):
        for ask in asks:
            for sample in ask.samples:
                if self.limit is not None and len(self.drawn) == self.limit:
                    raise KeyboardInterrupt
                self.drawn.append((ask.index, sample))
                answer = 2 * ask.index if sample < ask.index else -1
                text = f"\\boxed{{{answer}}}"
                yield Written(ask.index, sample, text, 3, True, -1.5)

    def close(self):
        pass


JOB = EvalJob(TASK, PROBLEMS, SAMPLING, InlineVerifier(TASK.judge), None)


def job(folder, **changes):
    return replace(JOB, store=EvalStore(folder), **changes)


def run(store, oracle, watch=lambda tally: None):
    return collect(oracle, replace(JOB, store=store, watch=watch))


def scores_of(rows):
    return count_scores([p.id for p in PROBLEMS], 4, rows, None)


def test_every_sample_is_drawn_and_judged(tmp_path):
    rows = run(EvalStore(tmp_path), Oracle())
    assert len(rows) == 16
    assert scores_of(rows).correct_Q.tolist() == [0, 1, 2, 3]
    assert scores_of(rows).mean_logprob == pytest.approx(-0.5)  # -1.5 over 3 tokens


def test_an_interrupted_collection_goes_on_and_draws_nothing_twice(tmp_path):
    first, second = Oracle(limit=7), Oracle()
    store = EvalStore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(store, first)
    rows = run(EvalStore(tmp_path), second)
    assert len(first.drawn) == 7
    assert not set(first.drawn) & set(second.drawn)
    assert len(second.drawn) == 9
    assert scores_of(rows).correct_Q.tolist() == [0, 1, 2, 3]
    assert run(EvalStore(tmp_path), Oracle(limit=0)) is not None  # nothing is left to draw


def test_what_is_watched_counts_samples_tokens_and_questions(tmp_path):
    seen = []
    with pytest.raises(KeyboardInterrupt):
        run(EvalStore(tmp_path), Oracle(limit=7), lambda tally: seen.append(replace(tally)))
    # Question 0 has no right sample, question 1 one of 3 by then; each sample has 3 tokens.
    assert seen[0] == Tally(total=16)
    assert seen[-1] == Tally(16, done=7, stored=0, correct=1, tokens=21, solved=1)
    seen.clear()
    run(EvalStore(tmp_path), Oracle(), lambda tally: seen.append(replace(tally)))
    assert seen[0] == Tally(16, done=7, stored=7, correct=1, tokens=0, solved=1)
    assert seen[-1] == Tally(16, done=16, stored=7, correct=6, tokens=27, solved=3)
    seen.clear()
    regrade(job(tmp_path, watch=lambda tally: seen.append(replace(tally))))
    assert [tally.done for tally in seen] == list(range(1, 17))
    assert seen[-1] == Tally(16, done=16, correct=6, solved=3)


class Slow(InlineVerifier):
    """Judges a sample when it is asked for the verdict, or never until then."""

    def __init__(self, waiting):
        super().__init__(TASK.judge)
        self.waiting, self.most = waiting, 0

    def submit(self, problem, text, finished):
        outer = self

        class Later(Future):
            def exception(self, timeout=None):
                outer.waiting -= 1
                self.set_result(TASK.judge(problem, text, finished))
                return None

        self.waiting += 1
        self.most = max(self.most, self.waiting)
        return Later()


def test_at_most_so_many_samples_wait_for_their_verdict(tmp_path, monkeypatch):
    monkeypatch.setattr("sps.evaluation.evaluate._WAITING", 5)
    slow = Slow(0)
    rows = collect(Oracle(), job(tmp_path, verifier=slow))
    assert (len(rows), slow.most, slow.waiting) == (16, 6, 0)


def test_samples_of_other_questions_and_beyond_n_are_not_counted(tmp_path):
    run(EvalStore(tmp_path), Oracle())
    fewer = replace(SAMPLING, n=2)
    rows = collect(Oracle(limit=0), job(tmp_path, problems=PROBLEMS[1:3], sampling=fewer))
    found = sorted((row["problem_id"], row["sample"]) for row in rows)
    assert found == [("b/1", 0), ("b/1", 1), ("b/2", 0), ("b/2", 1)]


def test_regrade_judges_stored_texts_with_new_golds(tmp_path):
    store = EvalStore(tmp_path)
    run(store, Oracle())
    mended = [Problem(p.id, p.question, "-1") for p in PROBLEMS]
    rows, changed = regrade(job(tmp_path, problems=mended))
    assert changed == 16
    assert scores_of(rows).correct_Q.tolist() == [4, 3, 2, 1]
    assert scores_of(EvalStore(tmp_path).read()).correct_Q.tolist() == [4, 3, 2, 1]


class Failing(InlineVerifier):
    """Fails as a pool does: what waits then holds the failure, and no more is taken."""

    def __init__(self, judged, taken=16):
        super().__init__(TASK.judge)
        self.judged, self.left = judged, taken

    def submit(self, problem, text, finished):
        if not self.left:
            raise RunFailed("no memory")
        self.left -= 1
        self.judged -= 1
        if self.judged >= 0:
            return super().submit(problem, text, finished)
        future = Future()
        future.set_exception(RunFailed("no memory"))
        return future


@pytest.mark.parametrize("taken", [16, 9])  # it fails after the last was handed in, or before
def test_a_verifier_that_fails_is_no_verdict_and_the_rest_is_drawn_again(tmp_path, taken):
    with pytest.raises(RunFailed, match="no memory; what was judged before is stored"):
        collect(Oracle(), job(tmp_path, verifier=Failing(7, taken)))
    rows = EvalStore(tmp_path).read()
    assert len(rows) == 7
    assert {r["verdict"] for r in rows} == {"correct", "wrong"}
    again = Oracle()
    assert scores_of(run(EvalStore(tmp_path), again)).correct_Q.tolist() == [0, 1, 2, 3]
    assert len(again.drawn) == 9


def test_a_verifier_that_fails_leaves_verdicts_that_were_to_be_made_again(tmp_path):
    key = operator.itemgetter("problem_id", "sample")
    before = sorted(run(EvalStore(tmp_path), Oracle()), key=key)
    with pytest.raises(RunFailed):
        regrade(job(tmp_path, verifier=Failing(7)))
    assert sorted(EvalStore(tmp_path).read(), key=key) == before


def test_a_store_with_a_half_joined_file_counts_each_sample_once(tmp_path):
    store = EvalStore(tmp_path)
    rows = run(store, Oracle())
    store._write(rows, "samples.parquet")  # killed after this, before the parts were removed
    assert len(EvalStore(tmp_path).read()) == 16
    (tmp_path / "part-00009.draft").write_bytes(b"half a file")
    assert len(EvalStore(tmp_path).read()) == 16


def test_texts_that_utf8_cannot_hold_are_stored(tmp_path):
    class Odd(Oracle):
        def write(self, asks, sampling):
            for w in super().write(asks, sampling):
                yield Written(w.index, w.sample, "\ud800" + w.text, 3, True, None)

    rows = run(EvalStore(tmp_path), Odd())
    assert rows[0]["text"].startswith("?")
    assert scores_of(EvalStore(tmp_path).read()).correct_Q.tolist() == [0, 1, 2, 3]


def test_answers_that_utf8_cannot_hold_are_stored(tmp_path):
    class Odd(Oracle):
        def write(self, asks, sampling):
            for w in super().write(asks, sampling):
                yield Written(w.index, w.sample, "\\boxed{\ud83d}", 3, True, None)

    def judge(problem, text, finished):
        return replace(TASK.judge(problem, text, finished), detail=f"not equal to {text}")

    collect(Odd(), job(tmp_path, verifier=InlineVerifier(judge)))
    rows = EvalStore(tmp_path).read()
    assert len(rows) == 16
    assert {(r["answer"], r["detail"]) for r in rows} == {("?", "not equal to \\boxed{?}")}


def test_progress_says_samples_share_speed_and_time_left():
    tally = Tally(total=100, done=30, stored=10, correct=15, tokens=400, solved=7)
    # 20 fresh samples in 8 s are 0.4 s each: 70 left are 28 s; 400 tokens in 8 s are 50 a second.
    assert describe(tally, 8.0) == (
        "30/100 samples, 50.0 % correct, 7 questions solved, 50 tokens/s, 0:28 left"
    )


def test_plain_progress_writes_a_line_at_the_start_and_the_end(tmp_path):
    with (tmp_path / "log").open("w+") as out:
        watch = PlainProgress("x", out, every=1000)
        for done in range(11):
            watch(Tally(total=10, done=done))
        watch(Tally(total=10, done=10))
        out.seek(0)
        assert [line.split()[1] for line in out] == ["0/10", "10/10"]


def test_buckets_hold_none_all_and_quarters():
    ids = [f"q{i}" for i in range(9)]
    rows = [
        {
            "problem_id": f"q{q}",
            "sample": s,
            "verdict": "correct" if s < q else "wrong",
            "detail": "",
            "length": 1,
            "sum_logprob": 0.0,
            "answer": "",
        }
        for q in range(9)
        for s in range(8)
    ]
    scores = count_scores(ids, 8, rows, None)
    # 0/8; 1, 2 of 8 up to 25 %; 3, 4 up to 50 %; 5, 6 up to 75 %; 7 below 100 %; 8/8
    found = results({}, {"b": scores})["benchmarks"]["b"]["buckets"]
    assert found == {"0": 1, "0-25": 2, "25-50": 2, "50-75": 2, "75-100": 1, "100": 1}


def test_tables_show_scores_intervals_and_what_was_not_judged(tmp_path):
    rows = run(EvalStore(tmp_path), Oracle())
    rows[0]["verdict"] = "timeout"
    scores = {"b": scores_of(rows)}
    text = markdown("m", scores)
    # Avg@4: (0+1+2+3)/16 = 37.5 %. Pass@4: three of four questions have a correct one, 75 %.
    assert "| b | 4 | 37.5 [" in text
    assert "| 75.0 [" in text
    assert "timeout 6.2 %" in text
    assert "| b | 6 | 9 | 0 | 0 | 1 | 0 |" in text  # verdicts by kind
    assert "b & $37.5_{[" in latex(scores)
    assert "| b/3 | 3/4 | wrong 1 | `6` |" in question_table(scores, {"b": rows})
    found = results({"model": "m"}, scores)
    assert list(found["benchmarks"]["b"]["pass_at_k"]) == ["1", "2", "3", "4"]
    # Pass@2 of 0, 1, 2, 3 of 4: 0, 1/2, 5/6, 1 -> mean 7/12
    assert found["benchmarks"]["b"]["pass_at_k"]["2"][0] == pytest.approx(7 / 12)


def test_table_shows_powers_of_four_and_n():
    assert shown_ks(128) == [4, 16, 64, 128]
    assert shown_ks(1) == [1]
    assert shown_ks(16) == [4, 16]


def test_pass_at_k_of_a_collection_equals_enumeration(tmp_path):
    from itertools import combinations

    rows = run(EvalStore(tmp_path), Oracle())
    scores = scores_of(rows)
    for k in range(1, 5):
        brute = [
            np.mean([any(s < q for s in draw) for draw in combinations(range(4), k)])
            for q in range(4)
        ]
        assert scores.per_question(k) == pytest.approx(brute)


class TimesOut(InlineVerifier):
    """A judge that has no time for any answer, or but for some: `fails` is asked with how many it
    was asked, and with the problem."""

    def __init__(self, fails=lambda asked, problem: True):
        super().__init__(TASK.judge)
        self.asked, self.fails = 0, fails

    def submit(self, problem, text, finished):
        self.asked += 1
        if not self.fails(self.asked, problem):
            return super().submit(problem, text, finished)
        done = Future()
        done.set_result(Verdict("timeout", 0.0, f"answer {self.asked}: time is up"))
        return done


TEN = [Problem(f"b/{i}", f"{i}+{i}?", str(2 * i)) for i in range(10)]
MANY = replace(SAMPLING, n=16)


def ten(folder, **changes):
    return job(folder, **{"problems": TEN, "sampling": MANY, **changes})


def test_a_judge_that_fails_at_eight_whole_questions_ends_the_evaluation(tmp_path):
    """Of 10 questions of 16 samples 8 are drawn, and none again once the judge is mended."""
    oracle, again = Oracle(), Oracle()
    with pytest.raises(JudgeFails, match="failed at all of the first 128 answers") as said:
        collect(oracle, ten(tmp_path, verifier=TimesOut()))
    assert "first at one to 'b/0': timeout: answer 1: time is up" in str(said.value)
    assert oracle.drawn == [(i, s) for i in range(8) for s in range(16)]
    assert [row["verdict"] for row in EvalStore(tmp_path).read()] == ["timeout"] * 128
    with pytest.raises(JudgeFails, match="all of the first 128 answers"):
        collect(again, ten(tmp_path, verifier=TimesOut()))
    assert not again.drawn
    rows = collect(again, ten(tmp_path))
    assert again.drawn == [(i, s) for i in range(8, 10) for s in range(16)]
    assert len(rows) == len(EvalStore(tmp_path).read()) == 160
    assert {row["verdict"] for row in rows} == {"correct", "wrong"}


def test_a_question_that_is_at_fault_and_a_few_failures_beside_it_are_no_doubt(tmp_path):
    """All of the first seven and all but one of the eighth time out, which is then judged."""
    for name, last in (("one", 1), ("seven", 7)):
        fails = TimesOut(lambda asked, problem, n=16 * last + 15: asked <= n)
        rows = collect(Oracle(), ten(tmp_path / name, verifier=fails))
        kinds = [row["verdict"] for row in rows]
        assert (len(kinds), kinds.count("timeout")) == (160, 16 * last + 15)
        assert len(EvalStore(tmp_path / name).read()) == 160
    # What is stored says that it works, too.
    more = ten(tmp_path / "one", sampling=replace(MANY, n=32), verifier=TimesOut())
    assert len(collect(Oracle(), more)) == 320


class ShortestFirst(Oracle):
    """The first half of the samples of all questions, and then the other half."""

    def write(self, asks, sampling):
        halves = (slice(0, sampling.n // 2), slice(sampling.n // 2, None))
        for half in halves:
            yield from super().write([replace(a, samples=a.samples[half]) for a in asks], sampling)


def test_answers_that_come_first_are_not_all_answers(tmp_path):
    """A judge that fails at the shortest answers alone, 80 of 10 questions: they come first."""
    shortest = TimesOut(lambda asked, problem: asked <= 80)
    rows = collect(ShortestFirst(), ten(tmp_path, verifier=shortest))
    assert [row["verdict"] for row in rows].count("timeout") == 80


def test_of_fewer_questions_it_must_fail_at_all(tmp_path):
    n64 = replace(SAMPLING, n=64)
    with pytest.raises(JudgeFails, match="first 256 answers"):  # 4 questions
        collect(Oracle(), job(tmp_path / "a", sampling=n64, verifier=TimesOut()))
    of_three = TimesOut(lambda asked, problem: problem.id != "b/3")
    assert len(collect(Oracle(), job(tmp_path / "b", sampling=n64, verifier=of_three))) == 256
    # Samples of one alone, 9 of 64 questions: 64 failures are needed still.
    many = [Problem(f"b/{i}", f"{i}?", "0") for i in range(64)]
    one = replace(SAMPLING, n=1)
    with pytest.raises(JudgeFails, match="first 64 answers"):
        collect(Oracle(), job(tmp_path / "c", problems=many, sampling=one, verifier=TimesOut()))
    few = job(tmp_path / "d", problems=many[:63], sampling=one, verifier=TimesOut())
    assert len(collect(Oracle(), few)) == 63


def test_answers_that_are_cut_off_say_nothing(tmp_path):
    """Of each question 13 are cut off and 3 time out, which is too few of one; with 4 it is not."""

    def collected(name, cut):
        verifier = TimesOut(lambda asked, problem: asked % 16 >= cut)
        verifier.judge = lambda problem, text, finished: Verdict("truncated", 0.0)
        many = [Problem(f"b/{i}", f"{i}?", "0") for i in range(40)]
        rows = collect(Oracle(), ten(tmp_path / name, problems=many, verifier=verifier))
        return [row["verdict"] for row in rows].count("timeout")

    assert collected("three", 13) == 40 * 3
    with pytest.raises(JudgeFails, match="all of the first 64 answers that were not cut off"):
        collected("four", 12)
    assert len(EvalStore(tmp_path / "four").read()) == 15 * 16 + 15  # 4 x 16 are 64


def test_a_regrade_by_a_judge_that_only_fails_keeps_the_verdicts_of_before(tmp_path):
    before = collect(Oracle(), ten(tmp_path))
    with pytest.raises(JudgeFails, match="all of the first 128 answers"):
        regrade(ten(tmp_path, verifier=TimesOut()))
    kinds = [row["verdict"] for row in EvalStore(tmp_path).read()]
    assert sorted(kinds) == sorted(row["verdict"] for row in before)
    one = TimesOut(lambda asked, problem: asked <= 17)
    assert regrade(ten(tmp_path, verifier=one))[1] == 17


def test_answers_that_wait_when_the_judge_is_given_up_are_not_waited_for_and_not_lost(tmp_path):
    class Pending(Future):
        def exception(self, timeout=None):
            raise AssertionError("it was waited for")

    class Late(TimesOut):
        """The first 128 are judged when 150 have been asked for, the others never."""

        def submit(self, problem, text, finished):
            done = super().submit(problem, text, finished)
            first.append(done if len(first) < 128 else Pending())
            if self.asked == 1:
                first[0].done = lambda: self.asked == 150
            return first[-1]

    first, oracle, again = [], Oracle(), Oracle()
    with pytest.raises(JudgeFails, match="first 128 answers"):
        collect(oracle, ten(tmp_path, verifier=Late()))
    assert len(oracle.drawn) == len(EvalStore(tmp_path).read()) == 150
    rows = collect(again, ten(tmp_path))
    assert len(again.drawn) == 10
    assert {row["verdict"] for row in rows} == {"correct", "wrong"}


class Together(Ranks):
    """Ranks that are threads of this process."""

    def __init__(self, rank, size, told, barrier):
        self.rank, self.size, self.told, self.barrier = rank, size, told, barrier

    def gather(self, items):
        self.told[self.rank] = list(items)
        self.barrier.wait()
        found = [item for part in self.told for item in part]
        self.barrier.wait()
        return found

    def broadcast(self, make):
        made = []
        if self.main:
            try:
                made = [(make(), None)]
            except RunFailed as error:
                made = [(None, error)]
        value, error = self.gather(made)[0]
        if error is not None:
            raise error
        return value


def of_ranks(folder, verifiers, problems=20):
    """What each of two ranks collects, or how it fails; and what each has drawn."""
    told, barrier = [[], []], threading.Barrier(2, timeout=20)
    oracles = [Oracle(), Oracle()]
    many = [Problem(f"b/{i}", f"{i}?", "0") for i in range(problems)]

    def one(rank):
        store = EvalStore(folder, Together(rank, 2, told, barrier))
        this = ten(folder, problems=many, verifier=verifiers[rank])
        try:
            return collect(oracles[rank], replace(this, store=store))
        except RunFailed as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2))), [len(oracle.drawn) for oracle in oracles]


def test_one_rank_whose_judge_fails_goes_on_where_that_of_another_works(tmp_path):
    """Rank 0 has 10 of 20 questions and stops after 8: the last two are then shared."""
    found, drawn = of_ranks(tmp_path, [TimesOut(), InlineVerifier(TASK.judge)])
    kinds = [[row["verdict"] for row in rows] for rows in found]
    assert [len(own) for own in kinds] == [320, 320]
    assert kinds[0].count("timeout") == kinds[1].count("timeout") == 9 * 16
    assert drawn == [9 * 16, 11 * 16]


def test_ranks_whose_judges_all_fail_end_together(tmp_path):
    found, drawn = of_ranks(tmp_path, [TimesOut(), TimesOut()])
    assert [str(error) for error in found] == [str(found[0])] * 2
    assert "failed at all of the first 256 answers" in str(found[0])
    assert drawn == [128, 128]
    # 4 questions each are 8 of all: too few for one rank alone, enough for both.
    found, drawn = of_ranks(tmp_path / "few", [TimesOut(), TimesOut()], problems=8)
    assert "failed at all of the first 128 answers" in str(found[1])
    assert drawn == [64, 64]
