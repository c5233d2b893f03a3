"""The precision of training: TF32, and `train.precision`. "auto" is decided by a trial in a child process.

Some processors claim to support bf16 and then crash on an illegal instruction, which Python cannot catch. Others
multiply large matrices faster in bf16, and still train narrow models more slowly, because all numbers between the
products are converted. So the child times passes of the model itself.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import asdict

import torch

from nmt_cli.errors import NmtError
from nmt_cli.model.device import free_cache, keep_freed_memory, out_of_memory
from nmt_cli.recipe.schema import FAMILIES, Augment, Recipe, Train
from nmt_cli.training.trial import Trial

_TIMEOUT = 300  # seconds; the trial of a small model takes a few seconds
_LENGTH = 20  # pieces of the sentences of the trial


def allow_tf32(settings: Train) -> None:
    """Let CUDA multiply fp32 matrices in TF32 if the recipe allows it. Call this before a model is timed or trained."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = settings.tf32


def choose_precision(recipe: Recipe, wanted: str, sizes: tuple[int, int], device: torch.device) -> tuple[str, str]:
    """The precision, and the reason for it. `sizes` are those of the vocabularies.

    A precision that the recipe names must pass a trial too, because training would otherwise crash hours later. This
    trial is short, because nothing is compared.
    """
    if wanted == "fp32":
        return "fp32", "as the recipe says"
    precision = _claimed_precision(device) if wanted == "auto" else wanted
    if precision is None:
        return "fp32", "this processor has no faster precision"
    outcome = _trial(recipe, sizes, device, precision, compares=wanted == "auto")
    if isinstance(outcome, str):
        if wanted == "auto":
            return "fp32", f"{precision} failed a trial: {outcome}"
        raise NmtError(
            f"train.precision = {wanted} does not work on this {device.type}: {outcome}",
            "set train.precision to auto or fp32; to continue a run that began with another precision, "
            "use --from RUN --out NEW",
        )
    if wanted != "auto":
        return wanted, "as the recipe says"
    if math.isnan(outcome):
        return precision, "memory ran out in the trial, which needs the whole model on one device"
    speed = f"{outcome:.2f}x the speed of fp32 in a trial"
    if outcome < 1.15:  # a speedup below 15 % is not worth the lost digits
        return "fp32", f"{precision} ran at {speed}"
    return precision, speed


def likely_precision(wanted: str, device: torch.device) -> str:
    """The precision that choose_precision will probably return.

    On a CPU it is fp32: a CPU that claims another precision may crash, or be slower with it.
    """
    if device.type == "cpu":
        return "fp32"
    return (_claimed_precision(device) or "fp32") if wanted == "auto" else wanted


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


def _trial(
    recipe: Recipe, sizes: tuple[int, int], device: torch.device, precision: str, compares: bool = True
) -> float | str:
    """The speed relative to fp32, or the reason for a failure. NaN: the precision may work, but was not compared."""
    command = [sys.executable, "-m", "nmt_cli.training.precision"]
    tables = [recipe.model.family, asdict(recipe.model), asdict(recipe.train)]
    request = json.dumps([*tables, sizes, device.type, precision, compares], default=str).encode()  # a Path as text
    free_cache()  # the memory that this process has kept since it timed models, for the child
    try:
        done = subprocess.run(command, input=request, capture_output=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer in {_TIMEOUT} s"
    if done.returncode < 0:
        import signal

        return f"the trial process was killed by {signal.Signals(-done.returncode).name}"
    try:
        return float(done.stdout)
    except ValueError:
        return (done.stderr.decode(errors="replace").strip().splitlines() or ["the trial process gave no reason"])[-1]


def _compare() -> float:
    """The work of the child process."""
    family, of_model, of_train, sizes, device, precision, compares = json.load(sys.stdin)
    settings = Train(**{**of_train, "augment": Augment(**of_train["augment"])})
    keep_freed_memory()  # as training does
    allow_tf32(settings)
    torch.set_num_threads(1)  # several threads would show how busy the machine is just now
    ratio = math.nan
    try:
        trial = Trial(FAMILIES[family](**of_model), settings, sizes, (_LENGTH, _LENGTH), torch.device(device))
        if compares:
            seconds = trial.passes()
            trial.model.zero_grad()
            ratio = seconds / trial.passes(precision)
        else:
            trial.passes(precision, rounds=1)
    except RuntimeError as error:
        if device == "cpu" or not out_of_memory(error):
            raise
        return math.nan  # with train.shard, the model may still fit
    if not all(bool(each.grad.isfinite().all()) for each in trial.model.parameters() if each.grad is not None):
        raise SystemExit("the result was not finite")
    return ratio


if __name__ == "__main__":
    print(_compare())
