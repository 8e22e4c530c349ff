"""The methods of `bench.beds`, what is tried of each, and the beds."""

from __future__ import annotations

SPS = ["irl.steps=4", "irl.batch=512", "irl.keep=3"]
MEMORY = ["irl.memory.weight=1"]
OF_BASE = ["irl.memory.source=base", "irl.memory.distinct=false"]
REPLAY = ["irl.memory.weight=0.109375", "irl.memory.per_problem=16", "irl.memory.reduce=sequence"]

# What sets a method apart, as `--set` says it; the rest is the bed's. `NAME_mixed` are the last
# weights of NAME's runs, mixed with the base's, `NAME_tempered` its path and then these weights at
# other temperatures, `NAME_mixed_tempered` mixes at these (bench/bed_ends.py).
METHODS: dict[str, list[str]] = {
    "grpo": [],
    "grpo_half": ["rl.lr=HALF"],
    "grpo_1e-5": ["rl.lr=1e-5"],
    "grpo_kl": ["rl.algorithm.beta=0.05"],
    "sps": SPS,
    "memory": MEMORY,
    "memory_sps": [*MEMORY, *SPS],
    "memory_no_rl": [*MEMORY, "rl.algorithm.type=none"],
    "memory_sps_quarter": [*MEMORY, *SPS, "irl.memory.share=0.25"],
    "memory_sps_tenth": [*MEMORY, *SPS, "irl.memory.share=0.1"],
    # Trained at the temperature at which the base has the most Pass@128 on Countdown.
    "grpo_cold": ["rollout.temperature=0.4"],
    "memory_sps_cold": [*MEMORY, *SPS, "rollout.temperature=0.4"],
    "memory_0.3": ["irl.memory.weight=0.3"],
    "memory_last": [*MEMORY, "irl.memory.distinct=false"],
    "memory_all": [*MEMORY, "irl.memory.problems=all", "irl.memory.per_problem=1"],
    "memory_unlikely": [*MEMORY, "irl.memory.quantile=0.5"],
    "dapo": ["rl.algorithm.type=dapo"],
    "gspo": ["rl.algorithm.type=gspo"],
    # The rivals, with their authors' settings (recipes/rivals).
    "maxrl": ["rl.algorithm.type=maxrl"],
    "differential_smoothing": ["rl.algorithm.type=differential_smoothing"],
    "ucpo": ["rl.algorithm.type=ucpo"],
    "bbg": ["rl.algorithm.type=bbg"],
    "rs_grpo": ["rl.algorithm.type=rs_grpo"],
    "unlikeliness": ["rl.algorithm.type=unlikeliness"],
    "kl_cov": ["rl.algorithm.type=kl_cov", "rl.algorithm.steps_per_generation=2"],
    "clip_cov": ["rl.algorithm.type=clip_cov"],
    "cispo": ["rl.algorithm.type=cispo", "rl.algorithm.steps_per_generation=2"],
    "raft": ["rl.algorithm.type=raft"],
    "pass_at_k": ["rl.algorithm.type=pass_at_k", "rl.algorithm.k=4"],
    "dph_forward": ["irl.memory.weight=0.05", *OF_BASE],
    "dph_js": ["irl.memory.weight=0.2", "irl.memory.divergence=js", *OF_BASE],
    "mode_replay_dr": ["rl.algorithm.type=dr_grpo", *REPLAY],
    "mode_replay_max": ["rl.algorithm.type=maxrl", *REPLAY],
}

BASE = "base"  # no training; `base_tempered` is the base at other temperatures, drawn by seeds

