"""Kernels ask for no more shared memory than a GPU gives; compiled for GPUs that are not here."""

import os

import pytest

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are not compiled"
    ),
]
# What a program may have: an RTX 4090, an A10 or an L40S; an A100; an H200.
GPUS = [(89, 99 * 1024), (80, 163 * 1024), (90, 227 * 1024)]
COUNTS = {"table", "slot", "prompt", "prompt_length", "own", "live"}
SINGLE = {"cos", "sin", "q_norm", "k_norm", "tops", "totals"}


def taken(kernel, capability, values, kinds, **options):
    """Bytes of shared memory that a kernel wants, compiled with these constants."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    signature = {n: "constexpr" if n in values else kinds(n) for n in kernel.arg_names}
    aligned = [i for i, kind in enumerate(signature.values()) if kind[0] == "*" or kind == "i32"]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(kernel, signature, values, attributes)
    return compile(source, GPUTarget("cuda", capability, 32), options).metadata.shared


@pytest.fixture(params=GPUS, ids=["sm_89", "sm_80", "sm_90"])
def gpu(request, monkeypatch):
    from sps.rollout.cuda import attention, products

    for module in (attention, products):
        monkeypatch.setattr(module, "shared_memory", lambda: request.param[1])
    return request.param


@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("rows", [8, 1024])
def test_attention_fits(gpu, width, rows):
    from sps.rollout.cuda import attention

    capability, most = gpu
    plan = attention.plan_for(rows, 2, width, 4096)
    split = plan.parts > 1

    def kinds(name):
        if name in COUNTS:
            return "*i32"
        if name in SINGLE or (name == "out" and split):
            return "*fp32"
        return {"eps": "fp32", "scale": "fp32", "M": "i32", "parts": "i32", "turns": "i32"}.get(
            name, "*bf16"
        )

    values = {"HEADS": 14, "SHARED": 2, "D": width, "NORM": False, "R": 16, "N": plan.keys}
    values |= {"PAGE": 128, "SPLIT": split, "STORE": 1}
    how = {"num_warps": plan.warps, "num_stages": 2 * plan.stages - 1}
    assert taken(attention._attend, capability, values, kinds, **how) <= most


@pytest.mark.parametrize("kind", ["silu", "whole"])
@pytest.mark.parametrize(  # 140, 148 and 296 tiles of 64
    ("size", "rows"), [(8960, 32), (9472, 32), (18944, 32), (8960, 64), (9472, 64)]
)
def test_products_of_few_rows_fit(gpu, kind, rows, size):
    from sps.rollout.cuda import products

    capability, most = gpu
    tiles = products.few_rows(rows, size, 3584, kind)
    if rows > 32 and kind == "whole":
        assert tiles is None
        return
    assert (tiles is None) == (most < 100 * 1024)
    if tiles is not None:
        kinds = lambda name: "i32" if name in ("rows", "K", "N", "each") else "*bf16"  # noqa: E731
        values = {"SILU": kind == "silu", "BM": rows, "BN": tiles.wide, "BK": tiles.deep}
        how = {"num_warps": tiles.warps, "num_stages": tiles.stages}
        assert taken(products._product, capability, values, kinds, **how) <= most
