"""`sps eval`: any model on any benchmark, resumable at the sample."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from sps.config.tasks import Cut
from sps.data.benchmarks import find_benchmark, load_benchmark
from sps.errors import RunFailed, UserError
from sps.evaluate.claim import claim, held, keep
from sps.evaluate.compare import compare, compare_markdown
from sps.evaluate.evaluate import PolicyTexts, collect, missing, regrade
from sps.evaluate.progress import make_progress
from sps.evaluate.scores import Scores, count_scores
from sps.evaluate.tables import markdown, write_results
from sps.policy.resolve import resolve_model
from sps.ranks import ALONE, Ranks
from sps.rollout import RolloutEngine
from sps.rollout.texts import TextEngine
from sps.run.lock import hold, release
from sps.store.evals import EvalStore
from sps.tasks import Task
from sps.tasks.choice import Choice, labelled
from sps.tasks.countdown import Countdown
from sps.tasks.prompts import BOXED, LETTER, TEMPLATES
from sps.types import Problem, Sampling
from sps.verify import InlineVerifier, Verifier
from sps.verify.pool import VerifierPool

DTYPES = ("auto", "float32", "bfloat16")  # of the computation
EngineOf = Callable[[Any, int], RolloutEngine]


@dataclass(frozen=True)
class EvalSettings:
    """What decides which samples are drawn; an evaluation is resumed only under the same."""

    model: str
    endpoint: str | None = None
    n: int = 16
    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 4096
    seed: int = 0
    template: str = "chat"
    instruction: str | None = None
    limit: int | None = None  # questions a benchmark, the first ones
    dtype: str = "auto"
    gguf: str | None = None  # file name of a GGUF inside the model's folder

    def sampling(self) -> Sampling:
        """How completions are drawn."""
        return Sampling(
            self.n, self.max_new_tokens, self.temperature, self.top_p, self.top_k, self.seed
        )


@dataclass(frozen=True)
class Machinery:
    """What does not change the samples."""

    data_dir: str | None = None
    device: str = "auto"
    max_rows: int = 0  # sequences decoded at once; 0: 64 on a CPU, 1024 on a GPU
    workers: int = 0
    time_limit: float = 6.0
    cut: str = "zero"
    unsafe: str = ""  # tasks of reasoning-gym that may evaluate answers, by name, with commas
    concurrency: int = 16
    retries: int = 6
    api_key_env: str = "OPENAI_API_KEY"
    engine: EngineOf | None = None  # policy, rows at once -> engine; None: the plain native one
    trust_remote_code: bool = False  # run the code that comes with the model
    ranks: Ranks = ALONE  # each draws and judges its share


@dataclass(frozen=True)
class Part:
    """One benchmark of an evaluation, ready to run."""

    name: str
    task: Task
    problems: list[Problem]
    verifier: Callable[[], Verifier]


def eval_command(
    settings: EvalSettings,
    bench: str | Sequence[str],
    *,
    out: str | Path | None = None,
    machinery: Machinery | None = None,
    regrade_only: bool = False,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Evaluate, go on with an evaluation, or judge one again; returns what results.json holds."""
    machinery = machinery or Machinery()
    ranks = machinery.ranks
    _check(settings, machinery)
    names = bench.split(",") if isinstance(bench, str) else bench
    names = [name.strip() for name in names if name.strip()]
    if not names:
        raise UserError("--bench: name at least one benchmark, such as --bench aime24,math500")
    parts = [make_part(name, settings, machinery) for name in names]
    folder = Path(out) if out else Path("evals") / _slug(settings.model)
    settings = ranks.broadcast(partial(_resolved, settings, machinery, folder, regrade_only))
    asked = {
        **asdict(settings),
        "cut": {part.name: machinery.cut for part in parts},
        "questions": {part.name: _digest(part.problems) for part in parts},
    }

    def take() -> dict[str, Any]:
        claim(folder, asked, regrade_only)  # refused before anything is made
        try:
            hold(folder, "sps eval")
        except OSError as error:
            raise UserError(f"{folder}: cannot be written ({error.strerror}); see --out") from None
        claimed = claim(folder, asked, regrade_only)
        for part in parts if regrade_only else ():
            _check_complete(folder, part, settings.n)
        keep(folder, claimed)
        return claimed

    claimed = ranks.broadcast(take)
    say = say if ranks.main else _silent
    scores = run_parts(folder, parts, settings, machinery, regrade_only, say)
    about = {key: claimed[key] for key in asdict(settings)} | {"cut": machinery.cut}

    def write() -> dict[str, Any]:
        keep(folder, {**claimed, "cut": {**claimed["cut"], **asked["cut"]}})
        rows = {part.name: _rows(folder, part, settings.n) for part in parts}
        return write_results(folder, about, scores, rows)

    found = ranks.broadcast(write)
    release(folder)
    say(markdown(settings.model, scores))
    files = "results.json, table.md, table.tex, questions.md, */samples.parquet"
    say(f"written to {folder}: {files}")
    return found


