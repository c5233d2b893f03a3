"""The cost of a training so far (time, FLOPs, memory), and the limits of the recipe that end the training."""

from __future__ import annotations

from time import perf_counter

import torch

from nmt_cli import parallel
from nmt_cli.model.base import Seq2Seq, training_flops
from nmt_cli.recipe.schema import Train
from nmt_cli.store.checkpoint import State
from nmt_cli.terminal.plot import counted

_CALIBRATION = 0.03  # the share of train.minutes that the calibration at the end may take
_EXPORT = 0.01  # the share for the export after it
_LONGER = 1.5  # a better model writes whole sentences, so the last validation takes longer than the one before


class Budget:
    """The limits of a run. `share_of_minutes` is set from outside, because one process's clock decides for all."""

    def __init__(self, settings: Train, state: State, model: Seq2Seq, began: float, calibrates: bool = False) -> None:
        """`began` is the value of perf_counter() when the session began. `calibrates`: there are validation lines."""
        self.settings, self.state, self.model = settings, state, model
        self._seconds_before, self._session_began = state.seconds, began
        self._for_calibration = 60 * settings.minutes * _CALIBRATION if calibrates else 0.0
        self.share_of_minutes = self.share_of_minutes_now()

    def seconds(self) -> float:
        """Seconds of all sessions, with their start and their validations."""
        return self._seconds_before + perf_counter() - self._session_began

    def share_of_minutes_now(self) -> float:
        """The last validation, the calibration and the export belong to train.minutes."""
        for_export = 60 * self.settings.minutes * _EXPORT
        at_the_end = _LONGER * self.state.validation_duration + self._for_calibration + for_export
        for_updates = max(1.0, 60 * self.settings.minutes - at_the_end)
        return self.seconds() / for_updates if self.settings.minutes else 0.0

    def validation_is_due(self) -> bool:
        """Whether it is time for a validation, by the clock."""
        settings, state, seconds = self.settings, self.state, self.seconds()
        left = 60 * settings.minutes - seconds
        if settings.minutes and not state.validated_steps and seconds >= left:
            return True  # this one shows how long the last will take
        if settings.minutes and left < 3 * state.validation_duration:
            return False  # the last validation comes soon
        return 0 < 60 * settings.valid_minutes <= seconds - state.last_validation_seconds

    def seconds_for_calibration(self) -> float:
        """What is left of train.minutes, but at least the share that was set aside.

        Without train.minutes it is a minute or the same share of the training so far, whichever is longer.
        """
        if minutes := self.settings.minutes:
            return max(self._for_calibration, 60 * minutes - self.seconds())
        return max(60.0, _CALIBRATION * self.seconds())

    def flops(self) -> float:
        passes = 1 if self.settings.consistency == "none" else 2
        flops = passes * training_flops(self.model, self.state.source_tokens, self.state.tokens)
        # To draw a sample costs a forward pass, and to learn from it a forward and a backward pass.
        samples = 4 / 3 * self.settings.reward_samples * self.state.rewarded_tokens
        return flops + training_flops(self.model, 0, round(samples))

    def shares(self, epochs: float) -> dict[str, float]:
        """How much of each limit is used up, by the limit's name. 1 ends the training."""
        settings, state = self.settings, self.state
        limits = {
            counted(settings.steps, "step"): (state.step, settings.steps),
            counted(settings.epochs, "epoch"): (epochs, settings.epochs),
            counted(settings.tokens, "token"): (state.tokens, settings.tokens),
            f"{settings.flops:.3g} FLOPs": (self.flops() if settings.flops else 0.0, settings.flops),
        }
        used = {name: amount / limit for name, (amount, limit) in limits.items() if limit}
        return {**used, counted(settings.minutes, "minute"): self.share_of_minutes}

    def used(self, epochs: float) -> float:
        """The share of the limit that will be reached first."""
        return max(self.shares(epochs).values())

    def reason_to_stop(self, epochs: float) -> str:
        """The limit that is reached; empty if training may continue."""
        if 0 < self.settings.patience <= self.state.validations_since_best:
            return f"no better in {self.settings.patience} validations"
        return next((limit for limit, share in self.shares(epochs).items() if share >= 1), "")


def peak_memory_mb(device: torch.device) -> float:
    """The peak memory of this process, in MiB."""
    if hasattr(module := torch.get_device_module(device), "max_memory_allocated"):  # CPU and MPS have none
        return module.max_memory_allocated() / 2**20
    return parallel.peak_memory_mb()
