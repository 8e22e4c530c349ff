"""Where the runs of a comparison go, and what may be compared."""

import json
import os
from dataclasses import replace
from pathlib import Path
from queue import Queue

import pytest
import torch

from sps.commands.began import TaskNow
from sps.commands.compare import run_compare, show_results, summarise
from sps.commands.jobs import Extra, Job, _gpus, _take_gpu, plan, run_extra, run_job, run_jobs
from sps.commands.methods import by_name, make_extras, parse_temperatures, sweep_recipe
from sps.config.load import dump_recipe, load_recipe, parse_recipe
from sps.errors import UserError
from sps.evaluation.scores import count_scores
from sps.lifecycle.resume import keep_code, keep_data
from sps.reporting.style import spelled


def job(**model):
    return Job("x", parse_recipe({"model": model}, "test"), Path())


@pytest.mark.parametrize(
    ("model", "cards"),
    [({}, 0), ({"device": "cpu", "path": "a/b"}, 0), ({"path": "a/b"}, 3), ({"device": "cuda"}, 3)],
)
def test_models_go_to_gpus_and_the_embedded_policy_to_cores(monkeypatch, model, cards):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert _gpus([job(**model)]) == cards
    assert _gpus([job(), job(**model)]) == cards


@pytest.mark.parametrize(("visible", "want"), [(None, ["0", "1"]), ("4,6", ["4", "6"])])
def test_each_worker_sees_one_gpu_of_those_allowed(monkeypatch, visible, want):
    cards = Queue()
    got = []
    for number in (0, 1):
        cards.put(number)
    for _ in range(2):
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        _take_gpu(cards)
        got.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert got == want


def finished(folder, tree, **kind):
    """The folder of a job that ended, and the job."""
    one = Job("x", parse_recipe(tree, "test"), folder, **kind)
    (folder / "evals").mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(dump_recipe(one.recipe))
    (folder / "result.json").write_text('{"x": {"n": 4}}')
    (folder / "evals" / "test-000200-1.json").write_text('{"n": 8}')
    return one


def test_a_result_of_another_recipe_is_refused(tmp_path):
    extra = Extra("x @200", step=200)
    one = finished(tmp_path / "x", {"rl": {"lr": 1e-4}}, extras=(extra,))
    assert run_job(one) == {"x": {"n": 4}}
    assert run_extra(one) == {"x @200": {"n": 8}}
    other = replace(one, recipe=parse_recipe({"rl": {"lr": 0.5}, "evaluation": {"n": 2}}, "test"))
    wanted = r"x: .*another recipe: evaluation.n was 128, is 2; rl.lr was 0.0001, is 0.5.*--out"
    for read in (run_job, run_extra):
        with pytest.raises(UserError, match=wanted):
            read(other)
        with pytest.raises(UserError, match=r"another recipe"):
            read(replace(other, train=False))


def test_auto_stands_for_what_was_there_of_the_machine_alone(tmp_path):
    one = finished(tmp_path / "x", {"model": {"dtype": "float32", "device": "cpu"}})
    auto = {"model": {"dtype": "auto", "device": "auto"}}
    assert run_job(replace(one, recipe=parse_recipe(auto, "test"))) == {"x": {"n": 4}}
    other = replace(one, recipe=parse_recipe({"checkpoint": {"mix": "auto"}}, "test"))
    with pytest.raises(UserError, match=r"another recipe: checkpoint.mix was 0.0, is 'auto'"):
        run_job(other)


def test_the_base_is_the_same_for_every_recipe_that_measures_it_alike(tmp_path):
    base = finished(tmp_path / "base", {"name": "grpo"}, train=False)
    alike = {"name": "sps", "seed": 3, "rl": {"lr": 0.5}, "evaluation": {"every": 7}}
    assert run_job(replace(base, recipe=parse_recipe(alike, "test"))) == {"x": {"n": 4}}
    for tree, key in [
        ({"task": {"test": 9}}, "task.test"),
        ({"evaluation": {"n": 9}}, "evaluation.n"),
        ({"rollout": {"max_new_tokens": 9}}, "rollout.max_new_tokens"),
        ({"model": {"base": {"steps": 9}}}, "model.base.steps"),
    ]:
        with pytest.raises(UserError, match=f"another recipe: {key} was"):
            run_job(replace(base, recipe=parse_recipe(tree, "test")))


