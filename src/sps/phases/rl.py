"""The RL phase: draw groups, judge them, take a step of a vanilla RL algorithm. Repeat."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import numpy as np
import torch
from torch import Tensor

from sps.algo.rl import (
    ALGORITHMS,
    Terms,
    engine_gap,
    entropy_bonus,
    overlong_penalty,
    policy_loss,
    truncated_weight,
)
from sps.phases import Parts
from sps.phases.schedule import Phase
from sps.policy.logprobs import Rows, micro_batches, token_logprobs
from sps.policy.update import optimizer_step
from sps.types import Completion, Group, Metrics, Problem, Request, Rollout, Sampling, Verdict


def rl_phase(parts: Parts, phase: Phase) -> Iterator[tuple[int, Metrics, bool]]:
    """The steps of a phase; what was drawn is in the store before it is learnt from.

    The flag says that no drawn rollout still waits to be learnt from: the place for a checkpoint.
    """
    settings = parts.recipe.rl.algorithm
    step = phase.first
    while step <= phase.last:
        rounds = min(settings.steps_per_generation, phase.last - step + 1)
        began = time.perf_counter()
        with parts.stop.window(parts.ranks.size == 1):  # no weight has changed yet
            groups, metrics = draw_groups(parts, step, parts.recipe.rollout.prompts * rounds)
        drawn = time.perf_counter() - began
        verify = metrics.pop("seconds/verify")
        for number, share in enumerate(_shares(groups, rounds), 1):
            begun = time.perf_counter()
            learnt = rl_step(parts, step, share)
            seconds = {
                "seconds/generate": (drawn - verify) / rounds,
                "seconds/verify": verify / rounds,
                "seconds/update": time.perf_counter() - begun,
            }
            yield step, {**metrics, **learnt, **seconds}, number == rounds
            step += 1


def draw_groups(parts: Parts, step: int, count: int) -> tuple[list[Group], Metrics]:
    """Groups for `count` problems. DAPO draws again, on new problems, for groups that agree.

    `seconds/verify` of the metrics is what all draws together waited for verdicts.
    """
    resample = getattr(parts.recipe.rl.algorithm, "max_resample_times", 0)
    drawn: list[Group] = []
    useful: list[Group] = []
    waited, rows = 0.0, getattr(parts.engine, "max_rows", 0)
    for attempt in range(1 + resample):
        fresh, more = _draw(parts, step, count - len(useful), attempt, first_group=len(drawn))
        drawn += fresh
        waited += more
        useful += [group for group in fresh if _disagrees(group)]
        if len(useful) >= count or not resample:
            break
    if parts.ranks.main:
        parts.store.append(step, [rollout for group in drawn for rollout in group])
    # Where resampling ran out, groups that agree fill the batch: it keeps its size.
    dull = [group for group in drawn if not _disagrees(group)]
    groups = (useful + dull)[:count] if resample else drawn
    metrics = {**_drawn_metrics(drawn, groups), "seconds/verify": waited}
    left = getattr(parts.engine, "max_rows", 0)
    if left < rows:  # memory ran out
        metrics["rows_at_once"] = left
    return groups, metrics


def rl_step(parts: Parts, step: int, groups: Sequence[Group]) -> Metrics:
    """One optimizer step. Rows without advantage cost nothing, unless a KL or a bonus has them."""
    recipe, policy = parts.recipe, parts.policy
    settings = recipe.rl.algorithm
    algorithm = ALGORITHMS[settings.type]
    rollouts = [rollout for group in groups for rollout in group]
    reward_PG = torch.tensor([[r.reward for r in group] for group in groups])
    own = {name: getattr(settings, name) for name in algorithm.settings}
    adv_B = algorithm.advantage(reward_PG, **own).flatten()
    length_B = torch.tensor([len(r.ids) for r in rollouts])
    weight_B = algorithm.weight(length_B, recipe.rollout.max_new_tokens)
    live = (adv_B != 0).numpy() | (settings.beta > 0) | (recipe.rl.entropy > 0)
    used = np.flatnonzero(live)
    high = getattr(settings, "eps_high", settings.eps)

    def part_loss(rows: Rows, new_BT: Tensor, entropy_BT: Tensor) -> tuple[Tensor, dict]:
        which = used[rows.which_B]
        old_BT, correct_BT, gaps = _against_engine(
            parts, [rollouts[i] for i in which], rows, new_BT
        )
        terms = Terms(
            new_BT,
            old_BT,
            _reference(parts, rows),
            adv_B[which].to(new_BT.device),
            weight_B[which].to(new_BT.device),
            rows.mask_BT,
            correct_BT,
        )
        loss, sums = policy_loss(terms, algorithm, settings.eps, high, settings.beta)
        if recipe.rl.entropy:
            bonus = entropy_bonus(entropy_BT, terms.weight_B, rows.mask_BT)
            loss = loss - recipe.rl.entropy * bonus
        return loss, sums | gaps

    _set_lr(parts.optimizer, recipe.rl.lr, step, recipe.rl.optimizer.warmup_steps)
    sums = optimizer_step(
        policy.scorer,
        parts.optimizer,
        lambda budget: _rows(parts, [rollouts[i] for i in used], budget),
        parts.budget,
        part_loss,
        temperature=recipe.rollout.temperature,
        max_grad_norm=recipe.rl.optimizer.max_grad_norm,
        entropy_grad=recipe.rl.entropy > 0,
        ranks=parts.ranks,
    )
    policy.version += 1
    parts.engine.load_weights(policy.model)
    return _learnt_metrics(sums, len(used), len(rollouts))


def _draw(
    parts: Parts, step: int, count: int, attempt: int, first_group: int
) -> tuple[list[Group], float]:
    """Groups, and the seconds that sampling stood still for verdicts: judging overlaps with it."""
    settings = parts.recipe.rollout
    problems = [parts.train[i] for i in parts.sampler.take(count)]
    sampling = Sampling(
        settings.n,
        settings.max_new_tokens,
        settings.temperature,
        settings.top_p,
        settings.top_k,
        seed=(parts.recipe.seed * 1_000_003 + step) * 101 + attempt,
    )
    everyone = tuple(range(settings.n))
    mine = parts.ranks.mine(list(enumerate(problems)))
    requests = [Request(i, parts.prompt_ids(p), everyone) for i, p in mine]
    drawn: dict[tuple[int, int], tuple[Completion, Future[Verdict]]] = {}
    waited = 0.0
    for completion in parts.engine.generate(requests, sampling):
        text = parts.policy.decode(completion.ids)
        began = time.perf_counter()
        future = parts.verifier.submit(problems[completion.index], text, completion.finished)
        waited += time.perf_counter() - began  # the inline verifier judges right there
        drawn[completion.index, completion.sample] = (completion, future)
    began = time.perf_counter()
    for _, future in drawn.values():
        future.result()
    waited += time.perf_counter() - began
    groups = [
        [_rollout(parts, step, first_group + i, problem, *drawn[i, sample]) for sample in everyone]
        for i, problem in mine
    ]
    everything = sorted(parts.ranks.gather(groups), key=lambda group: group[0].group)
    return everything, waited


def _rollout(
    parts: Parts, step: int, group: int, problem: Problem, c: Completion, future: Future[Verdict]
) -> Rollout:
    verdict = future.result()
    cache = getattr(parts.recipe.rl.algorithm, "soft_cache_length", 0)
    limit = parts.recipe.rollout.max_new_tokens
    penalty = float(overlong_penalty(torch.tensor([len(c.ids)]), limit, cache)) if cache else 0.0
    return Rollout(
        problem.id,
        np.array(parts.prompt_ids(problem), dtype=np.int32),
        c.ids,
        c.logprobs,
        verdict.reward + penalty,
        verdict,
        step,
        parts.policy.version,
        group,
        c.sample,
        c.finished,
    )


def _disagrees(group: Group) -> bool:
    """Some right, some wrong: there is something to learn from the comparison."""
    return len({rollout.verdict.reward for rollout in group}) > 1


def _shares(groups: list[Group], rounds: int) -> Iterator[list[Group]]:
    for i in range(rounds):
        yield groups[i * len(groups) // rounds : (i + 1) * len(groups) // rounds]


def _rows(parts: Parts, rollouts: Sequence[Rollout], budget: int) -> Iterator[Rows]:
    return micro_batches(
        [r.prompt_ids for r in rollouts],
        [r.ids for r in rollouts],
        parts.policy.pad_id,
        budget,
        parts.policy.model.device,
        parts.ranks,
    )


def _against_engine(
    parts: Parts, rollouts: list[Rollout], rows: Rows, new_BT: Tensor
) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """Log-probabilities under the sampling policy, the correction, and how far the engine is off.

    While the sampling policy is still the policy, the old log-probabilities are the new ones, and
    the engine's differ from them by its rounding alone. Later the ratio is taken to the engine's
    own, which leaves nothing to correct.
    """
    engine = np.zeros(new_BT.shape, dtype=np.float32)
    for row, rollout in enumerate(rollouts):
        known_T = rollout.logprobs[: engine.shape[1]]  # less where a part only keeps ranks in step
        engine[row, : len(known_T)] = known_T
    engine_BT = torch.from_numpy(engine).to(new_BT.device)
    if any(r.policy_version != parts.policy.version for r in rollouts):
        return engine_BT, None, {}
    cap, mask_BT = parts.recipe.rollout.correct, rows.mask_BT
    gaps = engine_gap(new_BT, engine_BT, mask_BT)
    if cap is None:
        return new_BT.detach(), None, gaps
    correct_BT = truncated_weight(new_BT, engine_BT, mask_BT, cap)
    gaps["engine_weight"] = torch.where(mask_BT, correct_BT, 0.0).sum()
    gaps["engine_truncated"] = (mask_BT & (correct_BT >= cap)).sum()
    return new_BT.detach(), correct_BT, gaps


def gap_warning(metrics: Metrics, limit: float) -> str:
    """What to say when trainer and engine disagree by more than they should, else nothing."""
    gap = metrics.get("engine_gap", 0.0)
    if gap <= limit:
        return ""
    return (
        f"the engine's log-probabilities are {gap:.3g} nats a token from the trainer's, above "
        f"rollout.gap_warn ({limit:g}): the tokens come from another policy than the one that is "
        "trained. Set rollout.correct: 2 to weigh them by the ratio, or compute both in one dtype "
        "(model.dtype)"
    )


def memory_warning(metrics: Metrics, passes: int) -> str:
    """What to say when memory ran out in a step, which was mended by smaller parts."""
    said = []
    if "rows_at_once" in metrics:
        said.append(f"{metrics['rows_at_once']:.0f} sequences are drawn at once now")
    if metrics.get("out_of_memory"):
        said.append(f"passes are now of {passes} tokens")
    return f"memory ran out; {', '.join(said)}" if said else ""


@torch.no_grad()
def _reference(parts: Parts, rows: Rows) -> Tensor | None:
    if parts.reference is None:
        return None
    return token_logprobs(parts.reference, rows, parts.recipe.rollout.temperature)[0]


def _set_lr(optimizer: torch.optim.Optimizer, lr: float, step: int, warmup: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * min(1.0, step / warmup) if warmup else lr


def _drawn_metrics(drawn: list[Group], groups: list[Group]) -> Metrics:
    rollouts = [rollout for group in drawn for rollout in group]
    kinds = Counter(r.verdict.kind for r in rollouts)
    tokens = sum(len(r.ids) for r in rollouts)
    metrics = {
        "reward": float(np.mean([r.verdict.reward for r in rollouts])),
        "solved": float(np.mean([any(r.verdict.reward for r in group) for group in drawn])),
        "useful": float(np.mean([_disagrees(group) for group in groups])),
        "groups": len(drawn),
        "length": tokens / len(rollouts),
        "tokens": tokens,
        "logprob": sum(r.sum_logprob for r in rollouts) / tokens,
    }
    return metrics | {f"verdict/{kind}": n / len(rollouts) for kind, n in sorted(kinds.items())}


def _learnt_metrics(sums: dict[str, float], used: int, total: int) -> Metrics:
    tokens = sums.get("tokens", 0) or 1
    metrics = {
        "loss": sums.get("loss", 0.0),
        "grad_norm": sums.get("grad_norm", 0.0),
        "clipped": sums.get("clipped", 0.0) / tokens,
        "ratio": sums.get("ratio", tokens) / tokens,
        "used": used / total,
    }
    if used:
        metrics["entropy"] = sums["entropy"] / tokens
    if "gap" in sums:
        metrics["engine_gap"] = sums["gap"] / tokens
        metrics["engine_gap_rms"] = (sums["gap_square"] / tokens) ** 0.5
        metrics["engine_kl"] = sums["gap_kl"] / tokens
    if "engine_weight" in sums:
        metrics["engine_weight"] = sums["engine_weight"] / tokens
        metrics["engine_truncated"] = sums["engine_truncated"] / tokens
    more = ("out_of_memory", "peak_gib", "skipped")
    metrics |= {name: sums[name] for name in more if name in sums}
    if "kl" in sums:
        metrics["kl_ref"] = sums["kl"] / tokens
    return metrics
