"""vLLM colocated on a GPU: log-probabilities, weights, sleep. Runs as a script, too."""

import sys

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from sps.policy.embedded import make_tokenizer
from sps.policy.load import Policy
from sps.policy.logprobs import micro_batches, token_logprobs
from sps.rollout.table import VllmConfig
from sps.rollout.vllm import VllmEngine
from sps.tasks.countdown import Countdown
from sps.types import Request, Sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # of TRL and vLLM
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SAMPLING = Sampling(8, 128)


def make_policy():
    """Random weights that are far from flat, computed in bfloat16."""
    tokenizer = make_tokenizer(Countdown().vocabulary())
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=384, num_hidden_layers=6, num_attention_heads=6,
        num_key_value_heads=2, intermediate_size=1024, max_position_embeddings=512,
        tie_word_embeddings=True, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, initializer_range=0.08,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).cuda().eval()
    model.compute_dtype = torch.bfloat16
    return Policy(model, tokenizer, "test")


def make_requests(policy):
    rng = np.random.default_rng(0)
    size = len(policy.tokenizer)
    prompts = [tuple(int(t) for t in rng.integers(3, size, 20 + i)) for i in range(16)]
    return [Request(i, prompt, tuple(range(8))) for i, prompt in enumerate(prompts)]


@torch.no_grad()
def mean_gap(policy, requests, out):
    """Mean distance of the engine's log-probabilities from the trainer's, in nats."""
    prompts = [np.array(requests[c.index].prompt_ids) for c in out]
    total = count = 0.0
    for rows in micro_batches(prompts, [c.ids for c in out], policy.pad_id, 10**9, "cuda"):
        new_BT, _ = token_logprobs(policy.scorer, rows)
        drawn_N = torch.from_numpy(np.concatenate([out[i].logprobs for i in rows.which_B])).cuda()
        total += float((new_BT[rows.mask_BT] - drawn_N).abs().sum())
        count += len(drawn_N)
    return total / count


def shake(model):
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                noise = torch.randn(weight.shape, generator=rng).cuda()
                weight.add_(0.3 * weight.std() * noise)


def check(sleep):
    from sps.rollout.cuda.engine import CudaEngine  # needs triton, which CPUs may lack

    policy = make_policy()
    requests = make_requests(policy)
    cuda = CudaEngine(policy.model, policy.eos_ids, policy.pad_id)
    native = mean_gap(policy, requests, list(cuda.generate(requests, SAMPLING)))
    cuda.close()
    engine = VllmEngine(policy, VllmConfig(memory=0.2, sleep=sleep), max_rows=128)
    first = mean_gap(policy, requests, list(engine.generate(requests, SAMPLING)))
    held = torch.cuda.mem_get_info()
    shake(policy.model)
    if not sleep:  # asleep it has no weights, and takes the new ones whether told or not
        stale = mean_gap(policy, requests, list(engine.generate(requests, SAMPLING)))
        assert stale > 10 * first
    engine.load_weights(policy.model)
    out = list(engine.generate(requests, SAMPLING))
    fresh = mean_gap(policy, requests, out)
    assert all(c.finished == (c.ids[-1] in policy.eos_ids) for c in out)
    engine.close()
    used = (held[1] - held[0]) / 2**30
    sys.stdout.write(
        f"sleep {sleep}: gap {first:.2g}, new weights {fresh:.2g}, native {native:.2g} nats; "
        f"{used:.1f} GiB held between generations\n"
    )
    assert max(first, fresh) < 0.1  # such sharp random weights are bfloat16 at its worst
    assert (used < 0.1 * held[1] / 2**30) == sleep


@pytest.mark.parametrize("sleep", [False, True])
def test_vllm_on_a_gpu_gives_the_trainers_logprobs_and_sleeps(sleep):
    check(sleep)


if __name__ == "__main__":
    for sleep in (False, True):
        check(sleep)