ENDED = {"x": {"pass_at_k": {"1": [0.5]}}}
JUDGE = "def judge(problem, text):\n    return text == problem.answer\n"
ROWS = [{"id": f"q{i}", "question": f"What is {i}?", "answer": f"{i}"} for i in range(10)]


def write_rows(path, **change):
    rows = [{**ROWS[0], **change}, *ROWS[1:]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def own_runs(tmp_path):
    """A base and a run of a python task that ended."""
    (tmp_path / "mine.py").write_text(JUDGE)
    write_rows(tmp_path / "rows.jsonl")
    files = {"path": str(tmp_path / "mine.py"), "data": str(tmp_path / "rows.jsonl")}
    task = {"type": "python", **files, "workers": 1, "validation": 2, "test": 3}
    made = [
        finished(tmp_path / "out" / "a", {"task": task}),
        finished(tmp_path / "out" / "base", {"task": task}, train=False),
    ]
    for one in made:
        now = TaskNow(one.recipe.task)
        keep_code(now.source, one.folder)
        keep_data(now.data, one.folder)
        (one.folder / "result.json").write_text(json.dumps(ENDED))
    return made


def done_again(jobs):
    return run_jobs(jobs, lambda *shown: None, workers=1)


@pytest.mark.parametrize("which", [0, 1])
def test_a_result_under_another_judge_is_refused(own_runs, tmp_path, which):
    one, file = own_runs[which], tmp_path / "mine.py"
    file.write_text(JUDGE.replace("==", "!="))
    with pytest.raises(UserError, match=r"under another judge: .*mine\.py.*--out") as said:
        done_again([one])
    assert str(one.folder) in str(said.value)
    assert f"cp {one.folder}/task.py {file}" in str(said.value)


@pytest.mark.parametrize("which", [0, 1])
def test_a_result_on_other_gold_answers_is_refused(own_runs, tmp_path, which):
    one = own_runs[which]
    write_rows(tmp_path / "rows.jsonl", answer="zero")
    with pytest.raises(UserError, match=r"other questions or answers: task\.data .*--out") as said:
        done_again([one])
    assert str(one.folder) in str(said.value)
    assert f"({tmp_path / 'rows.jsonl'})" in str(said.value)


def test_results_count_where_nothing_changed_and_where_a_folder_does_not_say(own_runs, tmp_path):
    want = {str(one.folder): ENDED for one in own_runs}
    assert done_again(own_runs) == want
    for one in own_runs:
        (one.folder / "data.sha256").unlink()
        (one.folder / "task.sha256").unlink()
    (tmp_path / "mine.py").write_text(JUDGE + "#")
    write_rows(tmp_path / "rows.jsonl", answer="zero")
    assert done_again(own_runs) == want


def test_a_folder_of_before_there_was_a_digest_is_known_by_its_checkpoint(own_runs, tmp_path):
    one, before = own_runs[0], (own_runs[0].folder / "data.sha256").read_text().strip()
    (one.folder / "data.sha256").unlink()
    saved = one.folder / "checkpoints" / "step-000002"
    saved.mkdir(parents=True)
    (saved / "trainer.json").write_text(json.dumps({"step": 2, "data": before}))
    assert done_again([one]) == {str(one.folder): ENDED}
    write_rows(tmp_path / "rows.jsonl", answer="zero")
    with pytest.raises(UserError, match="other questions or answers"):
        done_again([one])


def summary(right):
    """The scores of questions with so many right samples of 4."""
    rows = [
        {"problem_id": q, "verdict": kind, "detail": "", "length": 1, "sum_logprob": -1.0}
        for q, count in right.items()
        for kind in ["correct"] * count + ["wrong"] * (4 - count)
    ]
    return count_scores(list(right), 4, rows, None).summary()


def results(a, b):
    """Of a base, a method a and a method b, from right samples by question."""
    jobs = plan({name: parse_recipe({"name": name}, "") for name in "ab"}, 1, Path("out"), {}, 1)
    right = {"a": a, "b": b, "base": {"q1": 0, "q2": 0}}
    return summarise(jobs, {str(j.folder): {j.method: summary(right[j.method])} for j in jobs})


def test_names_are_shown_as_people_write_them(capsys):
    right = {"q1": 1, "q2": 2}
    recipes = {name: parse_recipe({"name": name}, "") for name in ("grpo", "memory_sps")}
    jobs = plan(recipes, 1, Path("out"), {}, 1)
    show_results(summarise(jobs, {str(j.folder): {j.method: summary(right)} for j in jobs}))
    shown = capsys.readouterr().out
    assert "\nGRPO  " in shown
    assert "\nmemory + SPS  " in shown
    assert "memory + SPS against GRPO " in shown
    assert spelled("dr_grpo keep=2") == "Dr. GRPO keep=2"
    assert spelled("qwen_grpo @10") == "qwen GRPO @10"


def test_methods_have_their_diversity_over_seeds_where_each_tells_solutions_apart(capsys):
    def told(right, solutions):
        return summary(right) | {"solutions": dict(zip(right, solutions, strict=True))}

    right = {"q1": 2, "q2": 1}
    recipes = {name: parse_recipe({"name": name}, "") for name in "ab"}
    jobs = plan(recipes, 2, Path("out"), {}, 1)
    seeds = [told(right, ([1, 1], [1])), told(right, ([2], [1]))]
    found = {}
    for job in jobs:
        seed = job.recipe.seed if job.train else 0
        own = {"a": seeds[seed], "b": seeds[0] if seed else summary(right), "base": seeds[0]}
        found[str(job.folder)] = {job.method: own[job.method]}
    methods = summarise(jobs, found)["methods"]
    assert methods["a"]["distinct"][0] == pytest.approx((2 + 1 + 1 + 1) / 4)
    assert methods["a"]["pcmd"][0] == pytest.approx((1 + 0) / 2)
    assert methods["base"]["distinct"][0] == pytest.approx(1.5)
    assert "distinct" not in methods["b"]  # one seed is of before they were told apart
    show_results(summarise(jobs, found))
    shown = capsys.readouterr().out
    assert "distinct solutions a question" in shown
    assert "1.25 [" in shown


def test_methods_are_paired_on_the_same_questions_alone():
    a, b = {"q1": 1, "q2": 2}, {"q1": 2, "q2": 4}
    rows = {(r["a"], r["b"], r["k"]): r["delta"][0] for r in results(a, b)["paired"]}
    assert rows["a", "b", 1] == (1 / 4 + 2 / 4) / 2
    with pytest.raises(UserError, match=r"base and b .*\(2 and 2; not in both: q2, x2\).*task"):
        results(a, {"q1": 2, "x2": 4})
    with pytest.raises(UserError, match=r"base and a .*\(2 and 3; not in both: q3\)"):
        results({**a, "q3": 1}, b)
    with pytest.raises(UserError, match=r"base and b .*in another order"):
        results(a, {"q2": 4, "q1": 2})


@pytest.mark.parametrize(
    ("trees", "message"),
    [
        ([{"name": "base"}], "`name: base`, which is the untrained policy's"),
        ([{"name": "a"}, {"name": "a"}], "two of the recipes have the `name: a`.* give one"),
        (
            [{"name": "a"}, {"name": "b", "evaluation": {"final": False}}],
            "b: evaluation.final is off",
        ),
        (
            [{"name": "a"}, {"name": "b", "evaluation": {"n": 8}}],
            r"evaluation.n differs \(128 of a, 8 of b\)",
        ),
        (
            [{"name": "a"}, {"name": "b", "task": {"train": 20, "seed": 1}}],
            r"a and b have other test questions \(task.seed, task.train\)",
        ),
        (
            [
                {"name": "a", "task": {"type": "math", "data": "x", "benchmarks": ["aime24"]}},
                {"name": "b", "task": {"type": "math", "data": "x", "benchmarks": ["math500"]}},
            ],
            r"a and b have other test questions \(task.benchmarks\)",
        ),
    ],
)
def test_recipes_that_cannot_be_compared_are_refused(trees, message):
    with pytest.raises(UserError, match=message):
        by_name([parse_recipe(tree, "test") for tree in trees])


def pair(one, other):
    """Two recipes that are compared."""
    trees = [{**one, "name": "a"}, {**other, "name": "b"}]
    return by_name([parse_recipe(tree, "test") for tree in trees])


def test_what_leaves_the_test_questions_alone_may_differ():
    task = {"type": "math", "data": "x"}
    for more in ({"benchmarks": ["aime24"]}, {}):
        other = {**task, **more, "subset": 100, "overlap": "drop", "time_limit": 9}
        assert list(pair({"task": {**task, **more}}, {"task": other})) == ["a", "b"]


MATH = {"type": "math", "data": "x", "benchmarks": ["aime24"]}
OWN = {"type": "python", "data": "x", "benchmarks": ["aime24"], "path": "a.py"}


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ({}, {"model": {"path": "x/y"}}, r"model\.path differs \(None of a, x/y of b\)"),
        (
            {"model": {"path": "x", "gguf": "4.gguf"}},
            {"model": {"path": "x", "gguf": "8.gguf"}},
            r"model\.gguf differs \(4\.gguf of a, 8\.gguf of b\)",
        ),
        (
            {"model": {"dtype": "float32"}},
            {"model": {"dtype": "bfloat16"}},
            r"model\.dtype differs \(float32 of a, bfloat16 of b\)",
        ),
        (
            {},
            {"model": {"base": {"steps": 9}}},
            r"model\.base\.steps differs \(3000 of a, 9 of b\)",
        ),
        ({}, {"rollout": {"engine": "vllm"}}, r"rollout\.engine differs"),
        ({}, {"rollout": {"max_new_tokens": 9}}, r"rollout\.max_new_tokens differs \(20 of a, 9"),
        (
            {},
            {"evaluation": {"temperature": 0.7}},
            r"evaluation\.temperature differs \(1\.0 of a, 0",
        ),
        ({}, {"evaluation": {"top_p": 0.9}}, r"evaluation\.top_p differs"),
        ({}, {"evaluation": {"top_k": 9}}, r"evaluation\.top_k differs"),
        (
            {},
            {"evaluation": {"seed": 9}},
            r"evaluation\.seed differs \(12345 of a, 9 of b\).* --out",
        ),
        (
            {"task": MATH},
            {"task": {**MATH, "template": "r1"}},
            r"task\.template differs .* r1 of b",
        ),
        ({"task": MATH}, {"task": {**MATH, "instruction": "Go."}}, r"task\.instruction differs"),
        ({"task": MATH}, {"task": {**MATH, "system": "Go."}}, r"task\.system differs"),
        (
            {"task": MATH},
            {"task": {**MATH, "examples": [{"question": "1?", "answer": "1"}]}},
            r"task\.examples differs",
        ),
        ({"task": MATH}, {"task": {**MATH, "cut": "judge"}}, r"--set task\.cut=\.\.\."),
        ({"task": OWN}, {"task": {**OWN, "right": 0.5}}, r"task\.right differs"),
        ({"task": OWN}, {"task": {**OWN, "path": "b.py"}}, r"task\.path differs"),
    ],
)
def test_methods_have_one_base(one, other, message):
    with pytest.raises(UserError, match=message):
        pair(one, other)


