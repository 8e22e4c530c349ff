"""How right bf16 is: loss and gradients of a batch against plain float32; what a tiny step does.

python -m bench.gpu_numbers MODEL     a folder or .gguf file, such as SmolLM2's; real weights matter

The reference holds all logits of a sequence in float32 and takes torch's own log-softmax; ours run
in micro-batches, bf16 with float32 weights, the fused output layer. The batch is the model's own
rollouts with advantages of GRPO groups; the old policy is the reference with a little noise, so
that the loss depends on every log-probability.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch

from bench.sides import RESULTS, machine
from sps.algo.irl import forward_kl, irl_weight
from sps.algo.rl import Terms, mean_of_sequence_means, normalised, policy_loss
from sps.algo.table import algorithm_of
from sps.build import make_engine
from sps.config.rl import Grpo
from sps.policy.load import Policy, load_policy
from sps.policy.logprobs import Rows, micro_batches
from sps.policy.meter import Meter, Probe
from sps.policy.update import Budget, make_optimizer, optimizer_step
from sps.types import Request, Sampling

QUESTIONS = [
    "Tom has 3 boxes of 12 pencils and gives away 7. How many are left?",
    "A train goes 60 km an hour for 2.5 hours. How far does it go?",
    "What is 15 % of 240?",
    "Ann reads 14 pages a day. How many days does she need for 98 pages?",
]
PAPER_LR = 5e-10  # of the paper's IRL phase


def rollouts(policy: Policy, n: int, new: int) -> tuple[list, list]:
    """The policy's own answers, as arrays."""
    asked = [policy.encode([{"role": "user", "content": q}]) for q in QUESTIONS]
    requests = [Request(i, ids, tuple(range(n))) for i, ids in enumerate(asked)]
    drawn = list(make_engine(policy, 64).generate(requests, Sampling(n, new)))
    drawn.sort(key=lambda c: (c.index, c.sample))
    return [np.array(asked[c.index]) for c in drawn], [c.ids for c in drawn]


def grpo(policy: Policy, batch: tuple[list, list], old: list, tokens: int) -> tuple[float, list]:
    """Loss and gradients as training computes them."""
    adv_B, weight_B = _weights(batch)

    def part(rows: Rows, new_BT: Any, _: Any) -> tuple:
        own = rows.which_B
        on = new_BT.device
        old_BT = torch.zeros_like(new_BT)
        old_BT[rows.mask_BT] = torch.cat([old[i] for i in own])
        terms = Terms(new_BT, old_BT, None, adv_B[own].to(on), weight_B[own].to(on), rows.mask_BT)
        return policy_loss(terms, algorithm_of(Grpo()), 0.0)

    model = policy.model
    grads: list = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer.register_step_pre_hook(
        lambda *_: grads.extend(p.grad.clone() for p in model.parameters())
    )
    sums = optimizer_step(
        policy.scorer,
        optimizer,
        lambda budget: micro_batches(*batch, policy.pad_id, budget, model.device),
        part,
        Budget(tokens),
        temperature=1.0,
        max_grad_norm=1e9,
    )
    return sums["loss"], grads


def reference(
    policy: Policy,
    batch: tuple[list, list],
    kind: torch.dtype = torch.float32,
    given: list | None = None,
) -> tuple[float, list, list]:
    """The same, sequence by sequence without padding; also the old policy's log-probabilities."""
    noise = torch.Generator(policy.model.device).manual_seed(0)
    old = []
    adv_B, weight_B = _weights(batch)
    model = policy.model
    model.zero_grad(set_to_none=True)
    total = 0.0
    for row, (prompt, ids) in enumerate(zip(*batch, strict=True)):
        both = torch.tensor(np.concatenate([prompt, ids]).astype(np.int64), device=model.device)
        with torch.autocast(model.device.type, kind, enabled=kind != torch.float32):
            logp_LV = model(input_ids=both[None]).logits[0].float().log_softmax(-1)
        new_T = logp_LV[len(prompt) - 1 : -1].gather(-1, both[len(prompt) :, None])[:, 0]
        if given is None:
            shift_T = torch.randn(new_T.shape, generator=noise, device=new_T.device)
            old.append(new_T.detach() + 0.02 * shift_T)
        ratio_T = (new_T - (given or old)[row]).exp()
        bounded_T = ratio_T.clamp(0.8, 1.2)
        worst_T = torch.minimum(ratio_T * adv_B[row], bounded_T * adv_B[row])
        loss = -(worst_T * weight_B[row]).sum()
        loss.backward()
        total += float(loss.detach())
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return total, grads, old


