"""Dropout that is fast on a CPU, where PyTorch's dropout takes a sixth of a training step. See docs/performance.md."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt_cli.model.device import on_cpu

STEPS = 256  # one random byte decides about one element, so the rate is a multiple of 1/256: 0.1 becomes 26/256


class _ByteDropout(torch.autograd.Function):
    """residual + x * mask / P(kept). P(kept) follows from the rounded rate, so the expectation is exact."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, p: float) -> Tensor:
        dropped = min(max(round(p * STEPS), 1), STEPS - 1)
        # Each random number is eight bytes. The numbers come from torch's global generator, which training seeds before
        # each micro-batch.
        draws = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
        mask = draws.view(torch.uint8)[: x.numel()].ge_(dropped).view(x.shape)
        ctx.save_for_backward(mask)
        ctx.scale = STEPS / (STEPS - dropped)
        if residual is None:
            return mask.to(x.dtype).mul_(x).mul_(ctx.scale)
        return torch.addcmul(residual, x, mask.to(x.dtype), value=ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (mask,) = ctx.saved_tensors
        residual = grad if ctx.needs_input_grad[1] else None
        return mask.to(grad.dtype).mul_(ctx.scale).mul_(grad), residual, None


def dropout(x: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
    """residual + x, where each element of x becomes zero with probability p and is scaled by 1/(1-p) otherwise."""
    if p and on_cpu(x):
        return _ByteDropout.apply(x, residual, p)
    x = F.dropout(x, p) if p else x
    return x if residual is None else residual + x
