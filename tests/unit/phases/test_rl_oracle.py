"""RL phases against the same steps written by hand (tests/oracle.py): draws, metrics, weights."""

from __future__ import annotations

import oracle
import pytest
import torch
from made_run import judge, open_made_run, save_model

from sps.phases.base import remember_base
from sps.phases.rl import rl_phase
from sps.phases.schedule import Phase
from sps.run.track import read_records

GSPO = {"type": "gspo", "steps_per_generation": 3, "eps": 0.01, "eps_high": 0.02}
CASES = {
    "grpo": {},
    "micro_batches": {"rl__micro_tokens": 24},
    "one_row_a_pass": {"rl__micro_tokens": 1, "rl__algorithm": {"type": "dapo"}},
    "temperature_1": {"rollout__temperature": 1.0},
    "hot": {"rollout__temperature": 1.6},
    "truncated_sampling": {"rollout__top_p": 0.9, "rollout__top_k": 20},
    "kl": {"rl__algorithm": {"type": "grpo", "beta": 0.3}},
    "kl_micro_batches": {"rl__algorithm": {"type": "grpo", "beta": 0.3}, "rl__micro_tokens": 30},
    # A limit that no text reaches: it is the limit that counts, not the longest.
    "dr_grpo": {
        "rl__algorithm": {"type": "dr_grpo", "beta": 0.1},
        "rollout__max_new_tokens": 60,
    },
    "dapo": {"rl__algorithm": {"type": "dapo", "soft_cache_length": 4}},
    "dapo_dull": {"rl__algorithm": {"type": "dapo", "max_resample_times": 1}, "rollout__n": 2},
    "dapo_no_resampling": {"rl__algorithm": {"type": "dapo", "max_resample_times": 0}},
    "pass_at_k": {"rl__algorithm": {"type": "pass_at_k", "k": 2}},
    "w_reinforce": {"rl__algorithm": {"type": "w_reinforce", "right": 0.3}},
    "right_alone_is_nothing": {"rl__algorithm": {"type": "w_reinforce", "right": 0.0}},
    "entropy": {"rl__entropy": 0.2},
    "entropy_micro_batches": {"rl__entropy": 0.2, "rl__micro_tokens": 20},
    "entropy_dapo": {"rl__entropy": 0.2, "rl__algorithm": {"type": "dapo"}},
    "warmup": {"rl__optimizer__warmup_steps": 3},
    "clipped_gradient": {"rl__optimizer__max_grad_norm": 0.05},
    "gspo": {"rl__algorithm": GSPO},
    "gspo_defaults": {"rl__algorithm": {"type": "gspo"}, "rl__lr": 1e-3},
    "grpo_later_steps": {"rl__algorithm": {"type": "grpo", "steps_per_generation": 2}},
    "dapo_later_steps": {
        "rl__algorithm": {"type": "dapo", "steps_per_generation": 2, "eps": 0.1, "eps_high": 0.3},
        "rl__lr": 0.05,
    },
    "kl_later_steps": {
        "rl__algorithm": {"type": "dr_grpo", "steps_per_generation": 2, "beta": 0.2},
        "rl__micro_tokens": 40,
    },
    "differential_smoothing": {
        "rl__algorithm": {"type": "differential_smoothing", "gamma": 0.05},
        "rl__micro_tokens": 30,
    },
    "unlikeliness": {"rl__algorithm": {"type": "unlikeliness", "penalty": 0.5}},
    "unlikeliness_two_steps": {
        "rl__algorithm": {"type": "unlikeliness", "steps_per_generation": 2, "beta": 0.1}
    },
    "cispo": {
        "rl__algorithm": {"type": "cispo", "max_ratio": 1.1, "steps_per_generation": 3},
        "rl__micro_tokens": 40,
    },
    "raft": {"rl__algorithm": {"type": "raft"}},
    "raft_two_steps": {"rl__algorithm": {"type": "raft", "steps_per_generation": 2}},
    "kl_cov": {
        "rl__algorithm": {"type": "kl_cov", "share": 0.05, "steps_per_generation": 3},
        "rl__micro_tokens": 24,
    },
    "clip_cov": {
        "rl__algorithm": {"type": "clip_cov", "share": 0.9, "low": 0.2, "high": 2.0},
        "rl__micro_tokens": 24,
    },
    "correction": {"rollout__correct": 1.1},
    "correction_and_kl": {"rollout__correct": 5.0, "rl__algorithm": {"type": "dapo", "beta": 0.2}},
    "memory": {"irl__memory": {"share": 9.0, "weight": 0.7}},
    "memory_micro_batches": {"irl__memory": {"share": 9.0, "weight": 0.7}, "rl__micro_tokens": 24},
    "memory_of_sequences": {
        "irl__memory": {"share": 9.0, "weight": 2.0, "reduce": "sequence"},
        "rl__algorithm": {"type": "dapo", "beta": 0.1},
    },
    "memory_of_the_last": {"irl__memory": {"share": 9.0, "weight": 1.0, "distinct": False}},
    "memory_that_fades": {"irl__memory": {"share": 9.0, "weight": 1.0, "age": 2}},
    "memory_without_rl": {
        "irl__memory": {"share": 9.0, "weight": 1.0},
        "rl__algorithm": {"type": "none"},
    },
    "memory_gspo": {"irl__memory": {"share": 9.0, "weight": 0.5}, "rl__algorithm": GSPO},
    "memory_gspo_that_fades": {
        "irl__memory": {"share": 9.0, "weight": 0.5, "age": 2},
        "rl__algorithm": GSPO,
    },
    "memory_and_entropy": {"irl__memory": {"share": 9.0, "weight": 0.5}, "rl__entropy": 0.2},
    "memory_of_base": {"irl__memory": {"share": 9.0, "weight": 0.7, "source": "base"}},
    "memory_of_all_that_base_solves_often": {
        "irl__memory": {
            "share": 9.0,
            "weight": 0.7,
            "source": "base",
            "distinct": False,
            "solved": 0.5,
        },
    },
    "memory_js": {
        "seed": 3,
        "irl__memory": {"share": 9.0, "weight": 2.0, "source": "base", "divergence": "js"},
        "rl__micro_tokens": 24,
    },
}
STEPS = 3


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_model(folder)
    return folder


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_phase_is_the_one_by_hand(name, model_folder, tmp_path):
    shift = 0.3 if "correction" in name else 0.0
    run, tree = open_made_run(model_folder, tmp_path / "run", shift=shift, **CASES[name])
    remember_base(run)
    phase = ByHand(run, tree)
    if tree["irl"].get("memory", {}).get("source") == "base":
        phase.base()
    steps = 7 if "memory" in name else STEPS  # problems have to come back
    phase.last = steps
    for step, metrics, settled in rl_phase(run, Phase(1, 1, 1, steps)):
        phase.check(step, metrics, settled)
    assert phase.step == steps
    assert run.policy.version == steps
    assert phase.used > 0 or "without_rl" in name
    if "memory" in name:
        assert phase.recalled > 0 or "last" in name  # of earlier steps than the one that recalls it
    assert sorted(phase.asked[:24]) == sorted({*phase.asked[:24]})  # no problem twice in a pass
    most = CASES[name].get("rl__micro_tokens", 16384)
    assert all(rows == 1 or rows * width <= most for rows, width in phase.passes)
    if "later_steps" in name or name == "gspo":
        # Agreement says nothing about a clip that never binds.
        assert phase.above > 0
        assert phase.below > 0
    assert phase.above > 0 or name != "cispo"
    assert (phase.apart > 3) == name.endswith("_cov")