def _weights(batch: tuple[list, list]) -> tuple[Any, Any]:
    reward_PG = (torch.arange(len(batch[0])) % 4 == 0).float().view(len(QUESTIONS), -1)
    length_B = torch.tensor([len(c) for c in batch[1]])
    return normalised(reward_PG).flatten(), mean_of_sequence_means(length_B, 0)


def apart(a: list, b: list) -> float:
    """Size of the difference relative to the size of b."""
    gap = sum(float((x.double() - y.double()).square().sum()) for x, y in zip(a, b, strict=True))
    return (gap / sum(float(y.double().square().sum()) for y in b)) ** 0.5


def paper_step(policy: Policy, batch: tuple[list, list], rounded: bool) -> dict[str, float]:
    """What the meter reads after 4 IRL steps at the paper's rate; `rounded`: bf16 weights, too."""
    model = policy.model
    if rounded:
        model.to(torch.bfloat16)
    meter = Meter(policy.scorer, Probe(*batch, policy.pad_id, 4096))
    optimizer = make_optimizer(model, PAPER_LR, (0.9, 0.999), 1e-8, 0.0)
    weight_B = irl_weight(torch.tensor([len(c) for c in batch[1]]), "token")

    def part(rows: Rows, new_BT: Any, _: Any) -> tuple:
        kl = forward_kl(new_BT, weight_B[rows.which_B].to(new_BT.device), rows.mask_BT)
        return kl, {"tokens": rows.mask_BT.sum()}

    for _ in range(4):
        optimizer_step(
            policy.scorer,
            optimizer,
            lambda budget: micro_batches(*batch, policy.pad_id, budget, model.device),
            part,
            Budget(4096),
            temperature=1.0,
            max_grad_norm=1.0,
        )
    return meter.read()


def main() -> None:
    """Everything, printed and written."""
    path = sys.argv[1]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    new, n = (128, 8) if device == "cuda" else (16, 4)
    torch.backends.cuda.matmul.allow_tf32 = False
    policy = load_policy(path, dtype="bfloat16", device=device)
    batch = rollouts(policy, n, new)
    loss, right, old = reference(policy, batch)
    adv_B, weight_B = _weights(batch)
    # The loss itself is a difference of large terms: its error is told against their size.
    terms = float((adv_B.abs() * weight_B * torch.tensor([len(c) for c in batch[1]])).sum())
    out: dict[str, Any] = {"tokens": int(sum(len(c) for c in batch[1])), "loss": loss}
    for name, dtype, tokens in (
        ("float32, micro-batches", "float32", 1024),
        ("bfloat16, one batch", "bfloat16", 10**6),
        ("bfloat16, micro-batches", "bfloat16", 1024),
    ):
        policy.model.compute_dtype = getattr(torch, dtype)
        got, grads = grpo(policy, batch, old, tokens)
        out[name] = {"loss": abs(got - loss) / terms, "gradient": apart(grads, right)}
        if name == "bfloat16, one batch":
            whole = grads
    got, plain, _ = reference(policy, batch, torch.bfloat16, old)
    name = "bfloat16, transformers' own logits"
    out[name] = {"loss": abs(got - loss) / terms, "gradient": apart(plain, right)}
    out["bfloat16: micro-batches against one batch"] = apart(grads, whole)
    del right, grads, whole
    policy.model.compute_dtype = torch.bfloat16
    out["paper's IRL rate, float32 weights"] = paper_step(policy, batch, rounded=False)
    fresh = load_policy(path, dtype="bfloat16", device=device)
    out["paper's IRL rate, bfloat16 weights"] = paper_step(fresh, batch, rounded=True)
    print(json.dumps(out, indent=1), flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "gpu_numbers.json").write_text(json.dumps({**machine(), **out}, indent=1) + "\n")


if __name__ == "__main__":
    main()
