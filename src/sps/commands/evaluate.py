"""`sps eval`: any model on any benchmark, resumable at the sample."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sps.commands.eval_options import OWN, EvalSettings, Machinery, refuse_impossible
from sps.commands.methods import parse_temperatures
from sps.commands.of_run import (
    cannot_load,
    own_task,
    refuse_damaged,
    refuse_inside,
    refuse_other_adapted,
    warn_of_trained,
)
from sps.commands.terminal import say
from sps.errors import RunFailed, UserError
from sps.evaluation.claim import claim, default_folder, held, keep, slug
from sps.evaluation.compare import compare, compare_markdown
from sps.evaluation.evaluate import (
    EvalJob,
    JudgeFails,
    PolicyTexts,
    collect,
    count_solutions,
    is_doubtful,
    missing,
    regrade,
)
from sps.evaluation.progress import make_progress
from sps.evaluation.scores import Scores, count_scores, read_scores
from sps.evaluation.tables import markdown, title_of, write_results
from sps.evaluation.temperatures import holds, temperature_record, temperature_table
from sps.policy.resolve import resolve_model
from sps.policy.weights import weights_digest
from sps.ranks import Ranks, join_ranks
from sps.rollout.texts import TextEngine
from sps.run.lock import hold, release
from sps.schema import MOST_SAMPLES
from sps.store.evals import EvalStore
from sps.tasks import Bench, Task
from sps.tasks.table import make_bench
from sps.types import Problem
from sps.verify import Verifier, open_verifier


@dataclass(frozen=True)
class Part:
    """One benchmark of an evaluation, ready to run."""

    name: str
    task: Task
    problems: list[Problem]
    verifier: Callable[[], Verifier]

    def stored(self, folder: Path, n: int) -> list[dict[str, Any]]:
        """Samples of this evaluation: others may lie there from a larger n or limit."""
        wanted = {p.id for p in self.problems}
        rows = EvalStore(folder / slug(self.name)).read()
        return [r for r in rows if r["problem_id"] in wanted and r["sample"] < n]


@dataclass(frozen=True)
class _Eval:
    """One call of `sps eval`."""

    settings: EvalSettings
    machinery: Machinery
    parts: list[Part]
    folder: Path
    regrade_only: bool
    ranks: Ranks  # each draws and judges its share
    judged: dict[str, dict[str, str]]  # what verdicts depend on, by benchmark

    def at(self, temperature: float) -> _Eval:
        """The same at another temperature: an evaluation of its own, in a folder below."""
        asked = replace(self.settings, temperature=temperature)
        return replace(self, settings=asked, folder=self.folder / f"temperature-{temperature:g}")


class _Model:
    """Loaded once, when the first evaluation has something to draw."""

    def __init__(self, run: _Eval):
        self.run = run
        self.texts: TextEngine | None = None

    def load(self) -> TextEngine:
        settings, ranks = self.run.settings, self.run.ranks
        if self.texts is None and not settings.endpoint:  # once: all weights are read for it
            ranks.broadcast(lambda: refuse_damaged(settings.model))
        self.texts = self.texts or make_texts(settings, self.run.machinery)
        return self.texts

    def close(self) -> None:
        if self.texts is not None:
            self.texts.close()


def run_eval(
    settings: EvalSettings,
    machinery: Machinery,
    bench: str,
    out: Path | None = None,
    regrade_only: bool = False,
) -> dict[str, Any]:
    """Evaluate, go on with an evaluation, or judge one again; returns what results.json holds."""
    if not settings.model:
        raise UserError("give a model and --bench, for example: sps eval runs/sps --bench gsm8k")
    names = [name.strip() for name in bench.split(",") if name.strip()]
    if bench and not names:
        raise UserError("--bench: name at least one benchmark, such as --bench aime24,math500")
    ranks = join_ranks(machinery.device)
    refuse_impossible(settings, machinery, ranks)
    parts = [make_part(name, settings, machinery) for name in names or [OWN]]
    for part in parts if names and ranks.main else ():
        warn_of_trained(settings.model, part.name, part.problems)
    folder = out or default_folder(settings.model)
    refuse_inside(folder)
    settings = ranks.broadcast(lambda: _resolved(settings, machinery, folder, regrade_only))
    judged = _judged(parts, machinery.cut)
    run = _Eval(settings, machinery, parts, folder, regrade_only, ranks, judged)
    asked = [run, *map(run.at, parse_temperatures(machinery.temperatures, settings.temperature))]
    try:
        for one in asked:  # before any of them draws
            ranks.broadcast(lambda one=one: _take(one))
        with closing(_Model(run)) as model:
            found = [_evaluate(one, model) for one in asked]
        told = ranks.broadcast(lambda: _write_temperatures(asked, found))
    finally:
        for one in asked:
            release(one.folder)
    ranks.leave()
    return found[0] | told


def _evaluate(run: _Eval, model: _Model) -> dict[str, Any]:
    claimed = _regrade(run) if run.regrade_only else _draw(run, model)
    return run.ranks.broadcast(lambda: _write(run, claimed))


def run_eval_compare(a: Path, b: Path) -> None:
    """Two finished evaluations, paired by question."""
    say(compare_markdown(compare(a, b)))


def _resolved(
    settings: EvalSettings, machinery: Machinery, folder: Path, regrade_only: bool
) -> EvalSettings:
    """A run by the checkpoint it stands for now, and 'auto' by what it is here, or was before."""
    if settings.endpoint:
        return replace(settings, dtype="auto")  # the server's own
    if not regrade_only:
        refuse_other_adapted(settings.model)
    dtype = settings.dtype
    if dtype == "auto":
        dtype = held(folder).get("dtype", "auto")
    if dtype == "auto" and not regrade_only:
        from sps.policy.load import pick_device, pick_dtype

        dtype = pick_dtype(dtype, pick_device(machinery.device))
    return replace(settings, model=resolve_model(settings.model), dtype=dtype)


def _take(run: _Eval) -> None:
    """Hold the folder. Another evaluation there is refused before anything is made."""
    _claim(run)
    try:
        hold(run.folder, "sps eval")
    except OSError as error:
        raise UserError(f"{run.folder}: cannot be written ({error.strerror}); see --out") from None


def _keep(run: _Eval) -> dict[str, Any]:
    """Write eval.json; returns what it says."""
    claimed = _claim(run)
    keep(run.folder, claimed)
    return claimed


def _claim(run: _Eval) -> dict[str, Any]:
    """What eval.json is to hold; weights of a hub id are known when it is loaded."""
    asked = {
        **asdict(run.settings),
        **run.judged,
        "right": run.machinery.right,
        "weights": ""
        if run.settings.endpoint
        else weights_digest(run.settings.model, run.settings.gguf),
        "questions": {
            part.name: _digest(json.dumps([[p.id, p.question] for p in part.problems]))
            for part in run.parts
        },
    }
    return claim(run.folder, asked, run.regrade_only)


def _draw(run: _Eval, model: _Model) -> dict[str, Any]:
    """Benchmark by benchmark; the model is loaded only if there is something to draw. Of one that
    cannot be loaded there is no eval.json."""
    n, ranks = run.settings.n, run.ranks
    done = ranks.broadcast(lambda: [_is_done(part, run.folder, n) for part in run.parts])
    lacking = [part for part, whole in zip(run.parts, done, strict=True) if not whole]
    texts = model.load() if lacking else None
    claimed = ranks.broadcast(lambda: _keep(run))
    if texts is None:
        return claimed
    for part in lacking:
        with _job(run, part) as job:
            collect(texts, job)
            ranks.broadcast(lambda job=job: job.store.replace(job.store.read()))
    return claimed


def _is_done(part: Part, folder: Path, n: int) -> bool:
    rows = part.stored(folder, n)
    return len(rows) == len(part.problems) * n and not is_doubtful(rows)


def _regrade(run: _Eval) -> dict[str, Any]:
    claimed = run.ranks.broadcast(lambda: _keep(run))
    for part in run.parts if run.ranks.main else ():
        with _job(run, part) as job:
            say(f"{part.name}: {regrade(job)[1]} verdicts changed")
    return claimed


@contextmanager
def _job(run: _Eval, part: Part) -> Iterator[EvalJob]:
    """A benchmark's samples, with a verifier and a progress bar of its own."""
    ranks = run.ranks
    store = EvalStore(run.folder / slug(part.name), ranks)
    name = part.name if ranks.size == 1 else f"{part.name}, rank 1 of {ranks.size}"
    if run.machinery.temperatures:
        name += f", T = {run.settings.temperature:g}"
    with closing(part.verifier()) as verifier, closing(make_progress(name, ranks.main)) as show:
        try:
            yield EvalJob(part.task, part.problems, run.settings.sampling(), verifier, store, show)
        except JudgeFails as error:
            how = (
                "the same command goes on with it; add --regrade where the judge's file is another"
            )
            raise RunFailed(f"{error}: {how}" if ranks.main else "") from None  # said once


