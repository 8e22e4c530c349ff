"""Each Triton kernel against plain code: on a GPU, or on a CPU under TRITON_INTERPRET=1."""

import os

import pytest
import torch
from torch.nn.functional import rms_norm, silu

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if ON_GPU else "cpu"
KINDS = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not ON_GPU and not INTERPRETED, reason="no CUDA device, and kernels are not interpreted"
    ),
]


def randn(*shape):
    return torch.randn(*shape, device=DEVICE)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("size", [300, 49152, 151936])
def test_a_token_is_drawn_as_on_a_cpu(temperature, size, kind):
    from sps.rollout.cuda import kernels
    from sps.rollout.native.sampling import draw, stream_at

    rows = 16 if INTERPRETED and size > 300 else 256
    logits = (randn(rows, size) * 3).to(kind)
    logits[0, :200], logits[1, 200:] = -torch.inf, -torch.inf  # blocks without any mass
    key = torch.randint(-(2**62), 2**62, (rows,), device=DEVICE)
    own = torch.randint(0, 50, (rows,), device=DEVICE, dtype=torch.int32)
    token, logprob = kernels.draw(logits, key, own, 1, temperature)
    want, want_logprob = draw(logits, stream_at(key, own + 1), temperature, 1.0, 0)
    same = token == want
    assert same.float().mean() > 0.98  # sums in another order may tip a close call
    assert (logprob - want_logprob)[same].abs().max() < 1e-4
    assert torch.isfinite(logprob).all()