class ByHand:
    """The phase once more: from what the engine gave, and nothing else of the product."""

    def __init__(self, run, tree, last=STEPS):
        self.run, self.tree, self.rollout, self.last = run, tree, tree["rollout"], last
        self.how = oracle.settings_of(tree["rl"]["algorithm"])
        own = tree["rl"]["optimizer"]
        model = run.policy.model
        self.learner = oracle.Learner(model, own["betas"], own["eps"], own["weight_decay"])
        reference = run.reference
        self.reference = oracle.Learner(reference.model) if reference is not None else None
        self.start = {n: p.detach().clone() for n, p in model.named_parameters()}
        self.problems = {tuple(run.policy.tokenizer(p.question)["input_ids"]): p for p in run.train}
        self.words = run.policy.tokenizer.convert_ids_to_tokens
        self.step = self.seen = self.used = self.above = self.below = self.apart = 0
        self.inverse = 0  # IRL steps that the policy has seen besides
        self.passes: list[torch.Size] = []
        run.policy.scorer.register_forward_pre_hook(
            lambda _, given: self.passes.append(given[0].ids_BL.shape)
        )
        self.shares: list = []
        self.seeds: list[int] = []
        self.asked: list[str] = []
        self.memory: dict[str, dict] = {}
        self.recalled = 0

    def check(self, step, metrics, settled):
        """What the product says of a step, and the weights after it."""
        self.step += 1
        assert step == self.step
        fresh = not self.shares
        if fresh:
            self.shares, self.drawn = self.draw(step)
        assert self.drawn.items() <= metrics.items()
        share = self.shares.pop(0)
        assert settled == (not self.shares)
        own = self.tree["rl"]["optimizer"]
        warmup = own.get("warmup_steps", 0)
        lr = self.tree["rl"]["lr"] * (min(1.0, step / warmup) if warmup else 1.0)
        wanted, sums = oracle.rl_step(
            self.learner,
            share,
            self.how,
            lr=lr,
            most=own["max_grad_norm"],
            limit=self.rollout["max_new_tokens"],
            temperature=self.rollout["temperature"],
            entropy=self.tree["rl"].get("entropy", 0.0),
            cap=self.rollout.get("correct"),
            reference=self.reference,
            recalled=self.recall(step, share),
            memory=self.tree["irl"].get("memory"),
        )
        self.used, self.above = self.used + wanted["used"], self.above + sums.above
        self.below, self.apart = self.below + sums.below, self.apart + sums.apart
        if not fresh:  # the gap to the engine is of fresh rollouts alone
            wanted = {k: v for k, v in wanted.items() if not k.startswith("engine_")}
        for name, value in wanted.items():
            near = 1e-5 if step <= STEPS else 5e-5  # float32 and float64 drift apart
            assert metrics[name] == pytest.approx(value, rel=2e-4, abs=near), name
        assert ("kl_ref" in metrics) == (self.how["beta"] > 0)
        oracle.assert_same_weights(self.run.policy.model, self.learner, self.start)

    def draw(self, step):
        """The groups of a generation, in shares, and what is told of all that was drawn for it."""
        rounds = min(self.how["steps_per_generation"], self.last - step + 1)
        count, again = self.rollout["prompts"] * rounds, self.how["max_resample_times"]
        drawn, useful = [], []
        calls = self.run.engine.calls[self.seen :]
        self.seen += len(calls)
        for number, call in enumerate(calls):
            assert len(call[0]) == count - len(useful)  # as many as are missing, no more
            groups = self.groups(call)
            drawn += groups
            useful += [g for g in groups if len({v.reward for v, _ in g}) > 1]
            done = len(useful) >= count or number == again
            assert done == (number == len(calls) - 1)
        assert [c[1].seed not in self.seeds for c in calls] == [True] * len(calls)
        self.seeds += [call[1].seed for call in calls]
        assert len(set(self.seeds)) == len(self.seeds)
        for verdict, row in (pair for group in drawn for pair in group):
            if again and not any(row is own for u in useful for _, own in u):
                row.reward = verdict.reward  # not punished for its length: it teaches nothing
        self.stored(step, drawn)
        self.remember(step, drawn)
        dull = [g for g in drawn if not any(g is u for u in useful)]
        chosen = (useful + dull)[:count] if again else drawn
        rows = [[row for _, row in group] for group in chosen]
        shares = [rows[i::rounds] for i in range(rounds)]
        with torch.no_grad():
            for row in (row for share in shares[1:] for group in share for row in group):
                row.old, _ = self.learner.tokens(row.prompt, row.ids, self.rollout["temperature"])
        return shares, self.told(drawn, chosen, rounds)

    def base(self):
        """Of every training problem n rollouts, which are all that is ever remembered."""
        (call,) = self.run.engine.calls
        self.seen, self.seeds = 1, [call[1].seed]
        drawn = self.groups(call)
        assert sorted(self.asked) == sorted(p.id for p in self.run.train)
        self.asked = []
        self.stored(0, drawn)
        how, n = self.tree["irl"]["memory"], self.rollout["n"]
        rates = [sum(verdict.kind == "correct" for verdict, _ in group) / n for group in drawn]
        assert any(0 < rate < 0.5 for rate in rates)  # `solved` leaves some out
        often = [g for g, rate in zip(drawn, rates, strict=True) if rate >= how.get("solved", 0)]
        self.remember(0, often)
        (told,) = [r for r in read_records(self.run.track.path) if r["kind"] == "base"]
        known = sum(map(len, self.memory.values()))
        assert (told["remembered"], told["rollouts"], told["step"]) == (known, n * len(drawn), 0)
        assert told["tokens"] == sum(len(row.ids) for group in drawn for _, row in group)
        assert told["right"] == round(sum(rates) * n)
        assert told["solved"] == len(self.memory)
        self.remember = lambda step, drawn: None

    def recall(self, step, share):
        """Right rollouts of the share's problems, the latest of each text."""
        settings = self.tree["irl"].get("memory", {"weight": 0})
        if not settings["weight"]:
            return []
        known = [r for g in share for r in self.memory.get(g[0].name, {}).values()]
        found = [r for r in known if not settings.get("age") or step - r.step < settings["age"]]
        self.recalled += sum(row.step < step for row in found)
        return found

    def remember(self, step, drawn):
        how = self.tree["irl"].get("memory", {})
        for verdict, row in (pair for group in drawn for pair in group):
            row.step = step
            if verdict.kind == "correct":
                words = [w for w in self.words(row.ids) if w not in (".", "<pad>")]
                mode = " ".join(words) if how.get("distinct", True) else "any"
                if not how.get("distinct", True) and how.get("source") == "base":
                    mode = len(self.memory.get(row.name, {}))  # each is kept
                self.memory.setdefault(row.name, {})[mode] = row

    def groups(self, call):
        """Verdicts and rows of one call, group by group."""
        requests, sampling, completions = call
        rollout = self.rollout
        assert (sampling.n, sampling.max_new_tokens) == (rollout["n"], rollout["max_new_tokens"])
        assert sampling.temperature == rollout["temperature"]
        kept = (sampling.top_p, sampling.top_k)
        assert kept == (rollout.get("top_p", 1.0), rollout.get("top_k", 0))
        out = []
        for request in requests:
            problem = self.problems[request.prompt_ids]
            self.asked.append(problem.id)
            own = {c.sample: c for c in completions if c.index == request.index}
            group = []
            for sample in range(rollout["n"]):
                c = own[sample]
                text = " ".join(w for w in self.words(c.ids.tolist()) if w not in (".", "<pad>"))
                verdict = judge(problem, text, c.finished)
                punished = oracle.penalty(
                    len(c.ids), rollout["max_new_tokens"], self.how["soft_cache_length"]
                )
                reward = verdict.reward + punished
                row = oracle.Row(
                    list(request.prompt_ids), c.ids.tolist(), reward, c.logprobs.tolist()
                )
                row.name, row.sample, row.finished = problem.id, sample, c.finished
                group.append((verdict, row))
            if self.how["type"] == "unlikeliness":
                rows = [row for _, row in group]
                shaped = oracle.unlikely_rewards(rows, self.how["penalty"])
                for row, reward in zip(rows, shaped, strict=True):
                    row.reward = reward
            out.append(group)
        return out

    def stored(self, step, drawn):
        """Every rollout is in the store, once, as it was drawn and judged."""
        table = self.run.store.read(step, step).to_pylist()
        got = {(r["group"], r["sample"]): r for r in table}
        assert len(got) == len(table) == sum(len(g) for g in drawn)
        for number, group in enumerate(drawn):
            for verdict, row in group:
                r = got[number, row.sample]
                assert (r["problem_id"], r["prompt_ids"], r["ids"]) == (
                    row.name,
                    row.prompt,
                    row.ids,
                )
                assert r["logprobs"] == row.engine
                assert r["sum_logprob"] == pytest.approx(sum(row.engine), abs=1e-4)
                assert r["mean_logprob"] == pytest.approx(sum(row.engine) / len(row.ids), abs=1e-5)
                assert r["reward"] == pytest.approx(row.reward, abs=1e-6)
                told = (r["verdict"], r["detail"], r["answer"])
                assert told == (verdict.kind, verdict.detail, verdict.answer)
                assert (r["length"], r["finished"]) == (len(row.ids), row.finished)
                assert (r["policy_version"], r["kept"]) == (max(0, step - 1) + self.inverse, False)

    def told(self, drawn, chosen, rounds):
        flat = [pair for group in drawn for pair in group]
        tokens = sum(len(row.ids) for _, row in flat)
        kinds = [verdict.kind for verdict, _ in flat]
        told = {f"verdict/{kind}": kinds.count(kind) / len(flat) for kind in set(kinds)}
        told["reward"] = sum(v.reward for v, _ in flat) / len(flat)
        told["solved"] = sum(any(v.reward for v, _ in g) for g in drawn) / len(drawn)
        told["useful"] = sum(len({v.reward for v, _ in g}) > 1 for g in chosen) / len(chosen)
        told |= {"groups": len(drawn) / rounds, "tokens": tokens / rounds}
        told["length"] = tokens / len(flat)
        told["logprob"] = pytest.approx(sum(sum(r.engine) for _, r in flat) / tokens, abs=1e-5)
        return told