def _write(run: _Eval, claimed: dict[str, Any]) -> dict[str, Any]:
    """Count, write and say what is found."""
    cut, n = run.machinery.cut, run.settings.n
    whole = {key: {**claimed[key], **now} for key, now in run.judged.items()}
    keep(run.folder, {**claimed, **whole})  # true of all verdicts, now that they are made
    # Not before: an evaluation that was stopped has to be judged again to go on.
    for part in run.parts if run.regrade_only else ():
        _check_complete(run.folder, part, n)
    rows = {part.name: _counted(run.folder, part, n) for part in run.parts}
    scores = {part.name: _count(part, n, rows[part.name]) for part in run.parts}
    about = {key: claimed[key] for key in asdict(run.settings)} | {"cut": cut}
    found = write_results(run.folder, about, scores, rows)
    say(markdown(title_of(about), scores))
    files = "results.json, table.md, table.tex, questions.md, */samples.parquet"
    say(f"written to {run.folder}: {files}")
    return found


def _counted(folder: Path, part: Part, n: int) -> list[dict[str, Any]]:
    """The samples that count; of others that are stored is said."""
    rows = part.stored(folder, MOST_SAMPLES)
    most = 1 + max((row["sample"] for row in rows), default=-1)
    if most > n:
        say(f"{part.name}: {n} of the {most} stored samples count; --n {most} counts all")
    return [row for row in rows if row["sample"] < n]


