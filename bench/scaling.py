"""The table of docs/scaling.md: the paper's SPS recipe with larger models on more GPUs.

Arithmetic alone (`sps.commands.estimate`), nothing is run: python -m bench scaling
"""

from pathlib import Path

from sps.commands.doctor import H200
from sps.commands.estimate import GIB, NODE, SHAPES, Needs, Plan, Shape, lighter, needs
from sps.config.load import load_recipe
from sps.config.recipe import Recipe

RECIPE = Path(__file__).parents[1] / "recipes" / "paper" / "sps.yaml"
MODELS = ("Qwen/Qwen2.5-Math-1.5B", "Qwen/Qwen2.5-Math-7B", "Qwen/Qwen2.5-32B")


def table(recipe: Recipe) -> list[str]:
    """GiB on each GPU, and the fastest way that fits, as Markdown."""
    lines = [
        "| model | GPUs | replicated | fsdp2 | fsdp2, vLLM over 8 | of 80 GiB | of 139 GiB |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for path in MODELS:
        shape = Shape(*SHAPES[path])
        for gpus in (8, 16, 32):
            plans = [Plan(gpus), Plan(gpus, True), Plan(gpus, True, "vllm", NODE)]
            found = [(plan, needs(recipe, shape, plan=plan)) for plan in plans]
            cells = [f"{need.total / GIB:.0f}" for _, need in found]
            cells += [_choice(recipe, shape, found, gib) for gib in (80, H200)]
            lines.append(f"| {path.split('/')[1]} | {gpus} | {' | '.join(cells)} |")
    return lines


def _choice(recipe: Recipe, shape: Shape, found: list[tuple[Plan, Needs]], gib: float) -> str:
    fitting = [pair for pair in found if pair[1].fits(gib * GIB)]
    if fitting:
        plan, need = min(fitting, key=lambda pair: pair[1].seconds)
        return f"{plan.name}: {need.seconds:.0f} s"
    for plan, _ in found:
        more = lighter(recipe, shape, plan, gib * GIB)
        if more:
            return f"{plan.name}, with {more}"
    return "does not fit"


def main() -> None:
    """Print it."""
    print("\n".join(table(load_recipe(RECIPE))))