def _silent(text: str) -> None:
    """What the ranks that do not write say."""


def _resolved(
    settings: EvalSettings, machinery: Machinery, folder: Path, regrade_only: bool
) -> EvalSettings:
    """A run by the checkpoint it stands for now, and 'auto' by what it is here, or was before."""
    if settings.endpoint:
        return settings
    dtype = settings.dtype
    if dtype == "auto":
        dtype = held(folder).get("dtype", "auto")
    if dtype == "auto" and not regrade_only:
        from sps.policy.load import pick_device, pick_dtype

        dtype = pick_dtype(dtype, pick_device(machinery.device))
    return replace(settings, model=resolve_model(settings.model), dtype=dtype)


def _check(settings: EvalSettings, machinery: Machinery) -> None:
    ranks = machinery.ranks
    if ranks.sharded:
        raise UserError("sps eval holds a whole model on each GPU; launch it with launch/ddp.yaml")
    if ranks.size > 1 and settings.endpoint:
        raise UserError("--endpoint: one process asks it; start sps eval without accelerate")
    if settings.template not in TEMPLATES:
        raise UserError(f"--template {settings.template}: choose one of {', '.join(TEMPLATES)}")
    if settings.dtype not in DTYPES:
        raise UserError(f"--dtype {settings.dtype}: choose one of {', '.join(DTYPES)}")
    if machinery.cut not in get_args(Cut):
        raise UserError(f"--cut {machinery.cut}: choose one of {', '.join(get_args(Cut))}")
    limit = 1 if settings.limit is None else settings.limit
    if min(settings.n, settings.max_new_tokens, limit) < 1:
        raise UserError("--n, --max-new-tokens and --limit are whole numbers from 1")
    if settings.temperature < 0 or not 0 < settings.top_p <= 1:
        raise UserError("--temperature is at least 0, and --top-p is above 0 and at most 1")


