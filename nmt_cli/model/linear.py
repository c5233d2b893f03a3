"""Products with matrices of weights. On some CPUs they take half the time of torch's own. See docs/performance.md.

torch multiplies with Intel's MKL, which uses the wide vectors of AVX-512 on Intel's processors only. On others it uses
AVX2. oneDNN, which is part of torch too, uses AVX-512 on all processors.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.model.device import on_cpu

FEWEST_ROWS = 64  # with fewer rows, oneDNN is no faster
_CPUINFO = Path("/proc/cpuinfo")  # of Linux


@cache
def prefers_onednn() -> bool:
    """Whether this processor has AVX-512, but MKL does not use it.

    This is a rule and not a trial, so that a run that continues computes as before.
    """
    capable = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    if not capable or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    return _CPUINFO.exists() and "GenuineIntel" not in _CPUINFO.read_text()


def uses_onednn(x: Tensor) -> bool:
    """Whether oneDNN multiplies x (...,I). oneDNN fails if I = 0."""
    chosen = on_cpu(x) and prefers_onednn() and torch.backends.mkldnn.enabled
    if not chosen or torch.is_autocast_enabled(x.device.type):
        return False
    return x.dtype == torch.float32 and x.dim() > 1 and x.numel() >= FEWEST_ROWS * x.size(-1) > 0


def product(a: Tensor, b: Tensor) -> Tensor:
    """a (N,K) times b (K,M) -> (N,M), for tensors that need no gradient."""
    return _product(a, b) if uses_onednn(a) else a @ b


def add_weight_gradient(total: Tensor, grad: Tensor, x: Tensor) -> None:
    """Add to `total` (O,I) the gradient of W in y = x W', where grad (N,O) is the gradient of y and x is (N,I)."""
    if uses_onednn(x):
        total += _weight_gradient(grad, x)
    elif total.dtype == grad.dtype:
        total.addmm_(grad.t(), x)
    else:
        total += grad.t() @ x


def step_of(rows: int) -> int:
    """The largest power of two that is at most an eighth of the rows; 1 for fewer than 16 rows.

    oneDNN compiles code for each shape, which takes milliseconds and up to a megabyte. So there must be few shapes: the
    number of rows is made a multiple of this step.
    """
    return 1 << max(0, rows.bit_length() - 4)


def padded(x: Tensor) -> Tensor:
    """x (...,N,K), with rows of zeros at the end if oneDNN multiplies it."""
    return _padded(x) if uses_onednn(x) else x


def _padded(x: Tensor) -> Tensor:
    extra = -x.size(-2) % step_of(x.size(-2))
    return F.pad(x, (0, 0, 0, extra)) if extra else x


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a (N,K) times b (K,M), plus bias (M,) -> (N,M)"""
    return torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")


def _weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """grad (N,O), x (N,I) -> (O,I). oneDNN takes less time if the longer side of the result is the last one."""
    return _product(grad.t(), x) if grad.size(1) < x.size(1) else _product(x.t(), grad).t()


class _Linear(torch.autograd.Function):
    """x (N,I), weight (O,I), bias (O,) -> (N,O)"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        # `data` is no view for autograd. ReLU overwrites the result, and autograd would copy a view first.
        return _product(_padded(x), weight.t(), bias)[: len(x)].data

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        padded = _padded(grad)
        return (
            _product(padded, weight)[: len(grad)] if of_x else None,
            _weight_gradient(padded, _padded(x)) if of_weight else None,
            grad.sum(0) if of_bias else None,
        )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (...,I) times the transpose of weight (O,I), plus bias (O,) -> (...,O). The rows of x must not overlap."""
    if not uses_onednn(x):
        return F.linear(x, weight, bias)
    if x.dim() == 2:
        return _Linear.apply(x, weight, bias)
    return _Linear.apply(x.flatten(0, -2), weight, bias).view(*x.shape[:-1], len(weight))


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


@cache
def matrix_rate(device: torch.device, threads: int, tf32: bool) -> float:
    """Operations per second in products of fp32 matrices. The fastest of a hundred products counts, because other
    programs may use the processor.

    `threads` is the number of threads that torch uses now, and `tf32` whether it may use TF32. Each combination is
    measured once in a process.
    """
    size, best = 512 if device.type == "cpu" else 4096, float("inf")
    x = torch.ones(size, size, device=device)
    for _ in range(100):
        start = time.perf_counter()
        product(x, x)[0, 0].item()  # item() waits for a GPU
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
