"""The device and the precision of training. `train.precision = "auto"` is decided by a trial in a child process.

Some processors claim to support bf16 and then crash on an illegal instruction, which Python cannot catch. Others are
slower with bf16.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from nmt_cli.errors import NmtError

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
T = TypeVar("T")
_TRIAL_TIMEOUT = 120  # seconds; a trial takes a few seconds


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


def choose_precision(wanted: str, device: torch.device) -> tuple[str, str]:
    """The precision, and the reason for it. A precision that the recipe names must pass the trial too, because
    training would otherwise crash hours later."""
    if wanted == "fp32":
        return "fp32", "as the recipe says"
    precision = _claimed_precision(device) if wanted == "auto" else wanted
    if precision is None:
        return "fp32", "this processor has no faster precision"
    outcome = _trial(device, precision)
    if isinstance(outcome, str):
        if wanted == "auto":
            return "fp32", f"{precision} failed a trial: {outcome}"
        raise NmtError(
            f"train.precision = {wanted} does not work on this {device.type}: {outcome}",
            "set train.precision to auto or fp32; to continue a run that began with another precision, "
            "use --from RUN --out NEW",
        )
    speed = f"{outcome:.2f}x the speed of fp32 in a trial"
    if wanted != "auto":
        return wanted, f"as the recipe says; {speed}"
    if outcome < 1.15:  # a speedup below 15 % is not worth the lost digits
        return "fp32", f"{precision} ran at {speed}"
    return precision, speed


def _claimed_precision(device: torch.device) -> str | None:
    """The precision that should be faster than fp32 according to the flags of the device; None if there is none."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability()[0] >= 8 else "fp16"
    if device.type == "xpu":
        return "bf16"
    if device.type == "cpu":
        flags = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return "bf16" if any(getattr(torch.cpu, flag, lambda: False)() for flag in flags) else None
    return None


def _trial(device: torch.device, precision: str) -> float | str:
    """The speed relative to fp32, or the reason for a failure."""
    command = [sys.executable, "-m", "nmt_cli.model.device", device.type, precision]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TRIAL_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer in {_TRIAL_TIMEOUT} s"
    if done.returncode < 0:
        import signal

        return f"the trial process was killed by {signal.Signals(-done.returncode).name}"
    try:
        return float(done.stdout)
    except ValueError:
        return (done.stderr.strip().splitlines() or ["the trial process gave no reason"])[-1]


@cache
def matrix_rate(device: torch.device, threads: int) -> float:
    """Operations per second in products of fp32 matrices. The fastest of a hundred products counts, because other
    programs may use the processor.

    `threads` is the number of threads that torch uses now. Each number is measured once in a process.
    """
    size, best = 512 if device.type == "cpu" else 4096, float("inf")
    x = torch.ones(size, size, device=device)
    for _ in range(100):
        start = time.perf_counter()
        (x @ x)[0, 0].item()  # item() waits for a GPU
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def _seconds(device: torch.device, dtype: torch.dtype) -> float:
    """The fastest of five rounds of matrix products as large as those of a small training step."""
    x, w = (torch.randn(2048, 512, device=device, dtype=dtype, requires_grad=True) for _ in range(2))
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(4):
            torch.nn.functional.linear(x, w).sum().backward()
        torch.get_device_module(device).synchronize()
        best = min(best, time.perf_counter() - start)
    if not bool(torch.isfinite(x.grad).all()):  # type: ignore[arg-type]
        raise SystemExit("the result was not finite")
    return best


if __name__ == "__main__":  # the child process of _trial
    trial_device = torch.device(sys.argv[1])
    print(_seconds(trial_device, torch.float32) / _seconds(trial_device, TYPES[sys.argv[2]]))
