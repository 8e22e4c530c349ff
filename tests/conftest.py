"""What tests share: one thread for exact repetition, and small models made once."""

from __future__ import annotations

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("sps", deadline=None, derandomize=True)
settings.load_profile("sps")
