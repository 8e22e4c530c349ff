"""`sps train`: one run."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

from sps.commands.doctor import refuse_too_large
from sps.commands.terminal import console, status
from sps.config.load import load_recipe
from sps.config.recipe import Recipe
from sps.errors import Stopped
from sps.progress.trackers import find_tracker, follow
from sps.ranks import Ranks, join_ranks
from sps.reporting.style import spelled
from sps.run.stop import Stop
from sps.run.track import Listener


def run_train(
    path: Path, out: Path | None, resume: bool, overrides: list[str], stop_after: str = ""
) -> None:
    """One run, its progress, and its test scores."""
    recipe = load_recipe(path, overrides)
    refuse_too_large(recipe)
    ranks, stop = join_ranks(recipe.model.place), Stop()
    try:
        with stop.listening(stop_after):
            _train(recipe, out or Path("runs") / recipe.name, resume, ranks, stop)
    except Stopped as stopped:
        if ranks.main:
            sys.stderr.write(f"{stopped}\n")
        ranks.leave()
        raise Stopped from None  # said
    ranks.leave()


def _train(recipe: Recipe, folder: Path, resume: bool, ranks: Ranks, stop: Stop) -> None:
    alone = ranks.size == 1
    if ranks.main:
        find_trackers(recipe)
        with stop.window(alone):
            make_base(recipe)
    else:
        console.quiet = True
    from sps.build import open_run
    from sps.loop import train
    from sps.progress.live import Progress

    if ranks.accelerator:
        how = "DeepSpeed" if ranks.deepspeed else "FSDP2"
        kind = f"weights sharded ({how})" if ranks.sharded else "weights on every rank"
        console.print(f"{ranks.size} rank{'s' * (ranks.size > 1)}, {kind}", highlight=False)
    show = Progress(recipe.rl.steps, spelled(recipe.name)) if ranks.main else nullcontext()
    with show as progress:
        listeners: list[Listener] = [progress] if progress else []
        with stop.window(alone):
            run = open_run(recipe, folder, resume, listeners, ranks)
        run.stop = stop
        follow(run.track, recipe, recipe.name)
        if run.start:
            console.print(f"resumed after step {run.start}")
        try:
            scores = train(run)
        except Stopped:
            run.close()
            raise
        run.close()
    if scores is not None:
        for k in scores.report_ks():
            mean, low, high = scores.pass_at_k(k)
            console.print(f"Pass@{k:<4} {mean:6.1%}  [{low:.1%}, {high:.1%}]")
    console.print(f"run folder: {folder}")


def make_base(recipe: Recipe) -> None:
    """Make the embedded policy if it is not there yet, once, before runs ask for it."""
    if recipe.model.path is not None:
        return
    from sps.build import ensure_base

    with status("making the base policy") as show:

        def progress(step: int, of: int, loss: float) -> None:
            if step == 1:  # also where no terminal shows the status
                console.print(
                    "this recipe's embedded policy is not there yet: it is made first, in "
                    f"{of} steps, and kept; that takes minutes",
                    soft_wrap=True,
                )
            show(f"making the base policy: step {step}/{of}, loss {loss:.3f}")

        ensure_base(recipe, progress)


def find_trackers(recipe: Recipe) -> None:
    """Before any work: one that is not installed is said at once."""
    if recipe.track:
        find_tracker(recipe.track)
