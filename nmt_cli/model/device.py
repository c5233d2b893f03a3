"""Where and in which precision to compute, chosen by trial.

A capability flag says what a processor claims; some claim bf16 and die of it (an illegal instruction, no exception), or
are slower with it. So `auto` runs a few matrix products in a child process and believes only the clock.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

from nmt_cli.errors import NmtError

Precision = Literal["fp32", "bf16", "fp16"]
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_WORTH_IT = 1.15  # times faster than fp32, or it is not worth the lost digits
_PATIENCE = 120  # seconds; a trial takes a few


@dataclass(frozen=True)
class Compute:
    """The device, the precision, and the reason for it in a few words."""

    device: torch.device
    precision: Precision
    reason: str

    def autocast(self) -> AbstractContextManager:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, TYPES[self.precision])


def out_of_memory(error: RuntimeError) -> bool:
    said = str(error)  # by the CPU's allocator, by MPS
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in said or "out of memory" in said


def choose_device(wanted: str) -> torch.device:
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return torch.device(next(name for name, available in there.items() if available))
    if not there[wanted]:
        usable = ", ".join(name for name, available in there.items() if available)
        raise NmtError(f"the device {wanted} is not there on this machine", f"usable: {usable}")
    return torch.device(wanted)


def choose_precision(wanted: str, device: torch.device) -> tuple[Precision, str]:
    """The precision and why. A wish is granted only if a trial survives: training must not die of it hours later."""
    if wanted == "fp32":
        return "fp32", "as the recipe says"
    if wanted != "auto":
        outcome = _trial(device, wanted)
        if isinstance(outcome, str):
            raise NmtError(
                f"train.precision = {wanted} does not work on this {device.type}: {outcome}",
                "use auto or fp32; a run that began so goes on elsewhere with --from RUN --out NEW",
            )
        return wanted, f"as the recipe says; {outcome:.2f}x the speed of fp32 in a trial"  # type: ignore[return-value]
    candidate = _candidate(device)
    if candidate is None:
        return "fp32", "nothing faster is built into this processor"
    outcome = _trial(device, candidate)
    if isinstance(outcome, str):
        return "fp32", f"{candidate} failed its trial: {outcome}"
    if outcome < _WORTH_IT:
        return "fp32", f"{candidate} ran at {outcome:.2f}x its speed in a trial"
    return candidate, f"{outcome:.2f}x the speed of fp32 in a trial"


def _candidate(device: torch.device) -> Precision | None:
    """What may be faster than fp32, if the flags are to be believed."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability()[0] >= 8 else "fp16"
    if device.type == "cpu":
        flags = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return "bf16" if any(getattr(torch.cpu, flag, lambda: False)() for flag in flags) else None
    return None


def _trial(device: torch.device, precision: str) -> float | str:
    """Speed relative to fp32, or what went wrong; in a process of its own, which may die."""
    command = [sys.executable, "-m", "nmt_cli.model.device", device.type, precision]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer in {_PATIENCE} s"
    if done.returncode < 0:
        import signal

        return f"the trial process was killed by {signal.Signals(-done.returncode).name}"
    try:
        return float(done.stdout)
    except ValueError:
        return (done.stderr.strip().splitlines() or ["it said nothing"])[-1]


def _seconds(device: torch.device, dtype: torch.dtype) -> float:
    """The best of a few rounds of the products of a small training step."""
    x = torch.randn(2048, 512, device=device, dtype=dtype, requires_grad=True)
    w = torch.randn(2048, 512, device=device, dtype=dtype, requires_grad=True)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(4):
            torch.nn.functional.linear(x, w).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    if not bool(torch.isfinite(x.grad).all()):  # type: ignore[arg-type]
        raise SystemExit("the result was not finite")
    return best


if __name__ == "__main__":  # the child of _trial
    where = torch.device(sys.argv[1])
    print(_seconds(where, torch.float32) / _seconds(where, TYPES[sys.argv[2]]))
