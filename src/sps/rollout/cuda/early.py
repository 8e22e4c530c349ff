"""Kernels that start before the one in front of them has ended (programmatic dependent launch).

A kernel's launch, and weights on their way from memory, then hide behind the kernel before it. It
must wait before it reads what that one writes, and before it writes anything itself.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

on = False  # for all kernels of a step, or for none


def options() -> dict[str, Any]:
    """For a launch."""
    return {"EARLY": on, **({"launch_pdl": True} if on else {})}


@triton.jit
def begin(EARLY: tl.constexpr):
    """Let the next kernel start, then wait for the one before."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def fetch(rows, size):
    """Ask for the first of `size` 2-byte numbers behind each pointer [N, 1], up to a kilobyte."""
    at = (rows + tl.minimum(tl.arange(0, 8) * 64, size - 16)[None, :]).to(tl.int64)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False,
        pack=1,
    )  # fmt: skip
