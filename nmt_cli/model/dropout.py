"""Dropout that does not take a quarter of a training step on a CPU; elsewhere PyTorch's own."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def dropout(x: Tensor, p: float) -> Tensor:
    return F.dropout(x, p) if p else x
