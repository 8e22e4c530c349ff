"""Which remembered rollouts a step recalls."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_run import open_made_run, save_model

from sps.config.irl import MemoryConfig
from sps.phases.memory import Recalled, choose, make_memory, memory_metrics, recall
from sps.phases.rl import rl_phase
from sps.phases.schedule import Phase
from sps.store.memory import Memory, Remembered
from sps.store.rollouts import RolloutStore
from sps.types import Problem, Rollout, Verdict


def remembered(problem, number, step=1, length=4):
    ids = np.full(length, number, np.int32)
    return Remembered(problem, np.array([1], np.int32), ids, step, -0.1 * number)


@pytest.fixture
def memory():
    """Of problem a ten solutions, of b two, of c one."""
    memory = Memory(lambda problem, ids: str(ids[0]), True)
    for problem, count in (("c", 1), ("b", 2), ("a", 10)):
        for number in range(count):
            memory.keep(remembered(problem, number, step=1 + number))
    return memory


def chosen(memory, asked, step=20, tokens=1000, seed=0, **settings):
    rng = np.random.default_rng(seed)
    found = choose(memory, MemoryConfig(weight=1, **settings), asked, step, tokens, rng)
    return sorted((r.problem_id, int(r.ids[0])) for r in found)


def test_all_that_is_remembered_of_the_problems_at_hand(memory):
    assert chosen(memory, ["a"]) == [("a", i) for i in range(10)]
    assert chosen(memory, ["b", "c", "unknown"]) == [("b", 0), ("b", 1), ("c", 0)]
    assert chosen(memory, []) == []


def test_any_problem_will_do_where_the_recipe_says_all(memory):
    found = chosen(memory, ["unknown"], problems="all", per_problem=1)
    assert [name for name, _ in found] == ["a", "b", "c"]  # one of each


def test_at_most_so_many_of_a_problem_and_others_each_time(memory):
    draws = [tuple(chosen(memory, ["a", "b"], per_problem=3, seed=seed)) for seed in range(60)]
    assert all(len([name for name, _ in found if name == "a"]) == 3 for found in draws)
    assert {number for found in draws for name, number in found if name == "a"} == set(range(10))
    assert draws[0] == tuple(chosen(memory, ["a", "b"], per_problem=3, seed=0))


def test_what_is_too_old_is_forgotten(memory):
    # The solution with number i is of step i + 1.
    assert chosen(memory, ["a"], step=10, age=3) == [("a", 7), ("a", 8), ("a", 9)]


def test_the_least_likely_share_of_a_problem(memory):
    assert chosen(memory, ["a", "c"], quantile=0.25) == [("a", 7), ("a", 8), ("a", 9), ("c", 0)]


def test_the_least_likely_share_is_of_those_that_are_not_forgotten(memory):
    # At step 10 those of steps 7 to 10 are left, numbers 6 to 9: half of them are the last two.
    assert chosen(memory, ["a"], step=10, age=4, quantile=0.5) == [("a", 8), ("a", 9)]


def test_any_problem_may_come_first_whatever_order_they_came_in(memory):
    turned = Memory(memory.mode_of, True)
    for rollout in memory:
        turned.keep(rollout)
    assert list(turned.of) == ["a", "b", "c"] == [*memory.of][::-1]
    assert [r.problem_id for r in memory] == [*"a" * 10, *"bb", "c"]
    draws = [chosen(memory, [], tokens=4, seed=seed, problems="all") for seed in range(30)]
    assert {name for found in draws for name, _ in found} == {"a", "b", "c"}

    def problems(memory, seed):
        return [name for name, _ in chosen(memory, [], tokens=8, seed=seed, problems="all")]

    assert [problems(turned, seed) for seed in range(30)] == [
        problems(memory, seed) for seed in range(30)
    ]


def test_the_first_that_does_not_fit_is_the_end_so_that_short_ones_are_not_favoured():
    memory = Memory(lambda problem, ids: str(ids[0]), True)
    for problem, length in (("first", 4), ("long", 9), ("short", 4)):
        memory.keep(remembered(problem, 1, length=length))
    assert chosen(memory, ["first", "long", "short"], tokens=12) == [("first", 1)]
    assert len(chosen(memory, ["first", "long", "short"], tokens=17)) == 3


def test_tokens_are_shared_out_over_the_problems(memory):
    found = chosen(memory, ["a", "b", "c"], tokens=4 * 5)
    assert [name for name, _ in found] == ["a", "a", "b", "b", "c"]
    assert chosen(memory, ["a", "b", "c"], tokens=3) == []


def run_of(memory, seed=0, **settings):
    """All that `recall` reads of a run."""
    irl = SimpleNamespace(memory=MemoryConfig(**{"weight": 1.0, **settings}))
    return SimpleNamespace(recipe=SimpleNamespace(seed=seed, irl=irl), memory=memory)


def group(problem, *lengths):
    return [SimpleNamespace(problem_id=problem, ids=np.zeros(n, np.int32)) for n in lengths]


def numbers(recalled):
    return [(r.problem_id, int(r.ids[0])) for r in recalled.rollouts]


def test_which_are_recalled_is_by_the_seed_and_the_step_alone(memory):
    def of(step, seed=0):
        found = recall(run_of(memory, seed, per_problem=3), step, [group("a", 50)])
        return sorted(number for _, number in numbers(found))

    draws = [of(step) for step in range(20, 40)]
    assert {number for found in draws for number in found} == set(range(10))
    assert draws == [of(step) for step in range(20, 40)]
    assert draws != [of(step, seed=1) for step in range(20, 40)]


def test_a_step_recalls_what_is_young_enough_for_it(memory):
    found = recall(run_of(memory, age=2), 10, [group("a", 50)])
    assert sorted(numbers(found)) == [("a", 8), ("a", 9)]  # of steps 9 and 10


def test_every_problem_of_the_batch_is_asked_for_once(memory):
    found = recall(run_of(memory), 20, [group("b", 50), group("c", 50, 50), group("b", 50)])
    assert sorted(numbers(found)) == [("b", 0), ("b", 1), ("c", 0)]


@pytest.mark.parametrize(("share", "count"), [(0.5, 2), (1.0, 5), (1.2, 6), (9.0, 10)])
def test_tokens_recalled_are_at_most_a_share_of_those_of_the_batch(memory, share, count):
    # A batch of 20 tokens; each remembered rollout has 4.
    found = recall(run_of(memory, share=share), 20, [group("a", 5, 3), group("d", 12)])
    assert len(found.rollouts) == count


@pytest.mark.parametrize(
    ("reduce", "each"), [("token", [1 / 6, 1 / 6]), ("sequence", [1 / 4, 1 / 8])]
)
def test_the_weights_of_recalled_tokens_add_up_to_that_of_the_memory(reduce, each):
    memory = Memory(lambda problem, ids: str(ids[0]), True)
    for number, length in ((1, 2), (2, 4)):
        memory.keep(remembered("a", number, length=length))
    found = recall(run_of(memory, weight=3.0, reduce=reduce), 5, [group("a", 50)])
    weight = dict(zip([n for _, n in numbers(found)], found.weight_B.tolist(), strict=True))
    assert [weight[1], weight[2]] == pytest.approx([3 * w for w in each])


def test_without_a_memory_nothing_is_recalled_and_nothing_is_told():
    found = recall(run_of(None, weight=0.0), 5, [group("a", 50)])
    assert found.rollouts == []
    assert len(found.weight_B) == 0
    assert memory_metrics(run_of(None), [], found, {}, 0.1) == {}


def test_what_is_told_of_a_memory_by_hand(memory):
    run = run_of(memory)
    found = Recalled([remembered("a", 1), remembered("a", 2), remembered("b", 0)], torch.ones(3))
    own = [right_rollout(5, "a", range(9)), right_rollout(5, "b", range(19))]
    sums = {"memory_tokens": 12.0, "memory_nll": 6.0, "tokens": 36.0, "seconds": 9.0}
    assert memory_metrics(run, own, found, sums, 0.5) == {
        "seconds/memory": 0.5 + 9 * 15 / (15 + 10 + 20),  # prompts have one token
        "memory/size": 13,
        "memory/recalled": 3,
        "memory/problems": 2,
        "memory/tokens": 12.0,
        "memory/share": 0.25,
        "memory/nll": 0.5,
    }
    nothing = memory_metrics(run, [], Recalled([], torch.ones(0)), {}, 0.1)
    assert (nothing["memory/share"], nothing["memory/nll"], nothing["memory/tokens"]) == (0, 0, 0)
    alone = memory_metrics(run, [], found, {"memory_tokens": 12.0, "memory_nll": 6.0}, 0.1)
    one = memory_metrics(run, [], found, {"memory_tokens": 1.0, "memory_nll": 0.7}, 0.1)
    assert (one["memory/share"], one["memory/nll"]) == (1, 0.7)
    assert alone["memory/share"] == 1  # a batch that has no gradient of its own


def test_the_forward_kl_of_some_rows_by_hand():
    """Rows 2 and 0 of three, the first with two tokens, the second with one."""
    recalled = Recalled([], torch.tensor([0.5, 7.0, 0.25]))
    new_BT = torch.tensor([[-1.0, -3.0], [-2.0, -torch.inf]])
    mask_BT = torch.tensor([[True, True], [True, False]])
    rows = SimpleNamespace(which_B=np.array([2, 0]), mask_BT=mask_BT)
    loss, sums = recalled.loss(rows, new_BT)
    assert float(loss) == 0.25 * 4 + 0.5 * 2
    assert {name: float(value) for name, value in sums.items()} == {
        "memory_nll": 6.0,
        "memory_tokens": 3.0,
    }


def right_rollout(step, problem, ids):
    given = np.array([1], np.int32), np.array(ids, np.int32), np.full(len(ids), -0.5, np.float32)
    return Rollout(problem, *given, 1.0, Verdict("correct", 1.0), step, step, 0, 0)


class BySize:
    """A task that tells the solutions of its first problem apart by their size."""

    @staticmethod
    def mode(problem, text):
        return f"{len(text)} words" if problem.answer == "told apart" else None


def run_that_starts_at(start, store, **settings):
    run = run_of(None, **settings)
    run.start, run.task, run.store = start, BySize(), store
    run.train = [Problem("x", "", "told apart"), Problem("y", "", "")]
    run.policy = SimpleNamespace(decode=lambda ids: "".join(map(str, ids)))
    run.ranks = SimpleNamespace(broadcast=lambda found: found())
    return run


def test_solutions_are_told_apart_by_the_task_and_else_by_their_text(tmp_path):
    run = run_that_starts_at(0, RolloutStore(tmp_path))
    memory = make_memory(run)
    for ids in ([5, 1], [6, 1], [7, 1, 1]):
        memory.add([right_rollout(1, "x", ids), right_rollout(1, "y", ids)])
    assert [list(r.ids) for r in memory.of_problem("x")] == [[6, 1], [7, 1, 1]]
    assert [list(r.ids) for r in memory.of_problem("y")] == [[5, 1], [6, 1], [7, 1, 1]]
    last = make_memory(run_that_starts_at(0, RolloutStore(tmp_path), distinct=False))
    last.add([right_rollout(1, "y", [5]), right_rollout(1, "y", [6])])
    assert len(last) == 1
    assert make_memory(run_that_starts_at(0, RolloutStore(tmp_path), weight=0.0)) is None


def test_a_mode_that_is_empty_text_is_a_mode(tmp_path):
    run = run_that_starts_at(0, RolloutStore(tmp_path))
    run.task = SimpleNamespace(mode=lambda problem, text: "")
    memory = make_memory(run)
    memory.add([right_rollout(1, "y", [5]), right_rollout(1, "y", [6])])
    assert len(memory) == 1


def test_a_memory_begins_with_the_rollouts_up_to_the_step_a_run_starts_from(tmp_path):
    store = RolloutStore(tmp_path)
    for step in (1, 2, 3):
        store.append(step, [right_rollout(step, "y", [step])])
    for start in (0, 1, 2):
        memory = make_memory(run_that_starts_at(start, store))
        assert [r.step for r in memory.of_problem("y")] == list(range(1, start + 1))


def test_as_long_as_nothing_is_learnt_every_ratio_is_one_beside_memory_too(tmp_path):
    """Old log-probabilities are computed in the step's own passes, recalled rows and all."""
    save_model(tmp_path / "model")
    run, _ = open_made_run(
        tmp_path / "model",
        tmp_path / "run",
        irl__memory={"share": 9.0, "weight": 0.5},
        rl__algorithm={"type": "gspo", "steps_per_generation": 3},
        rl__lr=1e-30,
        rl__micro_tokens=60,
    )
    told = [metrics for _, metrics, _ in rl_phase(run, Phase(1, 1, 1, 3))]
    run.close()
    assert [metrics["ratio"] for metrics in told] == [1, 1, 1]
    assert all(metrics["memory/recalled"] for metrics in told)


def test_a_step_that_learns_from_memory_alone_says_nothing_of_its_own_rollouts(tmp_path):
    save_model(tmp_path / "model")
    run, _ = open_made_run(
        tmp_path / "model",
        tmp_path / "run",
        irl__memory={"share": 9.0, "weight": 0.5},
        rl__algorithm={"type": "none"},
    )
    ((_, told, _),) = rl_phase(run, Phase(1, 1, 1, 1))
    run.close()
    assert told["used"] == 0 < told["memory/recalled"]
    assert told["memory/share"] == told["ratio"] == 1
    assert not {"engine_gap", "entropy"} & told.keys()
