"""The device of a computation: which one, in which precision, and what to do when its memory runs out."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from nmt_cli.errors import NmtError

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
T = TypeVar("T")
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # from malloc.h of glibc


@dataclass(frozen=True)
class Compute:
    """The device, the precision, and the reason for the precision in a few words."""

    device: torch.device
    precision: str  # a key of TYPES
    reason: str

    def autocast(self) -> AbstractContextManager:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, TYPES[self.precision])


_accelerated = False  # see as_accelerator


def on_cpu(x: Tensor) -> bool:
    """Whether operations that are written by hand for CPUs may run. Accelerators and torch.compile have faster ones."""
    return x.device.type == "cpu" and not (_accelerated or torch.compiler.is_compiling())


@contextmanager
def as_accelerator() -> Iterator[None]:
    """Inside, a CPU computes as an accelerator does: to predict memory, and to compare both ways."""
    global _accelerated
    before, _accelerated = _accelerated, True
    try:
        yield
    finally:
        _accelerated = before


def keep_freed_memory() -> bool:
    """Let malloc keep freed memory for the next training step. Returns whether the C library supports that.

    Otherwise the kernel zeroes the pages of large tensors thousands of times in a step (docs/performance.md).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # The mallopt of musl does nothing and returns 0.
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def free_cache() -> None:
    """Free the memory of an accelerator that torch keeps for later tensors. A CPU has no such cache."""
    if torch.accelerator.is_available():
        torch.get_device_module().empty_cache()


def out_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out. CUDA raises an error class of its own; on the CPU and MPS only the message tells."""
    message = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in message or "out of memory" in message


def in_parts(work: Callable[[slice], T], rows: slice) -> Iterator[T]:
    """work(rows). If memory runs out, the rows are halved, again and again."""
    try:
        yield work(rows)
        return
    except RuntimeError as error:
        if not out_of_memory(error) or rows.stop - rows.start < 2:
            raise
    free_cache()
    middle = (rows.start + rows.stop) // 2
    yield from in_parts(work, slice(rows.start, middle))
    yield from in_parts(work, slice(middle, rows.stop))


def choose_device(wanted: str) -> torch.device:
    """The device of this type, such as "cuda". "auto" is the accelerator of the machine, or the CPU."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    usable = [accelerator.type, "cpu"] if accelerator is not None else ["cpu"]
    if wanted == "auto":
        return torch.device(usable[0])
    if wanted not in usable:
        raise NmtError(f"this machine has no device {wanted}", f"choose one of: auto, {', '.join(usable)}")
    return torch.device(wanted)
