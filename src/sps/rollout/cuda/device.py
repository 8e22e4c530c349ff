"""What the GPU at hand has room for."""

from __future__ import annotations

from functools import cache

import torch
from triton.runtime import driver


@cache
def shared_memory() -> int:
    """Bytes of it that a program may have: 227 KiB of an H100 or H200, 163 of an A100, and 99 of
    most cards with 24 to 48 GB. A kernel that wants more is not launched: triton raises."""
    if not torch.cuda.is_available():  # kernels are interpreted
        return 227 * 1024
    properties = driver.active.utils.get_device_properties(torch.cuda.current_device())
    return properties["max_shared_mem"]


@cache
def processors() -> int:
    """Multiprocessors: 132 of an H100 or H200, 108 of an A100, 128 of an RTX 4090."""
    if not torch.cuda.is_available():
        return 132
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