def test_methods_have_the_same_temperatures():
    heats = [{"evaluation": {"temperatures": own}} for own in ([0.7, 0.4], [0.4, 0.7], [0.7], [])]
    assert list(pair(heats[0], heats[1])) == ["a", "b"]
    with pytest.raises(UserError, match=r"differs \(\[0\.4, 0\.7\] of a, \[0\.7\] of b\)"):
        pair(heats[0], heats[2])
    with pytest.raises(UserError, match=r"\(\[0\.7\] of a, \[\] of b\).* or \[\]"):
        pair(heats[2], heats[3])


@pytest.mark.parametrize(
    ("other", "bases"),
    [
        ({"rl": {"lr": 0.5}, "irl": {"steps": 0}, "seed": 3, "checkpoint": {"mix": 0.3}}, 1),
        ({"evaluation": {"temperatures": [0.7, 0.4], "n": 9, "every": 7}}, 1),
        ({"evaluation": {"temperatures": [0.4, 0.7], "validation_n": 9}}, 2),
        ({"evaluation": {"temperatures": [0.4, 0.7], "seed": 9}}, 2),
        ({"evaluation": {"temperatures": [0.4, 0.7], "top_p": 0.9}}, 2),
        ({"evaluation": {"temperatures": [0.4, 0.7], "top_k": 9}}, 2),
        ({"model": {"path": "x/y"}}, 2),
        ({"task": {"validation": 9}}, 2),
        ({"rollout": {"max_new_tokens": 9}}, 2),
        ({"evaluation": {"temperatures": []}}, 1),
    ],
)
def test_the_base_is_tempered_once_for_all_that_measure_it_alike(tmp_path, other, bases):
    usual = {"evaluation": {"temperatures": [0.4, 0.7], "n": 9}}
    recipes = {"a": parse_recipe(usual, ""), "b": parse_recipe({**usual, **other}, "")}
    jobs = plan(recipes, 2, tmp_path, {}, threads=1)
    assert len(jobs) == 2 * 2 + 1 + bases
    tempering = [job for job in jobs if job.tempers_base]
    assert {job.folder for job in tempering} == {job.base for job in jobs if job.base}
    assert {job.method for job in tempering} == {"base"}
    (tmp_path / "a" / "seed-0" / "evals").mkdir(parents=True)
    for heat in (0.4, 0.7):  # of a run of before, which has it
        (tmp_path / "a" / "seed-0" / "evals" / f"temperature-{heat}-000000.json").touch()
    assert len(plan({"a": recipes["a"]}, 1, tmp_path, {}, threads=1)) == 2
    assert len(plan({"a": recipes["a"]}, 2, tmp_path, {}, threads=1)) == 4