def compare_command(a: str, b: str, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Two finished evaluations, paired by question."""
    found = compare(a, b)
    say(compare_markdown(found))
    return found


def make_part(name: str, settings: EvalSettings, machinery: Machinery) -> Part:
    """A benchmark by name, `countdown`, or `gym:TASK`; its data is loaded, nothing else is."""
    template, cut = settings.template, machinery.cut
    pool = {"workers": machinery.workers, "time_limit": machinery.time_limit}
    if name == "countdown":
        task: Task = Countdown()
        problems = task.problems("test")[: settings.limit]
        return Part(name, task, problems, lambda: InlineVerifier(task.judge))
    if name.startswith("gym:"):
        return _gym_part(name, settings, machinery, pool)
    benchmark = find_benchmark(name)
    problems = load_benchmark(name, machinery.data_dir)[: settings.limit]
    if benchmark.kind == "choice":
        if machinery.data_dir:  # the hub's rows are labelled as they are read
            problems = labelled(problems, f"--data-dir: benchmark {name}")
        chosen = Choice({"test": problems}, template, settings.instruction or LETTER, cut)
        return Part(name, chosen, problems, lambda: InlineVerifier(chosen.judge))
    from sps.tasks.math.task import Mathematics  # sympy; not for multiple choice

    task = Mathematics({"test": problems}, template, settings.instruction or BOXED, cut)
    judge = "sps.tasks.math.task:make_judge"
    return Part(name, task, problems, lambda: VerifierPool(judge, {"cut": cut}, **pool))


def _gym_part(
    name: str, settings: EvalSettings, machinery: Machinery, pool: dict[str, Any]
) -> Part:
    from sps.tasks.gym.task import Gym

    task_name, size = name.removeprefix("gym:"), settings.limit or 100
    shape = {"template": settings.template, "cut": machinery.cut}
    task = Gym(task_name, {"test": size}, 1, **shape, unsafe=machinery.unsafe.split(","))
    options = {"task": task_name, "settings": {}, "cut": machinery.cut, "unsafe": task.unsafe}
    pool |= {"fresh": task.unsafe}
    judge = "sps.tasks.gym.task:make_judge"
    return Part(name, task, task.problems("test"), lambda: VerifierPool(judge, options, **pool))


def run_parts(
    folder: Path,
    parts: Sequence[Part],
    settings: EvalSettings,
    machinery: Machinery,
    regrade_only: bool,
    say: Callable[[str], None],
) -> dict[str, Scores]:
    """Benchmark by benchmark; the model is loaded once, and only if there is something to draw."""
    texts: TextEngine | None = None
    scores: dict[str, Scores] = {}
    ranks = machinery.ranks
    for part in parts:
        store = EvalStore(folder / _slug(part.name), ranks)
        stored = partial(_rows, folder, part, settings.n)
        have = len(ranks.broadcast(stored))
        complete = have == len(part.problems) * settings.n
        if not complete and not regrade_only and texts is None:
            texts = make_texts(settings, machinery)
        if regrade_only or not complete:
            _run_part(part, store, texts, settings, regrade_only, say)
        rows = ranks.broadcast(stored)
        scores[part.name] = count_scores([p.id for p in part.problems], settings.n, rows, None)
    if texts is not None:
        texts.close()
    return scores


def _run_part(
    part: Part,
    store: EvalStore,
    texts: TextEngine | None,
    settings: EvalSettings,
    regrade_only: bool,
    say: Callable[[str], None],
) -> None:
    ranks = store.ranks
    name = part.name if ranks.size == 1 else f"{part.name}, rank 1 of {ranks.size}"
    verifier, watch = part.verifier(), make_progress(name, ranks.main)
    try:
        if regrade_only and not ranks.main:
            return
        if regrade_only:
            _, changed = regrade(verifier, part.problems, store, watch)
            say(f"{part.name}: {changed} verdicts changed")
        elif texts is not None:
            asked = (part.task, part.problems, settings.sampling(), store, watch, ranks)
            collect(texts, verifier, *asked)
            ranks.broadcast(lambda: store.replace(store.read()))
    finally:
        watch.close()
        verifier.close()


def make_texts(settings: EvalSettings, machinery: Machinery) -> TextEngine:
    """The endpoint, or the model in this process."""
    if settings.endpoint:
        from sps.rollout.openai import OpenAIEngine

        return OpenAIEngine(
            settings.endpoint,
            settings.model,
            api_key=os.environ.get(machinery.api_key_env, ""),
            concurrency=machinery.concurrency,
            retries=machinery.retries,
        )
    import torch

    from sps.policy.load import best_threads, load_policy, pick_device
    from sps.rollout.native.engine import NativeEngine

    device = pick_device(machinery.device)
    trust = machinery.trust_remote_code
    policy = load_policy(settings.model, settings.gguf, settings.dtype, device, trust)
    torch.set_num_threads(best_threads(policy.model))
    rows = machinery.max_rows or (64 if policy.model.device.type == "cpu" else 1024)
    if machinery.engine:
        return PolicyTexts(policy, machinery.engine(policy, rows))
    engine = NativeEngine(policy.model, policy.eos_ids, policy.pad_id, rows)
    return PolicyTexts(policy, engine)


def _rows(folder: Path, part: Part, n: int) -> list[dict[str, Any]]:
    """Stored samples of this evaluation: others may lie there from a larger n or limit."""
    wanted = {p.id for p in part.problems}
    rows = EvalStore(folder / _slug(part.name)).read()
    return [r for r in rows if r["problem_id"] in wanted and r["sample"] < n]


def _check_complete(folder: Path, part: Part, n: int) -> None:
    """Refuse to count samples as wrong that were never drawn."""
    lacking = missing(part.problems, n, _rows(folder, part, n))
    if not lacking:
        return
    whole = min(numbers[0] for numbers in lacking.values())
    bare = [part.problems[i].id for i, numbers in lacking.items() if not numbers[0]]
    shown = ", ".join(bare[:3]) + (f" and {len(bare) - 3} more" if len(bare) > 3 else "")
    hint = f"give --n {whole}, which every question has" if whole else f"there are none of {shown}"
    raise UserError(
        f"--regrade: {folder} has not all {n} samples of {len(lacking)} questions of {part.name}: "
        f"{hint}; or draw them first, without --regrade and with the settings they had"
    )


def _digest(problems: Sequence[Problem]) -> str:
    text = json.dumps([[p.id, p.question] for p in problems])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name.strip("/")).strip("-.")


def main(arguments: Sequence[str] | None = None) -> int:
    """A plain command line for this module alone: python -m sps.evaluate.command --help."""
    parser = argparse.ArgumentParser(prog="sps eval", description=__doc__)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--bench", default="")
    parser.add_argument("--out")
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"))
    parser.add_argument("--regrade", action="store_true")
    parser.add_argument("--trust-remote-code", action="store_true")
    kinds = {"int": int, "float": float, "int | None": int}
    flags = ("engine", "ranks", "trust_remote_code")
    tables = {EvalSettings: ("model",), Machinery: flags}
    for table, left_out in tables.items():
        for key in (f for f in fields(table) if f.name not in left_out):
            flag = f"--{key.name.replace('_', '-')}"
            parser.add_argument(flag, default=key.default, type=kinds.get(str(key.type), str))
    given = parser.parse_args(arguments)

    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")

    def build(table: Any, left_out: tuple[str, ...], **more: Any) -> Any:
        names = [f.name for f in fields(table) if f.name not in left_out]
        return table(**{name: getattr(given, name) for name in names}, **more)

    try:
        if given.compare:
            compare_command(*given.compare, say=say)
        else:
            settings = build(EvalSettings, ("model",), model=given.model)
            machinery = build(Machinery, flags, trust_remote_code=given.trust_remote_code)
            eval_command(
                settings,
                given.bench,
                out=given.out,
                machinery=machinery,
                regrade_only=given.regrade,
                say=say,
            )
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except RunFailed as error:
        sys.stderr.write(f"failed: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
