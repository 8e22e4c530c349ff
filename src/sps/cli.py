"""The command line. No logic lives here: a command reads its arguments and calls one function."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sps import __version__
from sps.errors import RunFailed, Stopped, UserError
from sps.run.disk import disk_failure

app = typer.Typer(
    help="Train reasoning models with RL without losing exploration.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_STOPPED = 130  # what shells expect of a program that Ctrl-C ended

_RECIPE = "A YAML file, or a short name such as demo/countdown_sps: `sps recipes` lists them."
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key: --set rl.lr=1e-6. Repeatable.")
]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
]
_BENCH = typer.Option(
    help="Benchmarks: aime24,math500,... or your own: math:rows.jsonl. Without: a run's own test "
    "problems."
)
_SAMPLES = typer.Option(
    *("--n", "--samples"),
    min=1,
    help="Samples a question. Default: 16, or without --bench that of the model's run.",
)
_COLDER = typer.Option(help="Also at these, paired with --temperature by question: 0.7,0.4,0.2.")


def _of_run(text: str, usual: float | str, **limits: Any) -> Any:
    """An option of sps eval that the recipe decides where the model comes from a run."""
    said = f"{text} Default: that of the model's run, else {usual}.".strip()
    return typer.Option(help=said, **limits)


class Device(StrEnum):
    """Where a model runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """What comes before a command."""


@app.command()
def demo(
    out: Annotated[
        Path | None,
        typer.Option(help="Where all goes. Default: runs/demo, or runs/demo-quick with --quick."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Runs of each method. Default: up to 3, as many as 6 minutes do."),
    ] = None,
    quick: Annotated[bool, typer.Option(help="A smoke test in under a minute.")] = False,
    again: Annotated[bool, typer.Option(help="Throw away an earlier demo in the folder.")] = False,
) -> None:
    """GRPO, SPS, and memory with SPS, mixed with the base, on Countdown: no GPU, no downloads."""
    from sps.commands.demo import run_demo

    run_demo(out, seeds=seeds, quick=quick, again=again)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
) -> None:
    """A starter of your own: a recipe, a task file, ten rows of data, a tiny policy."""
    from sps.commands.init import run_init

    run_init(folder)


@app.command()
def data(
    recipe: Annotated[Path, typer.Argument(help="A YAML recipe, or a short name.")],
    show: Annotated[int, typer.Option(min=0, help="Prompts to show.")] = 5,
    overrides: Set = None,
) -> None:
    """The data of a recipe: counts, lengths in tokens, repeats, overlap, prompts as they are."""
    from sps.commands.data import run_data

    run_data(recipe, show, overrides or [])


@app.command()
def recipes() -> None:
    """The recipes that are shipped, by short name, and where their files are."""
    from sps.commands.recipes import run_recipes

    run_recipes()


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help=_RECIPE)],
    out: Annotated[
        Path | None, typer.Option(help="The run folder. Default: runs/<name of the recipe>.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on from the last checkpoint.")] = False,
    stop_after: Annotated[
        str, typer.Option(help="Save and stop after this time: 25m, 3h, 1h30m.")
    ] = "",
    overrides: Set = None,
) -> None:
    """Train one run: RL phases, and IRL phases between them if the recipe has any."""
    from sps.commands.train import run_train

    run_train(recipe, out, resume, overrides or [], stop_after)


