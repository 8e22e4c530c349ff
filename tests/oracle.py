"""Training steps once more, by hand: plain torch in float64, one sequence at a time.

Nothing here is the product's: no padding, no micro-batches, no rows left out. Every number comes
from token ids, rewards and the Hugging Face model's own forward pass.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from itertools import combinations

import torch

DEFAULTS = {
    "grpo": {"eps": 0.2, "eps_high": 0.2},
    "dr_grpo": {"eps": 0.2, "eps_high": 0.2},
    "dapo": {"eps": 0.2, "eps_high": 0.28, "max_resample_times": 3, "soft_cache_length": 0},
    "gspo": {"eps": 3e-4, "eps_high": 4e-4, "steps_per_generation": 4},
    "pass_at_k": {"eps": 0.2, "eps_high": 0.2, "k": 4},
    "none": {"eps": 0.2, "eps_high": 0.2},
    "w_reinforce": {"eps": 0.2, "eps_high": 0.2, "right": 0.1},
    "differential_smoothing": {"eps": 0.2, "eps_high": 0.2, "gamma": 0.01},
    "unlikeliness": {"eps": 0.2, "eps_high": 0.2, "penalty": 0.25},
    "cispo": {"max_ratio": 5.0},
    "kl_cov": {"share": 2e-4, "coefficient": 1.0, "steps_per_generation": 2},
    "clip_cov": {"eps": 0.2, "eps_high": 0.2, "share": 2e-4, "low": 1.0, "high": 5.0},
    "raft": {},
}
SHARED = {"beta": 0.0, "steps_per_generation": 1, "max_resample_times": 0, "soft_cache_length": 0}


def settings_of(algorithm: dict) -> dict:
    """An algorithm of a recipe with its published defaults."""
    given = {**SHARED, **DEFAULTS[algorithm["type"]], **algorithm}
    if "eps" in algorithm and "eps_high" not in algorithm and given["type"] not in ("dapo", "gspo"):
        given["eps_high"] = given["eps"]  # one bound for both sides
    return given


@dataclass
class Row:
    """One rollout: what was asked, what was written, what it earned, what the engine said of it."""

    prompt: list[int]
    ids: list[int]
    reward: float
    engine: list[float]
    old: torch.Tensor | None = None  # log-probabilities under the policy that drew it
    key: tuple = ()  # whatever tells it apart


class Learner:
    """A copy of a model (or, not its `own`, another learner's), and AdamW over it."""

    def __init__(self, model, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, own=True):
        self.model = model
        if own:
            self.model = copy.deepcopy(model).eval().double()
            self.model.set_attn_implementation("eager")
        self.betas, self.eps, self.decay, self.count = betas, eps, weight_decay, 0
        self.first = [torch.zeros_like(p) for p in self.model.parameters()]
        self.second = [torch.zeros_like(p) for p in self.model.parameters()]

    def tokens(self, prompt, ids, temperature) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability of each token of a completion, and the entropy where it was drawn."""
        logits = self.model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0]
        # The output at a token is the distribution of the next one.
        logp = torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, -1)
        return logp[torch.arange(len(ids)), torch.tensor(ids)], -(logp.exp() * logp).sum(-1)

    def step(self, loss: torch.Tensor, lr: float, most: float) -> float:
        """Clip the gradient to a norm of `most`, take an AdamW step; the norm before clipping."""
        weights = list(self.model.parameters())
        grads = torch.autograd.grad(loss, weights)
        norm = math.sqrt(sum(float((g * g).sum()) for g in grads))
        self.count += 1
        (b1, b2), t = self.betas, self.count
        with torch.no_grad():
            for p, g, m, v in zip(weights, grads, self.first, self.second, strict=True):
                g = g * min(1.0, most / norm)
                m.copy_(b1 * m + (1 - b1) * g)
                v.copy_(b2 * v + (1 - b2) * g * g)
                p.mul_(1 - lr * self.decay)
                p.sub_(lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + self.eps))
        return norm


def advantages(rewards: list[float], how: dict) -> list[float]:
    """Of the rollouts of one group."""
    n = len(rewards)
    if how["type"] == "none":
        return [0.0] * n
    if how["type"] == "w_reinforce":
        return [how["right"] if r > 0 else -1.0 for r in rewards]
    if how["type"] == "pass_at_k":
        return _of_sets(rewards, how["k"])
    if len(set(rewards)) == 1:
        return [0.0] * n
    mean = sum(rewards) / n
    if how["type"] == "dr_grpo":
        return [r - mean for r in rewards]
    spread = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (n - 1))
    return [(r - mean) / (spread + 1e-4) for r in rewards]


def _of_sets(rewards, k) -> list[float]:
    """Every set of k is an answer; a rollout has the mean advantage of the sets it is in."""
    sets = list(combinations(range(len(rewards)), k))
    right = [float(any(rewards[i] > 0 for i in s)) for s in sets]
    mean = sum(right) / len(right)
    spread = math.sqrt(sum((r - mean) ** 2 for r in right) / len(right))
    if spread == 0:
        return [0.0] * len(rewards)
    scaled = [(r - mean) / spread for r in right]
    own = [[a for a, s in zip(scaled, sets, strict=True) if i in s] for i in range(len(rewards))]
    return [sum(values) / len(values) for values in own]


def advantages_of_batch(groups: list[list[Row]], how: dict) -> list[float]:
    """Of all rollouts of a step."""
    rows = [row for group in groups for row in group]
    if how["type"] == "raft":
        return [1.0 if row.reward > 0 else 0.0 for row in rows]
    found = [a for group in groups for a in advantages([row.reward for row in group], how)]
    if how["type"] == "differential_smoothing":
        for i, row in enumerate(rows):
            found[i] += (-1 if row.reward > 0 else 1) * how["gamma"] * math.fsum(row.engine)
    return found


def unlikely_rewards(rows: list[Row], penalty: float) -> list[float]:
    """Of a group, less the likelier a rollout is; of equals the later one is the likelier."""
    order = sorted(range(len(rows)), key=lambda i: sum(rows[i].engine) / len(rows[i].engine))
    return [row.reward * (1 - penalty * order.index(i) / len(rows)) for i, row in enumerate(rows)]


def tokens_apart(rows: list[Row], adv: list[float], how: dict) -> list[list[bool]]:
    """KL-Cov's and Clip-Cov's tokens; Clip-Cov's share must be so large that it takes them all."""
    if how["type"] not in ("kl_cov", "clip_cov"):
        return [[False] * len(row.ids) for row in rows]
    both = [(a, logp) for row, a in zip(rows, adv, strict=True) for logp in row.engine]
    mean_a, mean_l = (sum(values) / len(both) for values in zip(*both, strict=True))
    cov = [
        [(a - mean_a) * (x - mean_l) for x in row.engine] for row, a in zip(rows, adv, strict=True)
    ]
    if how["type"] == "clip_cov":
        return [[how["low"] < x < how["high"] for x in row] for row in cov]
    places = [(-x, i, t) for i, row in enumerate(cov) for t, x in enumerate(row)]
    first = set(sorted(places)[: max(1, int(how["share"] * len(both)))])
    return [[x > 0 and (-x, i, t) in first for t, x in enumerate(row)] for i, row in enumerate(cov)]


def token_weight(lengths: list[int], limit: int, kind: str) -> list[float]:
    """What one token of each rollout counts in the loss."""
    if kind in ("dapo", "w_reinforce", "cispo", "kl_cov", "clip_cov"):
        return [1 / sum(lengths)] * len(lengths)
    if kind == "dr_grpo":
        return [1 / (len(lengths) * limit)] * len(lengths)
    return [1 / (len(lengths) * length) for length in lengths]


def penalty(length: int, limit: int, cache: int) -> float:
    """DAPO's soft overlong punishment."""
    free = limit - cache
    return 0.0 if not cache or length <= free else -min(1.0, (length - free) / cache)


@dataclass
class Sums:
    """What a step reports, over the tokens it learns from."""

    tokens: int = 0
    total: dict[str, float] = field(default_factory=dict)
    above: int = 0  # tokens whose clip binds at the upper bound, and at the lower one
    below: int = 0
    memory: float = 0.0  # minus the mean log-probability of what is recalled
    apart: int = 0  # tokens that KL-Cov or Clip-Cov treat apart

    def add(self, name: str, values: torch.Tensor) -> None:
        self.total[name] = self.total.get(name, 0.0) + float(values.detach().sum())


def rl_step(
    learner: Learner,
    groups: list[list[Row]],
    how: dict,
    *,
    lr: float,
    most: float,
    limit: int,
    temperature: float,
    entropy: float = 0.0,
    cap: float | None = None,
    reference: Learner | None = None,
    recalled: list[Row] = (),
    memory: dict | None = None,
) -> tuple[dict[str, float], Sums]:
    """One step on some groups, and the metrics it should report. Rows without `old` are fresh."""
    rows = [row for group in groups for row in group]
    adv = advantages_of_batch(groups, how)
    weights = token_weight([len(row.ids) for row in rows], limit, how["type"])
    if how["type"] == "raft":  # the mean over the right tokens
        weights = [1 / max(1, sum(len(row.ids) for row in rows if row.reward > 0))] * len(rows)
    apart = tokens_apart(rows, adv, how)
    loss, sums, used = torch.zeros((), dtype=torch.float64), Sums(), 0
    for row, a, weight, chosen in zip(rows, adv, weights, apart, strict=True):
        if a == 0 and not how["beta"] and not entropy and not any(chosen):
            continue
        used += 1
        new, spread = learner.tokens(row.prompt, row.ids, temperature)
        old = new.detach() if row.old is None else row.old
        term = _surrogate(new, old, a, torch.tensor(chosen), how, sums)
        engine = torch.tensor(row.engine, dtype=torch.float64)
        gap = new.detach() - engine
        if cap is not None:
            factor = gap.exp().clamp(max=cap)
            term = term * factor
            sums.add("engine_weight", factor)
            sums.add("engine_truncated", (gap.exp() >= cap).double())
        if how["beta"]:
            assert reference is not None
            with torch.no_grad():
                ref, _ = reference.tokens(row.prompt, row.ids, temperature)
            k3 = torch.exp(ref - new) - (ref - new) - 1
            term = term + how["beta"] * k3
            sums.add("kl_ref", k3)
        loss = loss + weight * (term.sum() - entropy * spread.sum())
        sums.tokens += len(row.ids)
        sums.add("entropy", spread)
        sums.add("engine_gap", gap.abs())
        sums.add("engine_gap_rms", gap**2)
        sums.add("engine_kl", gap.exp() - gap - 1)
    for row in recalled:
        tokens = sum(len(row.ids) for row in recalled)
        alike = memory.get("reduce", "token") == "token"
        weight = 1 / tokens if alike else 1 / (len(recalled) * len(row.ids))
        logp = learner.tokens(row.prompt, row.ids, temperature)[0]
        gap = -logp
        if memory.get("divergence") == "js":  # each side's KL to the middle, on draws of the base
            base = torch.tensor(row.engine, dtype=torch.float64).exp()
            middle = (logp.exp() + base) / 2
            gap = (logp.exp() * (logp.exp() / middle).log() + base * (base / middle).log()) / base
        loss = loss + memory["weight"] * weight * gap.sum()
        sums.memory -= float(logp.detach().sum()) / tokens
    if not used and not recalled:
        return {"loss": 0.0, "grad_norm": 0.0, "used": 0.0, "ratio": 1.0, "clipped": 0.0}, sums
    metrics = {name: value / sums.tokens for name, value in sums.total.items()}
    if used:
        metrics["engine_gap_rms"] = math.sqrt(metrics["engine_gap_rms"])
    if memory:
        tokens = sum(len(row.ids) for row in recalled)
        metrics |= {"memory/nll": sums.memory, "memory/tokens": tokens}
        metrics["memory/share"] = tokens / (tokens + sums.tokens)
        metrics["memory/recalled"] = len(recalled)
    metrics |= {"loss": float(loss.detach()), "used": used / len(rows)}
    metrics["grad_norm"] = learner.step(loss, lr, most)
    return metrics, sums


def grpo_step_beside_memory(
    learner: Learner,
    groups: list[list[Row]],
    recalled: list[Row],
    weight: float,
    *,
    lr: float,
    most: float,
    temperature: float,
) -> float:
    """A fresh GRPO step whose gradient is clipped before that of memory is added; memory's loss."""
    rows = [row for group in groups for row in group]
    adv = advantages_of_batch(groups, {"type": "grpo"})
    loss = torch.zeros((), dtype=torch.float64)
    for row, a in zip(rows, adv, strict=True):
        loss = loss - a * learner.tokens(row.prompt, row.ids, temperature)[0].mean() / len(rows)
    grads = torch.autograd.grad(loss, list(learner.model.parameters()), retain_graph=True)
    norm = math.sqrt(sum(float((g * g).sum()) for g in grads))
    own = [learner.tokens(row.prompt, row.ids, temperature)[0].sum() for row in recalled]
    nll = -sum(own) / max(1, sum(len(row.ids) for row in recalled))
    learner.step(min(1.0, most / max(norm, 1e-12)) * loss + weight * nll, lr, math.inf)
    return float(nll.detach()) if recalled else 0.0


def _surrogate(new, old, a: float, chosen, how: dict, sums: Sums) -> torch.Tensor:
    """Minus the surrogate of each token; GSPO has one ratio for all of a sequence."""
    log_ratio, kind = new - old, how["type"]
    if kind == "gspo":
        log_ratio = log_ratio.mean() + 0 * log_ratio
    ratio = log_ratio.exp()
    low, high = 1 - how.get("eps", math.inf), 1 + how.get("eps_high", math.inf)
    values = ratio.detach().tolist()
    above = torch.tensor([a > 0 and value > high for value in values])
    below = torch.tensor([a < 0 and value < low for value in values])
    if kind == "cispo":
        above = torch.tensor([value > how["max_ratio"] for value in values])
    sums.above, sums.below = sums.above + int(above.sum()), sums.below + int(below.sum())
    sums.add("clipped", (above | below | (chosen if kind == "clip_cov" else above)).double())
    sums.add("ratio", ratio)
    sums.apart += int(chosen.sum())
    if kind == "raft":
        return -a * new
    if kind == "cispo":
        return -a * torch.tensor([min(value, how["max_ratio"]) for value in values]) * new
    if kind == "kl_cov":
        return -a * ratio + how["coefficient"] * chosen * log_ratio.abs()
    # Where the clip binds, a constant: no gradient.
    term = -a * torch.where(above, high, torch.where(below, low, ratio))
    return term * ~chosen


def select(
    rewards: list[float], likelihood: list[float], low: list[bool], kind: str, keep: int, draw
) -> set[int]:
    """Positions of a group that a selector keeps; `draw` is a random number for each."""
    right = [r > 0 for r in rewards]
    everyone = range(len(rewards))
    if kind == "l2te":
        tiers = [
            [i for i in everyone if low[i] and not right[i]],
            [i for i in everyone if low[i] and right[i]],
            [i for i in everyone if not low[i] and not right[i]],
            [i for i in everyone if not low[i] and right[i]],
        ]
        order = [i for tier in tiers for i in sorted(tier, key=lambda i: likelihood[i])]
    else:
        wanted = {"low_likelihood_positive": True, "positive": True, "negative": False}.get(kind)
        by = draw if kind in ("uniform", "positive") else likelihood
        allowed = [i for i in everyone if wanted is None or right[i] is wanted]
        order = sorted(allowed, key=lambda i: by[i])
    return set(order[:keep])


def lowest(values: list[float], quantile: float) -> list[bool]:
    """Which are among the lowest so many, rounded up."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    chosen = set(order[: math.ceil(quantile * len(values) - 1e-9)])
    return [i in chosen for i in range(len(values))]


def irl_step(
    learner: Learner, rows: list[Row], reduce: str, lr: float, most: float, temperature: float
) -> dict[str, float]:
    """One step of cross-entropy on these rollouts."""
    tokens, losses, spread = sum(len(row.ids) for row in rows), [], 0.0
    for row in rows:
        logp, entropy = learner.tokens(row.prompt, row.ids, temperature)
        weight = 1 / tokens if reduce == "token" else 1 / (len(rows) * len(row.ids))
        losses.append(-weight * logp.sum())
        spread += float(entropy.detach().sum())
    loss = torch.stack(losses).sum()
    norm = learner.step(loss, lr, most)
    return {"loss": float(loss.detach()), "grad_norm": norm, "entropy": spread / tokens}


def irl_phase(
    learner: Learner, batches: list[list[list[Row]]], irl: dict, lr: float, temperature: float, rng
) -> tuple[list[Row], list[dict[str, float]]]:
    """The rows that are kept of each batch's groups, and what the steps on them should report."""
    kept = [row for groups in batches for row in _kept(learner, groups, irl, temperature, rng)]
    told, size = [], min(irl["batch"], len(kept))
    order, at = rng.permutation(len(kept)), 0
    for _ in range(irl["steps"]):
        if at + size > len(kept):
            order, at = rng.permutation(len(kept)), 0
        rows = [kept[i] for i in order[at : at + size]]
        at += size
        most = irl.get("optimizer", {}).get("max_grad_norm", 1.0)
        told.append(irl_step(learner, rows, irl.get("reduce", "token"), lr, most, temperature))
    return kept, told


def _kept(learner, groups, irl, temperature, rng) -> list[Row]:
    how = irl.get("selector", {})
    kind, quantile = how.get("type", "l2te"), how.get("quantile", 0.5)
    draws = None
    if kind in ("uniform", "positive"):
        draws = rng.random((len(groups), len(groups[0])))
    values = [[_likelihood(learner, row, how, temperature) for row in group] for group in groups]
    whole = iter(lowest([value for group in values for value in group], quantile))
    kept = []
    for number, (group, value) in enumerate(zip(groups, values, strict=True)):
        of_batch = [next(whole) for _ in group]
        low = of_batch if how.get("quantile_over") == "batch" else lowest(value, quantile)
        rewards, draw = [row.reward for row in group], None if draws is None else draws[number]
        chosen = select(rewards, value, low, kind, irl["keep"], draw)
        kept += [group[i] for i in sorted(chosen)]
    return kept


@torch.no_grad()
def _likelihood(learner, row: Row, how: dict, temperature: float) -> float:
    values = torch.tensor(row.engine, dtype=torch.float64)
    if how.get("under") == "policy":
        values, _ = learner.tokens(row.prompt, row.ids, temperature)
    return float(values.sum() if how.get("likelihood") == "sum" else values.mean())


def irl_rate(irl: dict, rl_lr: float, rl_steps: int) -> float:
    """As set, or such that the phase goes `reach` times as far as the RL steps before it."""
    if irl["lr"] is not None:
        return irl["lr"]
    return irl.get("reach", 0.35) * rl_lr / (2.0 * (irl["steps"] / rl_steps) ** 0.65)


def assert_same_weights(model, learner: Learner, before: dict, tolerance: float = 1e-4) -> None:
    """Equal to a share of the largest change: a step of another size or direction would show."""
    own, far, moved = dict(learner.model.named_parameters()), {}, 0.0
    for name, p in model.named_parameters():
        far[name] = float((p.detach().double() - own[name].detach()).abs().max())
        moved = max(moved, float((own[name].detach() - before[name].double()).abs().max()))
    wrong = {name: gap for name, gap in far.items() if gap > tolerance * moved + 5e-7}
    assert not wrong, f"largest change {moved:.2e}, off by {wrong}"
