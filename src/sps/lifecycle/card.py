"""What lets others use a checkpoint without this program: its model card and generation settings.

A card is written from the run folder and the recipe alone, without times, so that a resumed run
writes the same card. Whatever comes from data or from a recipe is escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from transformers import GenerationConfig

from sps import __version__
from sps.config.recipe import Recipe
from sps.data.config import data_sets
from sps.evaluation.scores import Scores, load_scores
from sps.evaluation.tables import shown_ks
from sps.phases.run import Run
from sps.policy.load import Policy
from sps.run.began import in_place
from sps.run.disk import write_whole
from sps.run.folder import RECORD, checkpoint_path, mixed_path, scores_path
from sps.run.track import read_records
from sps.schema import Node
from sps.types import Problem

Record = dict[str, Any]  # one of metrics.jsonl

_SELECTED = {
    "last": "It is the last checkpoint; none was selected.",
    "honest": "Among the saved checkpoints it was the best on the validation problems.",
    "paper": "Among the saved checkpoints it was the best on these very test problems, as the "
    "paper selected: the figures flatter it.",
}
_FULL = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")  # this folder, or its id on the hub
model = AutoModelForCausalLM.from_pretrained(".")"""
_ADAPTER = """\
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer, GenerationConfig

tokenizer = AutoTokenizer.from_pretrained(".")  # this folder, or its id on the hub
model = AutoPeftModelForCausalLM.from_pretrained(".")  # loads the base model, too
model.generation_config = GenerationConfig.from_pretrained(".")"""


def describe(run: Run, step: int) -> dict[str, str]:
    """Files of a checkpoint besides weights and tokenizer, as texts by name."""
    return {
        "generation_config.json": generation(run.policy, run.recipe),
        "README.md": card(run, step),
    }


def rewrite_card(run: Run, step: int, share: float) -> None:
    """The card of the selected checkpoint, or of its mix with a share of the base, with its test
    scores; whole or as it was."""
    folder = mixed_path(run.folder) if share else checkpoint_path(run.folder, step)
    write_whole(folder / "README.md", card(run, step, share))


def generation(policy: Policy, recipe: Recipe) -> str:
    """`generate` samples as the evaluation did. Settings that came with the base, such as a penalty
    for repetition, were not used there and are left out."""
    how, ends = recipe.evaluation, policy.eos_ids
    sampling: dict[str, Any] = {"do_sample": how.temperature > 0}
    if how.temperature > 0:  # top_k is written even when off: transformers would take 50
        sampling |= {"temperature": how.temperature, "top_p": how.top_p, "top_k": how.top_k}
    return GenerationConfig(
        bos_token_id=policy.model.generation_config.bos_token_id,
        eos_token_id=ends[0] if len(ends) == 1 else ends,
        pad_token_id=policy.pad_id,
        max_new_tokens=recipe.rollout.max_new_tokens,
        **sampling,
    ).to_json_string()


def card(run: Run, step: int, share: float | None = None) -> str:
    """The model card of the checkpoint of a step: YAML for the hub, then Markdown. With the base's
    share in it, of what the run ended with."""
    recipe = _as_begun(run)
    records = [r for r in read_records(run.folder / RECORD) if r["step"] <= step]
    sections = [
        f"---\n{_yaml(front_matter(recipe))}---",
        f"# {plain(recipe.name or 'run')}, step {step}{', mixed with its base' * bool(share)}",
        _what(recipe, step) + _mixed(run, step, share),
        "## Load it",
        _code(_FULL if recipe.model.lora is None else _ADAPTER, "python"),
        _prompt(run),
        "## Data",
        *_data(run, records),
        "## Pass@k",
        *_passk(recipe, run.folder, step, share),
        "## How concentrated it is",
        *_squeeze(records),
        "## How it was made",
        f"`sps train recipe.yaml` of sps {__version__}, with this recipe; keys that are not here "
        "have their defaults, and local files are named without their folders.",
        _code(_yaml(recipe_differences(recipe)), "yaml"),
    ]
    return "\n\n".join(section.strip("\n") for section in sections) + "\n"


def _as_begun(run: Run) -> Recipe:
    """The recipe; a base that is where the run was started, and not here, is no hub id."""
    model = run.recipe.model
    path = model.path and in_place(run.folder, model.path)
    return run.recipe.model_copy(update={"model": model.model_copy(update={"path": path})})


def front_matter(recipe: Recipe) -> dict[str, Any]:
    """What the hub reads; `base_model` and `datasets` only where they are ids on the hub."""
    adapter = recipe.model.lora is not None
    tags = ["sps", "rlvr", "reinforcement-learning", recipe.rl.algorithm.type, recipe.task.type]
    out: dict[str, Any] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": tags + ["lora"] * adapter,
    }
    base, data = recipe.model.path, getattr(recipe.task, "data", None)
    if base is not None and recipe.model.gguf is None and is_hub_id(base):
        out |= {"base_model": base, "base_model_relation": "adapter" if adapter else "finetune"}
    if data is not None and is_hub_id(data):
        out["datasets"] = [data]
    return out