@app.command()
def compare(
    recipes: Annotated[
        list[Path], typer.Argument(help="One recipe a method, by file or short name.")
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method.")] = 3,
    out: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("runs/compare"),
    early: Annotated[
        str, typer.Option(help="Also evaluate the first method at these steps: 100,200.")
    ] = "",
    temperatures: Annotated[
        str, typer.Option(help="Also sample the base and all methods at these, validated: 0.4,0.7.")
    ] = "",
    mix: Annotated[
        str, typer.Option(help="Also mix the first method's weights with these shares of the base.")
    ] = "",
    sweep: Annotated[
        str, typer.Option(help="One method a value, of the last recipe: irl.keep=1,2,3.")
    ] = "",
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one a GPU, or a core.")] = 0,
    overrides: Set = None,
) -> None:
    """Several methods with the same budget and seeds, paired by question."""
    from sps.commands.compare import run_compare

    run_compare(recipes, seeds, out, early, temperatures, workers, overrides or [], sweep, mix)


@app.command()
def tune(
    recipes: Annotated[
        list[Path], typer.Argument(help="One recipe a method, by file or short name.")
    ],
    over: Annotated[
        list[str], typer.Option(help="Values to try of a key: rl.lr=1e-4,2e-4. Repeatable.")
    ],
    trials: Annotated[int, typer.Option(min=1, help="Settings of each method.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each setting.")] = 1,
    out: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("runs/tune"),
) -> None:
    """As many settings for each method, the best chosen on validation problems alone."""
    from sps.commands.tune import run_tune

    run_tune(recipes, over, trials, seeds, out)


@app.command()
def mix(
    first: Annotated[str, typer.Argument(help="A model, such as the base: folder, run or recipe.")],
    second: Annotated[str, typer.Argument(help="Another of the same shape, such as a run.")],
    share: Annotated[str, typer.Option(help="Of the first, between 0 and 1: 0.3,0.5.")],
    out: Annotated[Path, typer.Option(help="A folder for the mixes, share-0.3 and so on.")],
) -> None:
    """Mix the weights of two models: a share of the first, the rest of the second."""
    from sps.commands.mix import run_mix

    typer.echo(run_mix(first, second, share, out))


@app.command("eval")
def evaluate(
    model: Annotated[
        str,
        typer.Argument(help="HF folder, hub id, .gguf file, run, checkpoint, or a served name."),
    ] = "",
    bench: Annotated[str, _BENCH] = "",
    n: Annotated[int | None, _SAMPLES] = None,
    out: Annotated[Path | None, typer.Option(help="Default: evals/<model>.")] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Local copies of the benchmarks, instead of the hub.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible server: http://host:8000/v1.")
    ] = None,
    temperature: Annotated[float | None, _of_run("0 is greedy.", 0.7, min=0)] = None,
    temperatures: Annotated[str, _COLDER] = "",
    top_p: Annotated[float | None, _of_run("", 1, min=0, max=1)] = None,
    top_k: Annotated[int | None, _of_run("0 keeps all tokens.", 0, min=0)] = None,
    max_new_tokens: Annotated[int | None, _of_run("", 4096, min=1)] = None,
    seed: Annotated[int | None, _of_run("", 0)] = None,
    template: Annotated[str | None, _of_run("chat, qwen_boxed, r1 or plain.", "chat")] = None,
    instruction: Annotated[str | None, typer.Option(help="Instead of the usual sentence.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first questions of each.")] = None,
    max_rows: Annotated[
        int, typer.Option(min=0, help="Sequences decoded at once; 0: 64 on a CPU, 1024 on a GPU.")
    ] = 0,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16; auto: by device.")] = "auto",
    device: Annotated[Device, typer.Option(help="auto: CUDA where there is one.")] = Device.auto,
    workers: Annotated[int, typer.Option(min=0, help="Judging processes; 0: one a core.")] = 0,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds a verdict may take.")] = 6.0,
    cut: Annotated[str | None, _of_run("Cut-off answers: zero, or judge a box.", "zero")] = None,
    right: Annotated[float | None, _of_run("Reward that is right, of python: tasks.", 1)] = None,
    unsafe: Annotated[str, typer.Option(help="gym tasks that may evaluate answers.")] = "",
    retries: Annotated[int, typer.Option(help="Of a request to the endpoint.")] = 6,
    api_key_env: Annotated[str, typer.Option(help="Variable with its key.")] = "OPENAI_API_KEY",
    gguf: Annotated[str | None, typer.Option(help="The .gguf file inside the folder.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests to the endpoint.")] = 16,
    trust_remote_code: Trust = False,
    regrade: Annotated[
        bool, typer.Option("--regrade", help="Judge the stored texts again; draw nothing.")
    ] = False,
    compare_with: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", help="Two finished evaluations, paired by question."),
    ] = None,
) -> None:
    """Pass@k and Avg@n with intervals; goes on where it was stopped."""
    given = dict(locals())
    for other in ("model", "bench", "out", "regrade", "compare_with"):  # the rest are options
        given.pop(other)
    from sps.commands.eval_options import make_options
    from sps.commands.evaluate import run_eval, run_eval_compare

    if compare_with is not None:
        run_eval_compare(*compare_with)
        return
    run_eval(*make_options(model, given, bench, regrade, out), bench, out, regrade)


