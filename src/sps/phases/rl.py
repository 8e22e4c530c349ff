"""The RL phase: draw groups, judge them, take a step of a vanilla RL algorithm. Repeat."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import numpy as np
import torch
from torch import Tensor

from sps.algo.rl import Terms, engine_gap, entropy_bonus, policy_loss, truncated_weight
from sps.algo.table import algorithm_of
from sps.phases.batch import Batch, filled, make_batch, shaped, unshaped
from sps.phases.memory import MEMORY_SECONDS, memory_metrics, recall
from sps.phases.problems import disagrees, next_problems, sampling_metrics
from sps.phases.run import Run
from sps.phases.schedule import Phase
from sps.policy.logprobs import Rows, micro_batches, token_logprobs
from sps.policy.update import in_memory, optimizer_step, padded_to_equal, set_lr
from sps.store.memory import Remembered
from sps.types import (
    FAILED,
    Completion,
    Group,
    Metrics,
    Problem,
    Request,
    Rollout,
    Sampling,
    Verdict,
)


def rl_phase(run: Run, phase: Phase) -> Iterator[tuple[int, Metrics, bool]]:
    """The steps of a phase; what was drawn is in the store before it is learnt from.

    The flag says that no drawn rollout still waits to be learnt from: the place for a checkpoint.
    """
    settings = run.recipe.rl.algorithm
    step = phase.first
    while step <= phase.last:
        rounds = min(settings.steps_per_generation, phase.last - step + 1)
        began = time.perf_counter()
        with run.stop.window(run.ranks.size == 1):  # no weight has changed yet
            groups, metrics = draw_groups(run, step, run.recipe.rollout.prompts * rounds)
        drawn = time.perf_counter() - began
        verify, remember = metrics.pop("seconds/verify"), metrics.pop(MEMORY_SECONDS, 0.0)
        if rounds > 1:  # of a step, as the seconds are
            metrics |= {name: metrics[name] / rounds for name in ("groups", "tokens")}
        shares = list(_shares(groups, rounds))
        began = time.perf_counter()
        olds, halved = _before_the_steps(run, step, shares)
        scored = time.perf_counter() - began
        if halved:
            metrics["out_of_memory"] = halved
        for number, (share, old) in enumerate(zip(shares, olds, strict=True), 1):
            begun = time.perf_counter()
            learnt = rl_step(run, step, share, old)
            taken, recalled = time.perf_counter() - begun, learnt.get(MEMORY_SECONDS, 0.0)
            seconds = {  # of a step, each counted once
                "seconds/generate": (drawn - verify - remember) / rounds,
                "seconds/verify": verify / rounds,
                "seconds/update": taken - recalled + scored / rounds,
            }
            if run.memory is not None:
                seconds[MEMORY_SECONDS] = recalled + remember / rounds
            yield step, {**metrics, **learnt, **seconds}, number == rounds
            step += 1


def draw_groups(run: Run, step: int, count: int) -> tuple[list[Group], Metrics]:
    """Groups for `count` problems. DAPO draws again, on new problems, for groups of equal rewards.

    `seconds/verify` of the metrics is the time sampling waited for verdicts, over all draws.
    """
    resample = algorithm_of(run.recipe.rl.algorithm).resample
    drawn: list[Group] = []
    useful: list[Group] = []
    waited, remembering, rows = 0.0, 0.0, run.engine.max_rows
    for attempt in range(1 + resample):
        problems = next_problems(run, count - len(useful), drawn)
        fresh, more = draw(run, step, problems, attempt, first_group=len(drawn))
        drawn += fresh
        waited += more
        useful += [group for group in fresh if disagrees(group)]
        if len(useful) >= count or not resample:
            break
    if resample:  # what fills the batch up teaches nothing: not the lengths of its answers either
        drawn = [group if disagrees(group) else unshaped(group) for group in drawn]
    rollouts = [rollout for group in drawn for rollout in group]
    if run.ranks.main:
        run.store.append(step, rollouts)
    if run.memory is not None and run.recipe.irl.memory.source == "run":
        began = time.perf_counter()
        run.memory.add(rollouts)
        remembering = time.perf_counter() - began
    if run.difficulty is not None:
        run.difficulty.add(rollouts)
    failed = (r.verdict for r in rollouts if r.verdict.kind in FAILED)
    run.judge_failed = next((f"{v.kind}: {v.detail}" for v in failed), "")
    # After the last attempt, groups with equal rewards fill the batch: it keeps its size.
    dull = [group for group in drawn if not disagrees(group)]
    groups = (useful + dull)[:count] if resample else drawn
    metrics = _drawn_metrics(drawn, groups) | sampling_metrics(run, drawn)
    metrics["seconds/verify"] = waited
    if remembering:
        metrics[MEMORY_SECONDS] = remembering
    if run.engine.max_rows < rows:  # memory ran out
        metrics["rows_at_once"] = run.engine.max_rows
    return groups, metrics


Old = dict[
    int, np.ndarray
]  # place among a batch's used rollouts -> log-probabilities of its tokens


def _before_the_steps(
    run: Run, step: int, shares: Sequence[Sequence[Group]]
) -> tuple[list[Old | None], int]:
    """Old log-probabilities, by the trainer, of the shares that are learnt from after the first.

    None for the first: by then the policy is still the one that sampled. The second value says how
    often memory ran out.
    """
    if len(shares) == 1:
        return [None], 0
    found = [sampler_logprobs(run, step + i, share) for i, share in enumerate(shares[1:], 1)]
    return [None, *(old for old, _ in found)], sum(halved for _, halved in found)


def sampler_logprobs(run: Run, step: int, groups: Sequence[Group]) -> tuple[Old, int]:
    """Old log-probabilities of the batch of a step that comes after others of its generation.

    Those of the engine differ by its rounding, which is more than GSPO's clip allows. So these are
    computed as the step will compute them, in the same micro-batches and with gradients on
    (compiled code differs without): as long as nothing was learnt, the ratios are exactly 1.
    """
    batch, temperature = make_batch(run, groups), run.recipe.rollout.temperature
    everything = [*batch.learnt, *recall(run, step, groups).rollouts]

    def score(tokens: int) -> Old:
        found: Old = {}
        own = _rows(run, everything, tokens)
        for rows, counts in padded_to_equal(own, run.ranks, run.policy.model.device):
            logp_BT = token_logprobs(run.policy.scorer, rows, temperature)[0].detach()
            of_rows = zip(rows.which_B, logp_BT.cpu().numpy(), rows.length_B, strict=True)
            found |= {int(i): row[:length] for i, row, length in of_rows if counts}
        return found

    # DeepSpeed expects a backward pass after every pass with gradients.
    with torch.set_grad_enabled(not run.ranks.deepspeed):
        return in_memory(run.budget, run.ranks, score)


def rl_step(run: Run, step: int, groups: Sequence[Group], old: Old | None = None) -> Metrics:
    """One optimizer step. `old` is what `sampler_logprobs` gave, once the policy has moved."""
    recipe, policy, batch = run.recipe, run.policy, make_batch(run, groups)
    began = time.perf_counter()
    recalled = recall(run, step, groups)
    recalling = time.perf_counter() - began

    def part_loss(rows: Rows, new_BT: Tensor, entropy_BT: Tensor) -> tuple[Tensor, dict]:
        if not batch.learnt:
            return recalled.loss(rows, new_BT)
        # Of all rows, the recalled ones too: sharded ranks run their references in step.
        ref_BT = _reference(run, rows)
        own, others = rows.split(len(batch.learnt))
        row = len(own.which_B)
        ref_BT = ref_BT if ref_BT is None else ref_BT[:row]
        loss, sums = _rl_loss(run, batch, own, new_BT[:row], entropy_BT[:row], old, ref_BT)
        if not recalled.rollouts:
            return loss, sums
        pull, told = recalled.loss(others, new_BT[row:])
        return loss + pull, sums | told

    _set_lr(run.optimizer, recipe.rl.lr, step, recipe.rl.optimizer.warmup_steps)
    sums = optimizer_step(
        policy.scorer,
        run.optimizer,
        lambda tokens: _rows(run, [*batch.learnt, *recalled.rollouts], tokens),
        part_loss,
        run.budget,
        temperature=recipe.rollout.temperature,
        max_grad_norm=recipe.rl.optimizer.max_grad_norm,
        entropy_grad=recipe.rl.entropy > 0,
        ranks=run.ranks,
    )
    policy.version += 1
    run.engine.load_weights(policy.model)
    learnt = _learnt_metrics(sums, len(batch.used), len(batch.rollouts))
    return learnt | memory_metrics(run, batch.learnt, recalled, sums, recalling)


def _rl_loss(
    run: Run,
    batch: Batch,
    rows: Rows,
    new_BT: Tensor,
    entropy_BT: Tensor,
    old: Old | None,
    ref_BT: Tensor | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The RL loss of some rows of a batch, and its sums."""
    recipe, mask_BT = run.recipe, rows.mask_BT
    settings, which = recipe.rl.algorithm, batch.used[rows.which_B]
    old_BT = new_BT.detach() if old is None else filled(old, rows)
    correct_BT, gaps = _against_engine(run, batch.learnt, rows, old_BT)
    adv_B, weight_B = (v[which].to(new_BT.device) for v in (batch.adv_B, batch.weight_B))
    chosen_BT = None if batch.chosen is None else filled(batch.chosen, rows).bool()
    terms = Terms(new_BT, old_BT, ref_BT, adv_B, weight_B, mask_BT, correct_BT, chosen_BT)
    loss, sums = policy_loss(terms, algorithm_of(settings), settings.beta)
    if recipe.rl.entropy:
        loss = loss - recipe.rl.entropy * entropy_bonus(entropy_BT, weight_B, mask_BT)
    return loss, {**sums, **gaps, "entropy": entropy_BT.sum()}