def _write_temperatures(asked: list[_Eval], found: list[dict[str, Any]]) -> dict[str, Any]:
    """All temperatures in one table, each less the first one, paired by question. Of one
    temperature there is none, nor one of before that does not hold any more."""
    file = asked[0].folder / "temperatures.json"
    if len(asked) == 1 and not file.exists():
        return {}
    scores = [
        {name: read_scores(summary) for name, summary in one["benchmarks"].items()} for one in found
    ]
    heats = dict(zip((one.settings.temperature for one in asked), scores, strict=True))
    record = temperature_record(heats)
    if len(asked) == 1:
        if not holds(file, record):
            file.unlink()
            file.with_suffix(".md").unlink(missing_ok=True)
        return {}
    text = temperature_table(asked[0].settings.model, record)
    file.write_text(json.dumps(record, indent=1), encoding="utf-8")
    file.with_suffix(".md").write_text(text, encoding="utf-8")
    say(f"{text}\nwritten to {file.with_suffix('.md')}, and temperatures.json")
    return {"temperatures": record}


def _count(part: Part, n: int, rows: list[dict[str, Any]]) -> Scores:
    told = count_solutions(part.task, part.problems, rows)
    return count_scores([p.id for p in part.problems], n, rows, None, told)


def make_part(name: str, settings: EvalSettings, machinery: Machinery) -> Part:
    """A benchmark by name, `countdown`, `gym:TASK`, or OWN; its data is loaded, nothing else is."""
    if name == OWN:
        judged = {"cut": machinery.cut, "right": machinery.right}
        task = own_task(settings.model, asdict(settings) | judged)
        return _part(name, task, settings)
    asked = Bench(
        name,
        settings.template,
        settings.instruction,
        machinery.cut,
        settings.limit,
        machinery.data_dir,
        machinery.workers,
        machinery.time_limit,
        tuple(machinery.unsafe.split(",")),
        machinery.right,
    )
    return _part(name, make_bench(asked), settings)


def _part(name: str, task: Task, settings: EvalSettings) -> Part:
    return Part(name, task, task.problems("test")[: settings.limit], partial(open_verifier, task))


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

    from sps.build import make_engine
    from sps.policy.load import best_threads, load_policy, pick_device

    device = pick_device(machinery.device)
    trust = machinery.trust_remote_code
    try:
        policy = load_policy(settings.model, settings.gguf, settings.dtype, device, trust)
    except UserError as error:
        raise cannot_load(settings.model, error) from None
    torch.set_num_threads(best_threads(policy.model))
    rows = machinery.max_rows or (64 if policy.model.device.type == "cpu" else 1024)
    return PolicyTexts(policy, make_engine(policy, rows))


def _check_complete(folder: Path, part: Part, n: int) -> None:
    """Refuse to count samples as wrong that were never drawn."""
    lacking = missing(part.problems, n, part.stored(folder, n))
    if not lacking:
        return
    whole = min(numbers[0] for numbers in lacking.values())
    bare = [part.problems[i].id for i, numbers in lacking.items() if not numbers[0]]
    shown = ", ".join(bare[:3]) + (f" and {len(bare) - 3} more" if len(bare) > 3 else "")
    hint = f"give --n {whole}, which every question has" if whole else f"there are none of {shown}"
    raise UserError(
        f"--regrade: what is stored is judged, but {folder} has not all {n} samples of "
        f"{len(lacking)} questions of {part.name}: {hint}; or draw them now, without --regrade"
    )


def _judged(parts: Sequence[Part], cut: str) -> dict[str, dict[str, str]]:
    """Taken before any verdict is made: a file may be changed while its judge is at work."""
    return {
        "cut": {part.name: cut for part in parts},
        "answers": {part.name: _digest(_golds(part)) for part in parts},
        "judge": {
            part.name: f"{source.name} {hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
            for part in parts
            if (source := part.task.source)
        },
    }


def _golds(part: Part) -> str:
    """As a judge reads them; a judge of the user's own may read any column."""
    own = part.task.source is not None
    return repr([(p.id, p.answer, dict(p.meta) if own else {}) for p in part.problems])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