def recipe_differences(recipe: Recipe) -> dict[str, Any]:
    """The recipe without what is as by default; name, seed and every `type` stay."""
    return {"name": recipe.name, "seed": recipe.seed, **_differences(recipe)}


def is_hub_id(text: str) -> bool:
    """owner/name, and no such folder or file here."""
    return bool(re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", text, re.A)) and not (
        Path(text).suffix in {".gguf", ".jsonl", ".json", ".parquet", ".csv"} or Path(text).exists()
    )


def plain(text: Any) -> str:
    """Text as one line of Markdown that means nothing but itself."""
    return re.sub(r"([\\`*_\[\]<>|#~$&!])", r"\\\1", " ".join(str(text).split()))


def _differences(node: Node) -> dict[str, Any]:
    out: dict[str, Any] = {}
    written = node.model_dump(mode="json")
    for name, about in type(node).model_fields.items():
        value = getattr(node, name)
        if name != "type" and value == about.default:
            continue
        if isinstance(value, Node):
            out[name] = _differences(value)
        # A card is for others: where files lie on this machine is not for them.
        elif name in ("path", "data", "data_dir") and not is_hub_id(value):
            out[name] = Path(value).name
        else:
            out[name] = written[name]
    return out


_NAMES = {
    "dr_grpo": "Dr. GRPO",
    "pass_at_k": "Pass@k training",
    "w_reinforce": "weighted REINFORCE",
    "maxrl": "MaxRL",
    "differential_smoothing": "differential smoothing",
    "rs_grpo": "RS-GRPO",
    "unlikeliness": "the unlikeliness reward",
    "kl_cov": "KL-Cov",
    "clip_cov": "Clip-Cov",
}


def _what(recipe: Recipe, step: int) -> str:
    path = recipe.model.path
    if path is None:
        base = "the small Llama for Countdown that sps makes (`model.base`)"
    elif is_hub_id(path):
        base = f"[{plain(path)}](https://huggingface.co/{path})"
    else:
        base = f"a local model, {plain(Path(path).name)}"
    kind = recipe.rl.algorithm.type
    how = _NAMES.get(kind, kind.upper())
    if recipe.irl.steps:
        how += (
            " and SPS (*Steering Probability Squeezing*, arXiv 2604.16995): between RL phases the "
            "policy is pulled back towards unlikely rollouts"
        )
    adapter = recipe.model.lora is not None
    kind = "LoRA adapters, without the model itself," if adapter else "A checkpoint"
    where = " `adapter_config.json` names the model's folder where it was trained: put in yours."
    return (
        f"{kind} of {base}, trained by reinforcement learning from verifiable rewards with {how}. "
        f"Written after step {step} of {recipe.rl.steps}; seed {recipe.seed}."
    ) + (where if adapter and not (path and is_hub_id(path)) else "")


def _mixed(run: Run, step: int, share: float | None) -> str:
    if not share:
        return ""
    chosen = _why(run, step) if run.recipe.checkpoint.mix == "auto" else ""
    return (
        f" Then mixed: every weight here is {share:g} of the base's{chosen} and {1 - share:g} of "
        "that checkpoint's, which is what the Pass@k below are of; what is said of training is of "
        "the checkpoint itself."
    )


def _why(run: Run, step: int) -> str:
    """How a share that chose itself did, on the problems that it was chosen on."""
    n, names = run.recipe.evaluation.validation_n, (f"mixed-{step:06d}", "validation-000000")
    now, base = (load_scores(scores_path(run.folder, name)).pass_at_k(n)[0] for name in names)
    if now < base:
        return (
            f" (the largest share that is tried; none kept the base's Pass@{n} on the validation "
            f"problems, {base:.1%}: it is {now:.1%})"
        )
    return f" (the least share that kept the base's Pass@{n} on the validation problems)"


def _prompt(run: Run) -> str:
    # Without a template the question is the prompt, or the user's own code makes it.
    shaped = getattr(run.recipe.task, "template", None) and run.task.source is None
    problem = Problem("", "{question}", "") if shaped or not run.validation else run.validation[0]
    prompt = run.task.prompt(problem)
    how = run.recipe.evaluation
    drawn = f"temperature {how.temperature:g}, top-p {how.top_p:g}, top-k {how.top_k or 'off'}"
    text = f"`generation_config.json` samples as the evaluation below did: {drawn}."
    if isinstance(prompt, str):
        return f"{text} A prompt looks like this:\n\n{_code(prompt, 'text')}"
    messages = json.dumps(prompt, ensure_ascii=False, indent=1)
    return f"{text} A prompt is made by the tokenizer's chat template from\n\n" + _code(
        messages, "json"
    )