def as_models_do(x, position, angles, weight):
    """Heads [H, D] as the model's own code prepares them: normed where it norms, and rotated."""
    kind, x = x.dtype, x.float()
    if weight is not None:
        x = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)).to(kind) * weight
        x = x.float()
    angle = torch.cat([angles[position]] * 2)
    left, right = x.chunk(2, -1)
    return (x * angle.cos() + torch.cat([-right, left], -1) * angle.sin()).to(kind)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NaN, which is all that no one wrote
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("parts", "keys", "warps", "sharp", "width", "prompt", "normed"),
    [
        (1, 64, 2, 1, 128, 150, False),
        (1, 64, 2, 60, 64, 128, False),  # scores that exp2 alone cannot take
        (3, 64, 2, 1, 128, 128, True),
        (16, 64, 4, 60, 32, 150, False),
        (5, 128, 4, 1, 64, 256, True),
        (4, 32, 1, 1e-3, 128, 150, True),  # as small as eps
    ],
)
def test_attention_is_a_softmax_over_all_pages_of_a_row(
    parts, keys, warps, sharp, width, prompt, normed, kind, monkeypatch
):
    from sps.rollout.cuda import attention
    from sps.rollout.cuda.state import PAGE, State

    state, free = State.empty(8, 1, torch.device(DEVICE)), iter(torch.randperm(50).add(10).tolist())
    new_empty = torch.Tensor.new_empty

    def nan(*size, **how):
        made = new_empty(*size, **how)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", nan)
    heads, shared, first = 14, 2, -(-prompt // PAGE)
    own = [0, 1, 63, 64, 127, 128, 129, 2000]
    cache = torch.full((2, 60, shared, PAGE, width), torch.nan, device=DEVICE).to(kind)
    table = torch.zeros(8, first + 2000 // PAGE + 1, dtype=torch.int32, device=DEVICE)
    table[:, :first] = torch.tensor([7, 3][:first])  # one prompt for all
    seen = []  # of each row, prompt and own: [2, shared, tokens, width]
    before = randn(2, shared, prompt, width).to(kind)
    for at in range(first):
        some = before[:, :, at * PAGE : (at + 1) * PAGE]
        cache[:, table[0, at], :, : some.shape[2]] = some
    for row, size in enumerate(own):
        after = randn(2, shared, size, width).to(kind)
        for at in range(size // PAGE + 1):
            table[row, first + at] = next(free)
            some = after[:, :, at * PAGE : (at + 1) * PAGE]
            cache[:, table[row, first + at], :, : some.shape[2]] = some
        seen.append(torch.cat([before, after], 2))
    state.slot.copy_(torch.arange(8))
    state.own.copy_(torch.tensor(own))
    state.live.fill_(1)
    length = torch.tensor([prompt], dtype=torch.int32, device=DEVICE)
    qkv = randn(8, (heads + 2 * shared) * width).to(kind)
    qkv[:, : heads * width] *= sharp
    angles = torch.rand(3000, width // 2, device=DEVICE) * 6.28
    turns = torch.cat([angles] * 2, 1).cos(), torch.cat([angles] * 2, 1).sin()
    norms = (randn(width), randn(width)) if normed else None
    plan = attention.Plan(parts, keys, 1, warps, 3 if kind == torch.bfloat16 else 2)
    got = attention.attend(
        qkv, turns, state, length, (cache[0], cache[1]), table, heads, norms, 1e-6, plan
    ).view(8, heads, width)
    for row, size in enumerate(own):
        q, k, v = qkv[row].view(-1, width).split([heads, shared, shared])
        q, k = (
            as_models_do(x, prompt + size, angles, weight)
            for x, weight in zip((q, k), norms or (None, None), strict=True)
        )
        stored = cache[:, table[row, first + size // PAGE].long(), :, size % PAGE]
        off = 1e-2 if kind == torch.bfloat16 else 1e-5
        assert (stored.double() - torch.stack([k, v]).double()).norm() < off * v.double().norm()
        every = torch.cat([seen[row], torch.stack([k, v])[:, :, None]], 2).double()
        keys_of, values_of = every.repeat_interleave(heads // shared, 1)
        p = ((keys_of @ q.double()[:, :, None])[..., 0] * width**-0.5).softmax(-1)
        want = (p[:, None] @ values_of)[:, 0]
        assert (got[row].double() - want).norm() < 10 * off * want.norm(), (row, size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [3, 32, 70])
@pytest.mark.parametrize("tiles", [(64, 128, 1), (128, 64, 1), (64, 128, 4)])
def test_products_are_those_of_torch(rows, tiles, kind):
    from sps.rollout.cuda.products import Tiles, tiled

    wide, deep, parts = tiles
    x, weight = randn(rows, 512).to(kind), randn(256, 512).to(kind)
    got = tiled(x, weight, Tiles(wide, deep, parts, 4, 2))
    assert got.shape == ((rows, 256) if parts == 1 else (parts, rows, 256))
    want = x.double() @ weight.double().T
    off = got.double().reshape(parts, rows, 256).sum(0) - want
    assert off.norm() < (1e-5 if kind == torch.float32 else 4e-3) * want.norm()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("depth", "size"), [(128, 192), (512, 256), (512, 200)])
@pytest.mark.parametrize("own", [False, True], ids=["usual", "own"])
def test_gated_products_are_those_of_torch(monkeypatch, depth, size, own, kind):
    from sps.rollout.cuda import products

    if own and (size % 64 or depth % 128):
        pytest.skip("tiles do not fit")
    monkeypatch.setattr(
        products, "tiles_for", lambda *_: products.Tiles(64, 128, 1, 4, 2) if own else None
    )
    x, weight = randn(20, depth).to(kind), (randn(2 * size, depth) / depth**0.5).to(kind)
    gate, up = (x.double() @ part.double().T for part in weight.chunk(2))
    want = silu(gate) * up
    off = products.silu_product(x, weight).double() - want
    assert off.norm() < (1e-5 if kind == torch.float32 else 1e-2) * want.norm()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [0, 1, 4])
def test_a_norm_adds_the_parts_of_a_product_first(parts, kind):
    from sps.rollout.cuda.products import add_norm

    residual, weight = randn(5, 200).to(kind), randn(200).to(kind)
    more = randn(parts, 5, 200) if parts > 1 else randn(5, 200).to(kind)
    whole = residual.double() + (more.double().view(-1, 5, 200).sum(0) if parts else 0)
    got = add_norm(more if parts else None, residual, weight, 1e-6, kind)
    want = rms_norm(whole, [200], weight.double(), 1e-6)
    near = 1e-5 if kind == torch.float32 else 2e-2
    assert (got.double() - want).norm() < near * want.norm()
    assert (residual.double() - whole).norm() < near * whole.norm()  # in place


def test_tokens_are_written_up_to_the_first_wrong_guess_an_end_or_the_limit():
    from sps.rollout.cuda import kernels
    from sps.rollout.cuda.state import State

    state = State.empty(6, 8, torch.device(DEVICE))
    state.slot.copy_(torch.tensor([3, 0, 1, 2, 4, 5]))
    state.live.copy_(torch.tensor([1, 1, 1, 1, 1, 0]))
    state.limit.copy_(torch.tensor([8, 8, 8, 3, 8, 8]))
    state.own.fill_(1)
    drawn = torch.tensor(
        [[5, 6, 7], [5, 6, 7], [5, 2, 7], [5, 6, 7], [2, 6, 7], [5, 6, 7]], device=DEVICE
    )
    guess = torch.tensor([[5, 6], [5, 9], [5, 2], [5, 6], [2, 6], [5, 6]], device=DEVICE)
    logprobs = -drawn.float()
    kernels.take(state, (drawn, logprobs), torch.tensor([2], device=DEVICE), 0, guess)
    ids = state.ids_ST[state.slot.long()].tolist()
    # All three, up to a wrong guess, an end, the limit, an end at once; none of a row that is done.
    kept = [[5, 6, 7], [5, 6], [5, 2], [5, 6], [2], []]
    for row, tokens in enumerate(kept):
        assert ids[row][1 : 1 + len(tokens)] == tokens, row
        assert state.own[row] == max(1, len(tokens)), row
    assert state.live.tolist() == [1, 1, 0, 0, 0, 0]
    assert state.ended[:5].tolist() == [False, False, True, False, True]
    assert state.token[:5].tolist() == [7, 6, 2, 6, 2]
    stored = state.logprobs_ST[state.slot.long()]
    assert stored[0, 1:4].tolist() == [-5.0, -6.0, -7.0]