def test_more_temperatures_are_no_other_recipe(tmp_path):
    tree = {"evaluation": {"temperatures": [0.7, 0.4]}}
    one = finished(tmp_path / "x", tree, base=tmp_path / "base")
    end = {"kind": "done", "step": 300, "selected": 300}
    (one.folder / "metrics.jsonl").write_text(json.dumps(end) + "\n")
    for heat in ("0.4", "0.7", "0.2"):
        (one.folder / "evals" / f"temperature-{heat}-000300.json").touch()
    more = parse_recipe({"evaluation": {"temperatures": [0.2, 0.4, 0.7]}}, "test")
    fewer = parse_recipe({"evaluation": {"temperatures": [0.4]}}, "test")
    with pytest.raises(UserError, match=r"again: 0\.7,0\.4 \(.* --temperatures 0\.7,0\.4, and"):
        run_job(replace(one, recipe=fewer))
    with pytest.raises(UserError, match=r"again: 0\.7,0\.4 "):
        run_job(replace(one, recipe=more, base=None))  # of sps tune, which has no base of its own
    assert run_job(replace(one, recipe=more)) == {"x": {"n": 4}}
    assert load_recipe(one.folder / "recipe.yaml").evaluation.temperatures == (0.7, 0.4, 0.2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"model": {"path": "x/y"}}, {"model": {"path": "./x/y/", "base": {"steps": 9}}}),
        ({"model": {"path": "x/y"}}, {"model": {"path": os.path.abspath("x/y")}}),
        ({"model": {"dtype": "float32"}}, {}),  # what auto is on a CPU
        ({"model": {"path": "x"}}, {"model": {"path": "x", "lora": {}, "checkpointing": True}}),
        ({}, {"rollout": {"n": 4, "temperature": 0.9}, "checkpoint": {"mix": 0.3}, "seed": 3}),
        ({}, {"evaluation": {"every": 7, "validation_n": 9, "select": "paper"}}),
        ({"task": OWN}, {"task": {**OWN, "path": "./a.py"}}),
    ],
)
def test_what_is_no_matter_to_the_base_may_differ(one, other):
    assert list(pair(one, other)) == ["a", "b"]