def draw(
    run: Run, step: int, problems: Sequence[Problem], attempt: int = 0, first_group: int = 0
) -> tuple[list[Group], float]:
    """Groups, and the seconds that sampling waited for verdicts; the rest of judging overlaps."""
    settings = run.recipe.rollout
    sampling = Sampling(
        settings.n,
        settings.max_new_tokens,
        settings.temperature,
        settings.top_p,
        settings.top_k,
        seed=(run.recipe.seed * 1_000_003 + step) * 101 + attempt,
    )
    everyone = tuple(range(settings.n))
    shard = run.ranks.shard(list(enumerate(problems)))
    requests = [Request(i, run.prompt_ids(p), everyone) for i, p in shard]
    drawn: dict[tuple[int, int], tuple[Completion, Future[Verdict]]] = {}
    waited = 0.0
    for completion in run.engine.generate(requests, sampling):
        text = run.policy.decode(completion.ids)
        began = time.perf_counter()
        future = run.verifier.submit(problems[completion.index], text, completion.finished)
        waited += time.perf_counter() - began  # the inline verifier judges right there
        drawn[completion.index, completion.sample] = (completion, future)
    began = time.perf_counter()
    for _, future in drawn.values():
        future.result()
    waited += time.perf_counter() - began
    groups = [
        [_rollout(run, step, first_group + i, problem, *drawn[i, sample]) for sample in everyone]
        for i, problem in shard
    ]
    groups = shaped(algorithm_of(run.recipe.rl.algorithm), groups, settings.max_new_tokens)
    everything = sorted(run.ranks.gather(groups), key=lambda group: group[0].group)
    return everything, waited