@app.command()
def report(
    places: Annotated[
        list[Path],
        typer.Argument(help="Run folders, a comparison's folder, or a file of its results."),
    ],
    out: Annotated[Path | None, typer.Option(help="Default: report.html in the first one.")] = None,
    svg: Annotated[
        Path | None,
        typer.Option(help="Plots instead: the first as FILE.svg, or all of them in a folder."),
    ] = None,
) -> None:
    """One self-contained HTML file of runs or comparisons, or their plots as SVG files."""
    from sps.commands.report import run_report

    typer.echo(run_report(places, out, svg))


@app.command()
def diagnose(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path | None, typer.Option(help="Default: diagnosis.json in the run.")] = None,
) -> None:
    """Every analysis of the paper on a run: squeeze, buckets, questions gained and lost, cost."""
    from sps.commands.report import run_diagnose

    typer.echo(run_diagnose(run, out))


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(help="A run folder, also one that is still growing.")],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="On this machine alone; 0: any free one.")
    ] = 8765,
    browser: Annotated[bool, typer.Option("--browser", help="Open it there, too.")] = False,
) -> None:
    """Serve the report of a run while it goes on."""
    from sps.commands.report import run_watch

    run_watch(run, port, browser)


class Sharding(StrEnum):
    """Where weights, gradients and optimizer are: on every GPU, or divided over them."""

    auto = "auto"
    replicated = "replicated"
    fsdp2 = "fsdp2"


@app.command()
def doctor(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe to examine; none is run.")] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="Default: those of this machine, or 1.")
    ] = None,
    gpu_memory: Annotated[
        float | None, typer.Option(min=1, help="GiB of each. Default: this machine's, or 139.")
    ] = None,
    sharding: Annotated[Sharding, typer.Option(help="auto shows both.")] = Sharding.auto,
    engine: Annotated[
        str | None, typer.Option(help="What draws rollouts. Default: the recipe's.")
    ] = None,
    overrides: Set = None,
) -> None:
    """What is installed, what a recipe needs, what would fail; exit code 2 where it cannot run."""
    from sps.commands.doctor import run_doctor, this_machine

    run_doctor(recipe, overrides or [], this_machine(gpus, gpu_memory), sharding, engine)


def main() -> None:
    """Run a command; bad input is one paragraph and exit code 2, never a traceback."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        if app(standalone_mode=False) == _STOPPED:  # typer's own answer to Ctrl-C
            raise KeyboardInterrupt
    except UserError as error:
        _fail(f"error: {error}" if str(error) else "", 2)
    except RunFailed as error:
        _fail(f"failed: {error}" if str(error) else "", 1)
    except Stopped as stopped:
        _fail(str(stopped), 0)
    except (KeyboardInterrupt, typer.Abort):
        text = "what has finished is kept, and the same command goes on from there"
        _fail(f"stopped; {text} (sps train with --resume)", _STOPPED)
    except Exception as error:
        if isinstance(error, OSError) and (said := disk_failure(error)):
            _fail(f"failed: {said}", 1)
        show = getattr(error, "show", None)  # what typer raises for a bad command line
        if show is None:
            raise
        show()
        sys.exit(2)


def _fail(text: str, code: int) -> None:
    sys.stderr.write(text + "\n" if text else "")  # another rank has said it
    sys.exit(code)