# What is tried of each method, its authors' or the bed's setting first: of what is its own, or of
# the learning rate, in shares of the bed's.
RATES = {"rl.lr": [1.0, 0.5, 2.0]}
TRIALS: dict[str, dict[str, list[float]]] = {
    "grpo": RATES,
    "grpo_kl": {"rl.algorithm.beta": [0.05, 0.02, 0.15]},
    "sps": {"irl.reach": [0.35, 0.2, 0.5]},
    "memory": {"irl.memory.weight": [1.0, 0.3, 3.0]},
    "memory_sps": {"irl.memory.weight": [1.0, 0.3, 3.0]},
    "memory_no_rl": RATES,
    "dapo": RATES,
    "gspo": RATES,
    "maxrl": RATES,
    "differential_smoothing": {"rl.algorithm.gamma": [0.01, 0.003, 0.03]},
    "ucpo": {"rl.algorithm.mix": [0.2, 0.5, 1.0]},
    "bbg": {"rl.algorithm.k": [16, 8, 64]},
    "rs_grpo": {"rl.algorithm.risk": [2.0, 1.0, 6.0]},
    "unlikeliness": {"rl.algorithm.penalty": [0.25, 0.1, 0.6]},
    "kl_cov": {"rl.algorithm.share": [0.0002, 0.002, 0.02]},
    "clip_cov": {"rl.algorithm.share": [0.0002, 0.002, 0.02]},
    "cispo": RATES,
    "raft": RATES,
    "pass_at_k": {"rl.algorithm.k": [4, 2, 6]},
    "dph_forward": {"irl.memory.weight": [0.05, 0.2, 0.6]},
    "dph_js": {"irl.memory.weight": [0.2, 0.05, 0.6]},
    "mode_replay_dr": {"irl.memory.weight": [0.109375, 0.33, 1.0]},
    "mode_replay_max": {"irl.memory.weight": [0.109375, 0.33, 1.0]},
}

SMALL = ["threads=1", "rl.steps=1000", "irl.every=50"]  # of both small policies
SMALL += ["evaluation.every=200", "evaluation.validation_n=128"]

# recipe, and what the bed sets: rates, lengths, validation.
BEDS: dict[str, tuple[str, float, list[str]]] = {
    "embedded": (
        "recipes/demo/countdown_grpo.yaml",
        1e-4,
        SMALL,
    ),
    # The same task, from a policy that has seen right attempts alone.
    "right": (
        "recipes/demo/countdown_grpo.yaml",
        1e-4,
        [*SMALL, "model.base.solved=1"],
    ),
    # Say where the policy is: --set model.path=... (bench/colouring.py makes it)
    "colouring": (
        "bench/colouring.yaml",
        1e-4,
        SMALL,
    ),
    "smollm2": (
        "recipes/countdown/smollm2_grpo.yaml",
        1e-5,
        ["rl.steps=500", "irl.every=25", "evaluation.every=100", "evaluation.validation_n=128"],
    ),
    # Say where model and data are: --set model.path=... --set task.data=...
    "gsm8k": (
        "recipes/gsm8k/qwen_grpo.yaml",
        3e-6,
        ["irl.memory.per_problem=4", "irl.memory.share=0.1"],
    ),
}


def trials_of(bed: str) -> dict[str, list[str]]:
    """Every method with every setting that is tried of it; the first is the method's own."""
    lr = BEDS[bed][1]
    return {
        method: [f"{method}:{key}={v * (lr if key == 'rl.lr' else 1):g}" for v in values]
        for method, tried in TRIALS.items()
        for key, values in tried.items()
    }


def trained(method: str) -> str:
    """The method whose runs are mixed, or sampled at other temperatures, or itself."""
    name, *own = method.split(":")
    return ":".join([name.removesuffix("_tempered").removesuffix("_mixed"), *own])


def way(method: str) -> str:
    """What is done with the last weights of a method's runs, as its name says it."""
    name, plain = (one.split(":")[0] for one in (method, trained(method)))
    return "" if plain == BASE else name.removeprefix(f"{plain}_").removeprefix(plain)


def place_of(method: str) -> int:
    """Where a method is in the list, after the base; its mixes are beside it."""
    return [BASE, *METHODS].index(trained(method).split(":")[0])


def settings_of(bed: str, method: str) -> list[str]:
    """What sets a method apart on a bed, with the settings that its name may have."""
    name, *own = trained(method).split(":")
    if name == BASE:
        return ["rl.steps=1"]  # whose weights are not looked at
    return [item.replace("HALF", str(BEDS[bed][1] / 2)) for item in METHODS[name]] + own
