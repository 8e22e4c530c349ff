"""The callback: when what is done in a run of TRL's GRPOTrainer."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.state import AcceleratorState
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from sps.config.irl import IRL
from sps.config.load import parse_branch
from sps.config.recipe import MeterConfig
from sps.config.rl import RL
from sps.errors import UserError
from sps.integrations.trl.memory import FILE, Mode, StepMemory, as_settings, check_memory
from sps.integrations.trl.model import calm, check, gradients_aside, plain
from sps.integrations.trl.record import Batch, Rollout, columns, encode, watched
from sps.phases import irl
from sps.phases.schedule import irl_lr
from sps.phases.warnings import stood_still
from sps.policy.load import Policy
from sps.policy.meter import Meter, Probe
from sps.policy.update import Budget, set_lr
from sps.ranks import ALONE, Distributed, Ranks
from sps.run.track import Track, read_records
from sps.types import Metrics

_LOG = logging.getLogger(__name__)
_METER = MeterConfig()
_UNSEEN = "SPSCallback: it sees no rollouts; give GRPOTrainer reward_funcs=sps.watch(reward)"
_UNKNOWN = (
    "SPSCallback: its rewards are asked, but no trainer has it so far, so it does nothing; give "
    "GRPOTrainer callbacks=[sps]"
)


class SPSCallback(TrainerCallback):
    """Takes the IRL phases of SPS in a run of TRL's GRPOTrainer.

    Settings are the keys of `irl` in a recipe; `every` has no default, and steps=0 is plain TRL.
    memory=1.0 remembers right rollouts (reward above 0), and adds to each optimizer step a forward
    KL of that weight towards those of the prompts that it learns from: one for each distinct text,
    or for each value of `mode`, a function of the text. Give a mapping for the other keys of
    `irl.memory`, and steps=0 for memory without IRL phases.

    The gradient of memory is added in on_pre_optimizer_step. TRL has clipped its own by then, so
    max_grad_norm and the grad_norm in its log are of the RL loss alone: memory keeps its weight in
    steps in which TRL's gradient is scaled down, and is itself never clipped. Where one generation
    batch serves several optimizer steps, each recalls for all of its prompts. What is remembered is
    in TRL's checkpoints, as sps_memory.parquet, and read when a run is resumed from OUTPUT_DIR.

    The last phase may be short. `micro_tokens` bounds the padded tokens of one pass. Records go to
    OUTPUT_DIR/sps.jsonl and to `history`, on the first rank; TRL's own log gets the last ones of a
    phase, under irl/, with its next step.

    An IRL phase holds a copy of the trained weights, for the meter, and AdamW's state for them.
    TRL has no rollouts that are held out, so the meter reads on the latest that were not kept;
    they are likelier than most. A resumed run starts its phase anew: rollouts before the checkpoint
    are gone, and so is the IRL optimizer's state where optimizer_state is 'kept'.
    """

    def __init__(
        self,
        micro_tokens: int = 16384,
        memory: float | Mapping[str, Any] = 0.0,
        mode: Mode | None = None,
        **settings: Any,
    ):
        settings |= {"memory": as_settings(memory)}
        self.settings = parse_branch(IRL, "irl", settings, "SPSCallback")
        parse_branch(RL, "rl", {"micro_tokens": micro_tokens}, "SPSCallback")
        check_memory(self.settings.memory, mode)
        if not self.settings.every and not (self.settings.memory.on and not self.settings.steps):
            raise UserError(
                "SPSCallback: every is missing; say after how many optimizer steps an IRL phase "
                "comes, such as every=50 (or steps=0 with memory alone)"
            )
        self.memory: StepMemory | None = None  # known while training
        self._mode = mode
        self.budget = Budget(micro_tokens)
        self.record: list[Batch] = []  # of the phase that is going on
        self.history: list[dict[str, Any]] = []
        self.policy: Policy | None = None  # known while training
        self.ranks: Ranks = ALONE
        self._known = False  # whether a trainer has it among its callbacks
        self._watched: list[Callable] | Callable | None = None
        self._rewards: dict[int, list[float]] = {}  # of the batch that is being judged
        self._news: Metrics = {}  # for TRL's log
        self._tokens = 0  # as TRL had counted them at the last step
        self._began = 0  # the step that this training started from
        self._optimizer: torch.optim.Optimizer | None = None
        self._rates: list[float] = []  # of TRL's steps in the phase that is going on

    def watch(self, rewards: Any) -> Any:
        """The same reward function, or list of them, for GRPOTrainer; what it is given is recorded.

        Of a list, the sum weighted by args.reward_weights decides what is wrong (0 or less). Where
        only some rewards say whether an answer is right, watch those: [sps.watch(right), style].
        """
        if self._watched is not None:
            raise UserError(
                "SPSCallback: watch was called twice; give it a list: sps.watch([a, b])"
            )
        for reward in rewards if isinstance(rewards, list) else [rewards]:
            if isinstance(reward, torch.nn.Module) or not callable(reward):
                raise UserError(
                    f"SPSCallback: watch takes functions, not {type(reward).__name__}; a reward "
                    "model stays beside it: reward_funcs=[sps.watch(right), reward_model]"
                )
        self._watched = rewards
        if not isinstance(rewards, list):
            return watched(rewards, functools.partial(self._take, 0))
        takes = (functools.partial(self._take, number) for number in range(len(rewards)))
        return [watched(reward, take) for reward, take in zip(rewards, takes, strict=True)]

    def on_init_end(self, args, state, control, **_):
        """A trainer was given it."""
        self._known = True

    def on_train_begin(self, args, state, control, model=None, processing_class=None, **_):
        """Refuse what cannot work, before the first step."""
        self.policy = self.memory = None
        self._known = True
        if not self.settings.steps and not self.settings.memory.on:
            return
        check(self.settings, args, processing_class)
        if self._watched is None:
            raise UserError(_UNSEEN)
        self._reward_weights(args)
        cluster = AcceleratorState()
        self.ranks = Distributed(cluster) if cluster.num_processes > 1 else ALONE
        self.policy = Policy(plain(model), processing_class, "TRL's model")
        self.policy.model.compute_dtype = torch.bfloat16 if args.bf16 else torch.float32
        self._args, self._tokens = args, state.num_input_tokens_seen
        self._began, self._optimizer = state.global_step, None
        self._rewards, self._news, self._rates = {}, {}, []
        self.record.clear()
        self._open_track(Path(args.output_dir), state.global_step)
        if self.settings.memory.on:
            self._open_memory(self.policy, state.global_step)

    def on_pre_optimizer_step(self, args, state, control, lr_scheduler=None, **_):
        """Score what was drawn for this step: the weights are still those that drew it. Then add
        the gradient of memory to TRL's, which is clipped and the same on every rank by now."""
        if self.policy is None:
            return
        self._rates.append(lr_scheduler.get_last_lr()[0] if lr_scheduler else args.learning_rate)
        if not self.record and state.global_step == self._began:
            raise UserError(_UNSEEN)
        fresh = [batch for batch in self.record if batch.likelihood_B is None]
        self._check_tokens(fresh, state.num_input_tokens_seen)
        if self.settings.steps or self.settings.memory.quantile < 1:
            with calm(self.policy.model):
                for batch in fresh:
                    batch.likelihood_B = self._likelihoods(batch)
        if self.memory is not None:
            self._recall(self.memory, fresh, state.global_step + 1)

    def on_step_end(self, args, state, control, **_):
        """An IRL phase where one is due. TRL's gradients are cleared by now, and it hands vLLM the
        weights before it draws again, since the step has changed."""
        step, every = state.global_step, self.settings.every
        if not self.settings.steps:
            self.record.clear()
        if self.record and self.policy and (step % every == 0 or step == state.max_steps):
            self._phase(self.policy, step, -(-step // every))
            self.record.clear()
            self._rates.clear()

    def on_save(self, args, state, control, **_):
        """What is remembered goes with TRL's checkpoint."""
        if self.memory is not None and self.ranks.main:
            self.memory.save(_checkpoint(args, state.global_step))

    def _open_memory(self, policy: Policy, step: int) -> None:
        self.memory = StepMemory(self.settings.memory, policy, self.ranks, self._mode)
        folder = _checkpoint(self._args, step)
        if step and not self.memory.load(folder):
            self._warn(step, f"{folder / FILE} is missing: memory begins anew at step {step}")

    def _recall(self, memory: StepMemory, fresh: list[Batch], step: int) -> None:
        memory.remember(fresh, step, self.settings.selector.likelihood)
        with calm(memory.policy.model, recompute=True):
            how = (self.budget, self._args.temperature, step, self._args.seed)
            counts = memory.add_gradient(*how)
        self.track.log("memory", step, **counts)
        self._news |= {f"memory/{name}": value for name, value in counts.items()}

    def _warn(self, step: int, text: str) -> None:
        self.track.log("warning", step, text=text)
        if self.ranks.main:
            _LOG.warning(text)

    def _take(
        self, number: int, values: list, *, prompts: list, completion_ids: list, **given: Any
    ) -> None:
        """One reward function's verdicts on a batch; the last one's complete it."""
        if self.policy is None or not self.policy.model.training:  # evaluation, as TRL tells it
            if not self._known:
                _LOG.warning(_UNKNOWN)
                self._known = True  # which is said once
            return
        for name, value in self._news.items():
            given["log_metric"](name, value)
        self._news = {}
        self._rewards[number] = [math.nan if value is None else float(value) for value in values]
        weights = self._reward_weights(self._args)
        if len(self._rewards) < len(weights):
            return
        value_RB = np.array([self._rewards[i] for i in range(len(weights))], dtype=np.float32)
        self._rewards = {}
        encoded = encode(self.policy.tokenizer, prompts, self._args.chat_template_kwargs or {})
        pairs = zip(encoded, completion_ids, strict=True)
        rollouts = [(np.array(p, np.int32), np.array(c, np.int32)) for p, c in pairs]
        # As TRL sums them: a function that gave None has no say.
        self.record.append(Batch(rollouts, np.nansum(weights[:, None] * value_RB, axis=0)))

    def _reward_weights(self, args: Any) -> np.ndarray:
        if not isinstance(self._watched, list):
            return np.ones(1, dtype=np.float32)
        weights = args.reward_weights or [1.0] * len(self._watched)
        if len(weights) != len(self._watched):
            raise UserError(
                f"SPSCallback: reward_weights has {len(weights)} numbers, and watch was given "
                f"{len(self._watched)} reward functions; watch them all, or a single one"
            )
        return np.array(weights, dtype=np.float32)

    def _check_tokens(self, fresh: list[Batch], seen: int) -> None:
        """TRL counts the tokens it draws; another count means that it drew something else."""
        own = sum(len(p) + len(c) for batch in fresh for p, c in batch.rollouts)
        counted, self._tokens = seen - self._tokens, seen
        own = self.ranks.total({"tokens": own})["tokens"]
        if own != counted and self._args.include_num_input_tokens_seen == "no":
            raise UserError(
                f"SPSCallback: of {counted:.0f} tokens that TRL drew for this step, it saw {own}. "
                "The trainer must be given what watch returns; tools, images and a rollout_func "
                "that writes its own prompts are not supported"
            )

    def _likelihoods(self, batch: Batch) -> np.ndarray:
        assert self.policy is not None
        prompts, completions = columns(batch.rollouts)
        how, temperature = self.settings.selector.likelihood, self._args.temperature
        return irl.likelihoods(self.policy, prompts, completions, how, self.budget, temperature)

    def _phase(self, policy: Policy, step: int, number: int) -> None:
        began = time.perf_counter()
        rng = np.random.default_rng([self._args.seed, 7919, number])  # as sps.phases.irl has it
        with calm(policy.model), gradients_aside(policy.model):
            kept, own = self._select(rng)
            seconds = time.perf_counter() - began
            first = {"kept": len(kept), "lr": self._lr(), "seconds/select": seconds}
            self.track.log("irl", step, phase=number, **first)
            meter = Meter(policy.scorer, self._probe(policy, kept, own))
            news: Metrics = {}
            for news in self._steps(policy, kept, own, rng) if kept else ():
                self.track.log("irl", step, phase=number, **news)
            moved = meter.read()
        self.track.log("meter", step, phase=number, of="irl", **moved)
        how = (self._lr(), policy.weight_dtype, _METER.still, bool(kept))
        if warning := stood_still("irl", moved, *how):
            self._warn(step, warning)
        logged = {"kept": float(len(kept)), **news, **moved}
        self._news |= {f"irl/{name}": value for name, value in logged.items()}

    def _lr(self) -> float:
        """Of an IRL phase: as set, or by the mean of TRL's in the RL steps before it."""
        mean = sum(self._rates) / len(self._rates)
        return irl_lr(self.settings, mean or self._args.learning_rate, len(self._rates))

    def _select(self, rng: np.random.Generator) -> tuple[list[int], dict[int, Rollout]]:
        """Numbers of the kept rollouts among those of all ranks, and this rank's by number."""
        size, own, kept, first = self._args.num_generations, {}, [], 0
        how = self.settings.selector
        chosen = (how.type, self.settings.keep, how.quantile, how.quantile_over)
        if how.under == "policy":
            for batch in self.record:
                batch.likelihood_B = self._likelihoods(batch)
        mine = [(batch.reward_B, batch.likelihood_B) for batch in self.record]
        of_batches = zip(*self.ranks.gather([mine]), strict=True)
        for batch, parts in zip(self.record, of_batches, strict=True):
            reward_PG, likelihood_PG = (
                np.concatenate(of_ranks).reshape(-1, size) for of_ranks in zip(*parts, strict=True)
            )
            keep_PG = irl.select_groups(reward_PG, likelihood_PG, *chosen, rng)
            kept += (first + np.flatnonzero(keep_PG)).tolist()
            at = first + sum(len(reward_B) for reward_B, _ in parts[: self.ranks.rank])
            own.update(enumerate(batch.rollouts, at))
            first += keep_PG.size
        return kept, own

    def _steps(
        self, policy: Policy, kept: list[int], own: dict[int, Rollout], rng: np.random.Generator
    ) -> Iterator[Metrics]:
        """The IRL steps; of the kept rollouts only a batch travels between the ranks at a time."""
        settings = self.settings
        if self._optimizer is None or settings.optimizer_state == "fresh":
            self._optimizer = irl.make_irl_optimizer(policy.model, settings, self._lr())
        set_lr(self._optimizer, self._lr())
        how = {"reduce": settings.reduce, "temperature": self._args.temperature}
        how["max_grad_norm"] = settings.optimizer.max_grad_norm
        for batch in irl.batches(len(kept), settings.batch, settings.steps, rng):
            began = time.perf_counter()
            numbers = [kept[i] for i in batch]
            found = dict(self.ranks.gather([(n, own[n]) for n in numbers if n in own]))
            rollouts = columns([found[n] for n in numbers])
            with calm(policy.model, recompute=True):
                metrics = irl.forward_kl_step(
                    policy, self._optimizer, *rollouts, self.budget, ranks=self.ranks, **how
                )
            yield {**metrics, "seconds/update": time.perf_counter() - began}
        if settings.optimizer_state == "fresh":
            self._optimizer = None  # its memory is TRL's again

    def _probe(self, policy: Policy, kept: list[int], own: dict[int, Rollout]) -> Probe | None:
        """The latest rollouts that no IRL step will train on; none where all were kept."""
        trained = set(kept)
        others = [rollout for number, rollout in own.items() if number not in trained]
        some = columns(others[-_METER.problems * _METER.samples :])
        return Probe(*some, policy.pad_id, self.budget.tokens) if others else None

    def _open_track(self, folder: Path, step: int) -> None:
        path = folder / "sps.jsonl"
        self.track = Track(path, [self.history.append], silent=not self.ranks.main)
        if self.ranks.main:
            folder.mkdir(parents=True, exist_ok=True)
            self.track.forget_after(step)
        self.history[:] = read_records(path) if self.ranks.main else []


def _checkpoint(args: Any, step: int) -> Path:
    """Where TRL has the checkpoint of a step."""
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}"
