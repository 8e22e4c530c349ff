"""What `import sps` offers: the commands as functions, and their results as plain objects.

Long calls show how they get on, as the commands do: a panel on a terminal or in a notebook, lines
elsewhere. Errors are those of the commands: UserError for bad input, RunFailed where work could not
be done.
"""

from __future__ import annotations

import difflib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sps.config.load import RecipeLike, load_recipe
from sps.config.recipe import Recipe
from sps.errors import UserError
from sps.run.folder import RECORD, RESULTS
from sps.run.reading import read_json
from sps.run.track import read_records

Interval = tuple[float, float, float]  # mean, and the ends of its 95 % interval
Row = dict[str, Any]


class Table(ABC):
    """Something with rows."""

    @property
    @abstractmethod
    def rows(self) -> list[Row]:
        """The rows, one dict each."""

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame; pandas is not installed with sps."""
        try:
            import pandas
        except ImportError:
            raise UserError("to_pandas needs pandas; run: pip install pandas") from None
        return pandas.DataFrame(self.rows)


@dataclass(frozen=True)
class Trained(Table):
    """A run that has ended; its rows are its RL steps."""

    folder: Path
    records: list[Row]  # of metrics.jsonl
    scores: Any  # of the test set: sps.evaluation.scores.Scores; None with evaluation.final: false

    def __repr__(self) -> str:
        """Where it is and how far it went: the records are thousands of numbers."""
        return f"Trained({str(self.folder)!r}, {len(self.steps)} RL steps)"

    @property
    def steps(self) -> list[Row]:
        """What was recorded of each RL step: step, reward, entropy and so on."""
        return [record for record in self.records if record["kind"] == "rl"]

    @property
    def rows(self) -> list[Row]:
        """The RL steps."""
        return self.steps

    def pass_at_k(self, k: int) -> Interval:
        """Pass@k on the test set."""
        if self.scores is None:
            raise UserError("this run made no test scores; set evaluation.final: true")
        if not 1 <= k <= self.scores.n:
            raise UserError(f"pass_at_k({k}): from 1 to evaluation.n, {self.scores.n}")
        return self.scores.pass_at_k(k)


@dataclass(frozen=True)
class Measured(Table):
    """Results of an evaluation or a comparison; a row is one of `what` and one k."""

    folder: Path
    results: Row  # of results.json
    what: str  # 'benchmark' or 'method'

    def __repr__(self) -> str:
        """Names and the ends of Pass@k: results may hold hundreds of thousands of numbers."""
        shown = []
        for name, one in self.results[f"{self.what}s"].items():
            ks = sorted(map(int, one["pass_at_k"]))
            ends = dict.fromkeys((ks[0], ks[-1])) if ks else ()
            said = [f"Pass@{k} {100 * one['pass_at_k'][str(k)][0]:.1f}" for k in ends]
            shown.append(f"{name}: {', '.join(said)}")
        return f"Measured({str(self.folder)!r}, {'; '.join(shown)})"

    @property
    def rows(self) -> list[Row]:
        """Pass@k with the ends of its 95 % interval."""
        return [
            {self.what: name, "k": int(k), "pass_at_k": mean, "low": low, "high": high}
            for name, one in self.results[f"{self.what}s"].items()
            for k, (mean, low, high) in one["pass_at_k"].items()
        ]

    def pass_at_k(self, name: str, k: int) -> Interval:
        """Pass@k of one benchmark or method."""
        known = self.results[f"{self.what}s"]
        if name not in known or str(k) not in known[name]["pass_at_k"]:
            raise UserError(f"pass_at_k({name!r}, {k}): not measured; .rows has what was")
        mean, low, high = known[name]["pass_at_k"][str(k)]
        return mean, low, high


def train(
    recipe: RecipeLike,
    out: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    overrides: Iterable[str] = (),
) -> Trained:
    """`sps train`: a recipe, its file or what that would hold, and `a.b=c` overrides; the folder is
    runs/NAME by default."""
    from sps.build import open_run
    from sps.commands.doctor import refuse_too_large
    from sps.commands.train import find_trackers, make_base
    from sps.loop import train as loop
    from sps.progress.live import Progress
    from sps.progress.trackers import follow

    with _told_in_python():
        recipe = load_recipe(recipe, _texts_of(overrides, "overrides"))
    given = _path_of(out, "out") if out else None
    for check in (refuse_too_large, find_trackers, make_base):
        check(recipe)
    folder = given or Path("runs") / recipe.name
    with Progress(recipe.rl.steps, recipe.name) as progress:
        with _told_in_python():
            run = open_run(recipe, folder, resume, [progress])
        try:
            follow(run.track, recipe, recipe.name)
            scores = loop(run)
        finally:
            run.close()
    return Trained(folder, read_records(folder / RECORD), scores)


def _path_of(given: Any, name: str) -> Path:
    """An argument that is a path; other types are told before anything is done with them."""
    if not isinstance(given, str | os.PathLike):
        hint = "; give its .folder" if isinstance(given, Trained | Measured) else ""
        raise UserError(f"{name}: give a path, not a {type(given).__name__}{hint}")
    return Path(os.fsdecode(given))


def _several(given: Any) -> list[Any] | None:
    """What a list, a set, an iterator and so on holds; None of what is one thing itself."""
    one = isinstance(given, str | bytes | os.PathLike | Mapping | Recipe)
    return None if one or not isinstance(given, Iterable) else list(given)


def _texts_of(given: Any, name: str) -> list[str]:
    """An argument that is several texts: of one alone Python would take the letters."""
    texts = _several(given)
    if texts is not None and all(isinstance(text, str) for text in texts):
        return texts
    shown = repr(given) if isinstance(given, str) else f"a {type(given).__name__}"
    raise UserError(f"{name}: give a list of texts, not {shown}")


@contextmanager
def _told_in_python() -> Iterator[None]:
    """What the command line would have one write is said as arguments."""
    try:
        yield
    except UserError as error:
        text = re.sub(r"--set ([\w.]+=\S+?)(?=:?(?:\s|$))", r'overrides=["\1"]', str(error))
        raise UserError(text.replace("--resume", "resume=True").replace("--out", "out=")) from None


def _heats_of(given: Any) -> str:
    """Sampling temperatures, as numbers or as text, as the command line would have them."""
    several = [] if given is None else _several(given)
    return ",".join(map(str, [given] if several is None else several))


def evaluate(
    model: str | os.PathLike[str],
    bench: str | Iterable[str] = "",
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Measured:
    """`sps eval`: a model on benchmarks, without them a run on its own test problems.

    `options` are the command's, such as n=16 or temperatures=[0.7, 0.4]; so are their defaults.
    `results["temperatures"]` has these, beside what was drawn at `temperature`.
    """
    from sps.commands.eval_options import EvalSettings, Machinery, make_options
    from sps.commands.evaluate import run_eval
    from sps.evaluation.claim import default_folder

    known = {f.name: kind for kind in (EvalSettings, Machinery) for f in fields(kind)}
    for name in options:
        if name not in known or name == "model":
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
            raise UserError(f"evaluate: no option {name}; {hint}")
    names = bench if isinstance(bench, str) else ",".join(_texts_of(bench, "bench"))
    if not isinstance(model, str):  # an endpoint's model is a name as it stands
        model = str(_path_of(model, "model"))
    folder = _path_of(out, "out") if out else default_folder(model)
    options["temperatures"] = _heats_of(options.get("temperatures"))
    settings, machinery = make_options(model, options, names, out=folder)
    return Measured(folder, run_eval(settings, machinery, names, folder), "benchmark")


def compare(
    recipes: Iterable[RecipeLike],
    out: str | os.PathLike[str] = "runs/compare",
    *,
    seeds: int = 3,
    workers: int = 0,
    overrides: Iterable[str] = (),
    temperatures: Iterable[float] | str = (),
) -> Measured:
    """`sps compare`: recipes, each as `train` takes it, with the same seeds, paired by question.

    It starts processes: in a script call it under `if __name__ == "__main__":`; a notebook needs no
    such line.
    """
    from sps.commands.compare import run_compare

    paths = _several(recipes)
    if paths is None:
        raise UserError("recipes: give a list of them, also of one alone")
    folder = _path_of(out, "out")
    run_compare(
        paths=paths,
        seeds=seeds,
        out=folder,
        early="",
        temperatures=_heats_of(temperatures),
        workers=workers,
        overrides=_texts_of(overrides, "overrides"),
    )
    return Measured(folder, read_json(folder / RESULTS), "method")


def report(
    folders: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
) -> Path:
    """`sps report`: one HTML file of runs or comparisons; returns where it is."""
    from sps.commands.report import report_path, run_report

    given = _several(folders)
    paths = [_path_of(folder, "folders") for folder in ([folders] if given is None else given)]
    page = _path_of(out, "out") if out else None
    run_report(paths, page)
    return page or report_path(paths[0])