def _data(run: Run, records: list[Record]) -> Iterator[str]:
    task = run.recipe.task
    sources = [source.data for source in data_sets(task)]
    sources = sources or [getattr(task, "name", None) or getattr(task, "path", None) or ""]
    names = [s if is_hub_id(s) else Path(s).name for s in sources if s]
    named = f", {plain(', '.join(names))}" if names else ""
    tests = ", ".join(plain(b) for b in getattr(task, "benchmarks", ())) or "held out"
    yield (
        f"Task: {task.type}{named}. {len(run.train)} training problems, "
        f"{len(run.validation)} for validation, {len(run.test)} test problems ({tests})."
    )
    for record in records:
        if "overlaps" in record:
            yield plain(record["text"])


def _passk(recipe: Recipe, folder: Path, step: int, share: float | None) -> Iterator[str]:
    name, selected = "mixed" if share else "validation", share is not None
    validation = _scores(folder, f"{name}-{step:06d}")
    test = _scores(folder, "test") if selected else None
    if validation is None and test is None:
        yield "This checkpoint was not evaluated."
        return
    yield "Per cent, with the 95 % interval over questions."
    if validation:
        yield "\n".join(_table({"validation": validation}))
    if test:
        run = _by_benchmark(test, getattr(recipe.task, "benchmarks", ()))
        yield "\n".join(_table(run or {"test": test}))
        yield _SELECTED[recipe.evaluation.select]


def _scores(folder: Path, name: str) -> Scores | None:
    path = scores_path(folder, name)
    return load_scores(path) if path.exists() else None


def _by_benchmark(scores: Scores, names: tuple[str, ...]) -> dict[str, Scores]:
    """Each benchmark's questions by the front of their ids, and all of them."""
    out = {}
    for name in names:
        at = [i for i, question in enumerate(scores.ids) if question.startswith(f"{name}/")]
        if at:
            ids = tuple(scores.ids[i] for i in at)
            out[name] = replace(scores, ids=ids, correct_Q=scores.correct_Q[at])
    return out | {"all": scores} if len(out) > 1 else out


def _table(rows: Mapping[str, Scores]) -> Iterator[str]:
    n = next(iter(rows.values())).n
    ks = sorted({1, *shown_ks(n)})
    yield f"| problems | questions x samples | {' | '.join(f'Pass@{k}' for k in ks)} |"
    yield f"| --- |{' ---: |' * (len(ks) + 1)}"
    for name, scores in rows.items():
        cells = []
        for k in ks:
            mean, low, high = (100 * value for value in scores.pass_at_k(k))
            cells.append(f"{mean:.1f} [{low:.1f}, {high:.1f}]")
        yield f"| {plain(name)} | {len(scores.ids)} x {n} | {' | '.join(cells)} |"


def _squeeze(records: list[Record]) -> Iterator[str]:
    rl = [r for r in records if r["kind"] == "rl"]
    tried = [r for r in records if str(r.get("name", "")).startswith("validation-")]
    tried.sort(key=lambda r: r["step"])  # the base may have been measured again at the end
    rows = [
        _change("log-probability of a sampled token", rl, "logprob"),
        _change("entropy of a token", rl, "entropy"),
        _change("log-probability of a greedy answer to a validation problem", tried,
                "greedy_logprob"),
    ]  # fmt: skip
    yield (
        "RL concentrates a policy on few answers: log-probabilities rise, the entropy falls. In "
        "brackets the step."
    )
    yield "\n".join(["| mean | first | here |", "| --- | ---: | ---: |", *filter(None, rows)])
    moved = {r["of"]: r for r in records if r["kind"] == "meter"}
    for kind, r in moved.items():
        kl = f"a KL of {r['kl']:.2e} a token on held-out rollouts and " if "kl" in r else ""
        since = f" from step {r['since_step']}" if "since_step" in r else ""
        yield (
            f"The last {kind.upper()} phase,{since} up to step {r['step']}, moved the policy by "
            f"{kl}{r['relative_update']:.2e} of the size of its weights."
        )


def _change(what: str, records: list[Record], name: str) -> str:
    found = [r for r in records if r.get(name) is not None]
    if not found:
        return ""
    cells = [f"{r[name]:.3f} ({r['step']})" for r in (found[0], found[-1])]
    return f"| {what} | {' | '.join(cells)} |"


def _yaml(tree: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True)


def _code(text: str, language: str) -> str:
    """A block whose fence is longer than any inside it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