def test_a_sweep_of_what_the_base_depends_on_is_refused(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("name: a\n")
    assert len(by_name(sweep_recipe(path, [], "irl.reach=0.2,0.4"))) == 2
    message = r"temperature differs \(0\.7 of a temperature=0\.7, 1\.0 of a temperature=1\.0\)"
    with pytest.raises(UserError, match=message):
        by_name(sweep_recipe(path, [], "evaluation.temperature=0.7,1.0"))


SHIPPED = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize(
    "families",
    ["demo/* rivals/*", "countdown/*", "gsm8k/smollm2_*", "gsm8k/qwen_*"]
    + [
        f"paper/{name}_*"
        for name in ("qwen2.5-math-1.5b", "qwen2.5-math-7b", "r1-distill-qwen-1.5b")
    ],
)
def test_shipped_recipes_of_one_base_are_compared(families):
    paths = [p for family in families.split() for p in sorted(SHIPPED.glob(f"{family}.yaml"))]
    assert len(by_name([load_recipe(path) for path in paths])) == len(paths) > 1


def extras(early, mix="", **tree):
    """Of 300 steps, saved every 100 unless told otherwise."""
    recipe = parse_recipe({"checkpoint": {"every": 100}, "irl": {"steps": 0}, **tree}, "test")
    return make_extras("x", {"x": recipe}, early, mix)["x"]


def test_extras_by_hand():
    assert extras("100,300,100", "0.3") == [
        Extra("x @100", step=100),
        Extra("x @300", step=300),
        Extra("x mix=0.3", mix=0.3),
    ]


GSPO = {"rl": {"algorithm": {"type": "gspo", "steps_per_generation": 4}}}


@pytest.mark.parametrize(
    ("early", "tree", "message"),
    [
        ("0", {}, r"--early 0: x leaves no checkpoint of that step; the nearest is of 100"),
        ("400", {}, r"--early 400: .*nearest is of 300 \(its rl.steps is 300"),
        ("100.5", {}, r"--early 100.5: .*nearest is of 100"),
        ("nan", {}, r"--early nan"),
        ("inf", {}, r"--early inf"),
        ("-100", {}, r"--early -100"),
        ("100", {"checkpoint": {"every": 0}}, r"nearest is of 300 .*checkpoint.every is 0"),
        ("100", {"checkpoint": {"every": 100, "keep": 1}}, r"of 300 .*checkpoint.keep 1"),
        # Drawn for 4 steps at once, the first save after 50 steps is at 52.
        ("50", {**GSPO, "checkpoint": {"every": 50}}, r"of 52 .*steps_per_generation 4"),
        ("100", {**GSPO, "irl": {"steps": 1}}, r"--early: x draws for 4 steps .*set irl.every"),
        ("soon", {}, r"--early: 'soon' is not a number"),
    ],
)
def test_extras_that_a_run_will_not_have_are_refused(early, tree, message):
    with pytest.raises(UserError, match=message):
        extras(early, **tree)


def test_temperatures_are_numbers_above_0_each_once():
    assert parse_temperatures("0.7, 0.4") == [0.7, 0.4]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("warm", r"^--temperatures: 'warm' is not a number; write for example 0.7,0.4$"),
        ("[0.7,0.4]", r"^--temperatures: '\[0.7' is not a number"),
        (" ", r"^--temperatures: ' ' is not a number"),
        ("0.7,,0.4", r"^--temperatures: '' is not a number"),
        ("0.7,0", r"^--temperatures: 0 is not above 0"),
        ("nan", r"^--temperatures: nan is not above 0"),
        ("inf", r"^--temperatures: inf is not above 0"),
        ("0.7,0.70", r"^--temperatures: 0.7 is there twice"),
    ],
)
def test_other_temperatures_name_the_option(text, wanted):
    with pytest.raises(UserError, match=wanted):
        run_compare(["demo/countdown_grpo"], 1, Path("none"), "", text, 0, [])


def test_a_mix_is_evaluated_once(tmp_path):
    one = finished(tmp_path / "x", {"rl": {"steps": 200}}, extras=(Extra("x mix=0.3", mix=0.3),))
    (one.folder / "evals" / "mix-0.3-000200.json").write_text('{"n": 5}')
    assert run_extra(one) == {"x mix=0.3": {"n": 5}}


def test_step_0_is_not_the_last(tmp_path):
    one = finished(tmp_path / "x", {"rl": {"steps": 200}}, extras=(Extra("x @0", step=0),))
    (one.folder / "evals" / "test-000000-1.json").write_text('{"n": 0}')
    assert run_extra(one) == {"x @0": {"n": 0}}
    assert run_extra(replace(one, extras=(Extra("x"),))) == {"x": {"n": 8}}