def _rollout(
    run: Run, step: int, group: int, problem: Problem, c: Completion, future: Future[Verdict]
) -> Rollout:
    verdict = future.result()
    return Rollout(
        problem.id,
        np.array(run.prompt_ids(problem), dtype=np.int32),
        c.ids,
        c.logprobs,
        verdict.reward,
        verdict,
        step,
        run.policy.version,
        group,
        c.sample,
        c.finished,
    )


def _shares(groups: list[Group], rounds: int) -> Iterator[list[Group]]:
    for i in range(rounds):
        yield groups[i::rounds]  # the groups that fill a batch up stand last: some for each


def _rows(run: Run, rollouts: Sequence[Rollout | Remembered], budget: int) -> Iterator[Rows]:
    return micro_batches(
        [r.prompt_ids for r in rollouts],
        [r.ids for r in rollouts],
        run.policy.pad_id,
        budget,
        run.policy.model.device,
        run.ranks,
    )


def _against_engine(
    run: Run, rollouts: list[Rollout], rows: Rows, old_BT: Tensor
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Importance weights for the engine's tokens (`rollout.correct`), and the engine gap.

    Both compare the policy that sampled with itself, so only rounding differs.
    """
    cap, mask_BT = run.recipe.rollout.correct, rows.mask_BT
    engine_BT = filled({i: rollouts[i].logprobs for i in rows.which_B.tolist()}, rows)
    gaps = engine_gap(old_BT, engine_BT, mask_BT)
    if cap is None:
        return None, gaps
    correct_BT = truncated_weight(old_BT, engine_BT, mask_BT, cap)
    gaps["engine_weight"] = torch.where(mask_BT, correct_BT, 0.0).sum()
    gaps["engine_truncated"] = (mask_BT & (correct_BT >= cap)).sum()
    return correct_BT, gaps


@torch.no_grad()
def _reference(run: Run, rows: Rows) -> Tensor | None:
    if run.reference is None:
        return None
    return token_logprobs(run.reference, rows, run.recipe.rollout.temperature)[0]


def _set_lr(optimizer: torch.optim.Optimizer, lr: float, step: int, warmup: int) -> None:
    set_lr(optimizer, lr * min(1.0, step / warmup) if warmup else lr)


def _right(rollout: Rollout) -> bool:
    return rollout.verdict.kind == "correct"


def _drawn_metrics(drawn: list[Group], groups: list[Group]) -> Metrics:
    rollouts = [rollout for group in drawn for rollout in group]
    kinds = Counter(r.verdict.kind for r in rollouts)
    tokens = sum(len(r.ids) for r in rollouts)
    metrics = {
        "reward": float(np.mean([r.verdict.reward for r in rollouts])),
        "solved": float(np.mean([any(_right(r) for r in group) for group in drawn])),
        "useful": float(np.mean([disagrees(group) for group in groups])),
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
