"""Other programs on the GPU at hand."""

from __future__ import annotations

_LITTLE = 0.1  # of its memory


def held_by_others() -> str:
    """A sentence on what others hold of the GPU's memory, with a space before it; '' for little."""
    import torch

    if not torch.cuda.is_available():
        return ""
    free, whole = torch.cuda.mem_get_info()
    held = whole - free - torch.cuda.memory_reserved()
    if held < _LITTLE * whole:
        return ""
    return f" Other programs hold {held / 2**30:.0f} of the GPU's {whole / 2**30:.0f} GiB."
