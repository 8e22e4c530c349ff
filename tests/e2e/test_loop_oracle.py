"""Whole runs: who is sampled from when, what is counted, which checkpoint is reported."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from made_run import Watched, judge, open_made_run, recipe_of, save_model
from safetensors.torch import load_file

from sps.build import open_run
from sps.lifecycle.measure import measure
from sps.loop import train
from sps.run.folder import checkpoint_path
from sps.run.track import read_records
from sps.types import Sampling
from sps.verify import InlineVerifier


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_model(folder)
    return folder


class Checked(Watched):
    """An engine whose every token is looked up in the policy as it stands at that moment."""

    def __init__(self, engine, model):
        super().__init__(engine)
        self.model, self.marks = model, []  # a number that tells the weights of each call

    @torch.no_grad()
    def generate(self, requests, sampling):
        prompts = {r.index: r.prompt_ids for r in requests}
        self.marks.append(mark(self.model.get_input_embeddings().weight))
        for c in super().generate(requests, sampling):
            logits = self.model(input_ids=torch.tensor([[*prompts[c.index], *c.ids]])).logits[0]
            at = torch.arange(len(c.ids)) + len(prompts[c.index]) - 1
            logp = (logits[at] / (sampling.temperature or 1.0)).log_softmax(-1)
            want = logp.gather(1, torch.tensor(c.ids).long()[:, None])[:, 0]
            np.testing.assert_allclose(c.logprobs, want.numpy(), atol=1e-4)
            yield c


def mark(weight):
    return float(weight.detach().double().square().sum())


def checked_run(model_folder, folder, resume=False, **changes):
    recipe, _ = recipe_of(model_folder, **changes)
    run = open_run(recipe, folder, resume)
    run.engine = Checked(run.engine, run.policy.model)
    run.verifier = InlineVerifier(judge)
    return run, train(run)


def words(run, ids):
    names = run.policy.tokenizer.convert_ids_to_tokens(ids)
    return " ".join(name for name in names if name not in (".", "<pad>"))


def by_hand(run, call, problems):
    """Right answers of each problem, and the texts behind them."""
    requests, _, completions = call
    right, kinds = Counter(), Counter()
    known = {tuple(run.policy.tokenizer(p.question)["input_ids"]): p for p in problems}
    asked = {r.index: known[r.prompt_ids] for r in requests}
    for c in completions:
        verdict = judge(asked[c.index], words(run, c.ids.tolist()), c.finished)
        right[asked[c.index].id] += verdict.reward > 0
        kinds[verdict.kind] += 1
    return [right[p.id] for p in problems], dict(kinds)


EMBEDDING = "model.embed_tokens.weight"
SHORT = {"rl__steps": 4, "rl__lr": 0.05, "checkpoint__every": 1}


@pytest.mark.parametrize("select", ["honest", "paper"])
def test_every_token_is_of_the_policy_as_it_stands_and_the_test_score_of_the_selected(
    select, model_folder, tmp_path
):
    evaluation = {"n": 4, "validation_n": 8, "every": 1, "final": True, "select": select}
    evaluation |= {"temperature": 0.9, "top_k": 50, "top_p": 0.99}
    run, scores = checked_run(
        model_folder, tmp_path / "run", evaluation=evaluation, seed=2, **SHORT
    )
    calls = run.engine.calls
    # Of each evaluation: the samples, and then one greedy answer a problem.
    judged = [(call, after) for call, after in pairwise(calls) if after[1].temperature == 0]
    n = {"honest": 8, "paper": 4}[select]
    problems = {"honest": run.validation, "paper": run.test}[select]
    first = {"honest": 1, "paper": 5}[select]  # five validations come before those of the paper
    found = [sum(by_hand(run, call, problems)[0]) for call, _ in judged[first : first + 4]]
    for (_, sampling, _), _ in judged[first : first + 4]:
        assert sampling == Sampling(n, 8, 0.9, 0.99, 50, 12345)
    saved = {
        step: mark(load_file(checkpoint_path(run.folder, step) / "model.safetensors")[EMBEDDING])
        for step in (1, 2, 3, 4)
    }
    of_call = {id(call): mark for call, mark in zip(calls, run.engine.marks, strict=True)}
    weighed = [of_call[id(call)] for call, _ in judged]
    assert len(set(saved.values())) == 4
    assert weighed[first : first + 4] == [saved[step] for step in (1, 2, 3, 4)]
    best = 1 + found.index(max(found))
    assert best < 4  # so that the last weights are not those of the score
    done = read_records(run.folder / "metrics.jsonl")[-1]
    assert (done["kind"], done["selected"]) == ("done", best)
    assert weighed[-1] == saved[best]
    call, greedy = judged[-1]
    right, kinds = by_hand(run, call, run.test)
    assert scores.correct_Q.tolist() == right
    assert list(scores.ids) == [p.id for p in run.test]
    assert scores.kinds == kinds
    tokens = [len(c.ids) for c in call[2]]
    total = sum(float(c.logprobs.sum()) for c in call[2])
    assert scores.mean_length == pytest.approx(np.mean(tokens))
    assert scores.mean_logprob == pytest.approx(total / sum(tokens), rel=1e-5)
    likely = [float(c.logprobs.sum()) for c in greedy[2]]
    assert scores.greedy_logprob == pytest.approx(np.mean(likely), rel=1e-5)
    assert len(likely) == len(run.test)
    written = json.loads((run.folder / "evals" / "test.json").read_text())
    assert list(written["per_question"].values()) == right
    assert written["avg"][0] == pytest.approx(sum(right) / (4 * len(right)))


def test_a_resumed_run_draws_from_the_weights_it_resumed(model_folder, tmp_path):
    class Stop(Exception):
        pass

    def stop(record):
        if (record["kind"], record["step"]) == ("rl", 4):
            raise Stop

    recipe, _ = recipe_of(model_folder, **SHORT)
    run = open_run(recipe, tmp_path / "run", listeners=[stop])
    run.verifier = InlineVerifier(judge)
    with pytest.raises(Stop):
        train(run)
    run, _ = checked_run(model_folder, tmp_path / "run", resume=True, **SHORT)
    assert run.start == 3
    assert len(run.engine.calls) == 1


def test_an_evaluation_may_be_hotter_than_the_recipe(model_folder, tmp_path):
    run, _ = open_made_run(model_folder, tmp_path / "run")
    measure(run, "hot", run.test[:2], 3, 0, temperature=1.7)
    (requests, sampling, _), (_, greedy, _) = run.engine.calls
    assert (sampling.n, sampling.temperature, greedy.temperature) == (3, 1.7, 0.0)
    assert [r.samples for r in requests] == [(0, 1, 2)] * 2


def test_runs_of_other_seeds_share_no_random_number(model_folder, tmp_path):
    seeds, orders = [], set()
    for seed in range(3):
        changes = {"seed": seed, "irl__steps": 0, "rl__algorithm": {"type": "dapo"}}
        run, _ = checked_run(model_folder, tmp_path / str(seed), **SHORT, **changes)
        calls = [call for call in run.engine.calls if call[1].temperature]
        assert len(calls) > 4  # some were drawn again
        seeds += [call[1].seed for call in calls]
        orders.add(tuple(r.prompt_ids for r in calls[0][0]))
    assert len(set(seeds)) == len(seeds)
    assert len(orders) == 3  # of the problems
