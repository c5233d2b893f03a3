"""One update of the weights: gradients of a batch, fp16 scaling, the optimizers. Read `Updater.update`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nmt_cli.data.batches import Batch
from nmt_cli.errors import NmtError
from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.device import Compute, out_of_memory
from nmt_cli.recipe.schema import Train
from nmt_cli.store.checkpoint import State
from nmt_cli.training import distributed
from nmt_cli.training.loss import Losses
from nmt_cli.training.optimizer import ALONE, make_optimizers


@dataclass(frozen=True)
class Update:
    """Figures of an update, over all processes."""

    loss: float  # sum over target tokens
    nll: float  # sum over target tokens, without label smoothing
    gradient_norm: float  # before clipping
    applied: bool  # False if the update was skipped


class Updater:
    """Changes the weights of a model. `state` holds the numbers that a checkpoint must save."""

    def __init__(
        self,
        model: Seq2Seq,
        loss: Callable[..., Losses],
        settings: Train,
        compute: Compute,
        state: State,
        note: Callable[[str], None],
        world: distributed.World = ALONE,
    ) -> None:
        self.model, self.loss, self.settings = model, loss, settings
        self.compute, self.state, self.note, self.world = compute, state, note, world
        self.parameters = list(model.parameters())
        self.optimizers = make_optimizers(model, settings, world)
        # fp16 cannot hold small gradients, so the loss is multiplied by a large scale. Other precisions need no scale.
        self.scaler = torch.amp.GradScaler(compute.device.type, enabled=compute.precision == "fp16")
        if state.scaler:
            self.scaler.load_state_dict(state.scaler)
        self.moving_average: dict[str, Tensor] | None = None
        if settings.ema:
            self.moving_average = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        self.skipped_in_a_row = 0

    def update(self, batches: list[tuple[Batch, int]], tokens: int, rate: float) -> Update:
        """Make one update from this process's micro-batches. Each comes with the seed of its dropout.

        `tokens` is the number of target tokens in all processes. The loss is the mean over these tokens.
        """
        # 1. This process's part of the gradient, then the sum over all processes.
        sums = self.gradients(batches, tokens)
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        distributed.add_up([sums, *gradients], self.world)

        # 2. The gradient's norm, without the scale of fp16.
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        loss, nll, norm = torch.stack([*sums, torch.nn.utils.get_total_norm(gradients)]).tolist()

        # 3. The step of the optimizers.
        applied = self.is_finite(loss, norm)
        if applied:
            self.descend(gradients, norm, rate)
        self.scaler.update()
        self.state.scaler = self.scaler.state_dict()
        return Update(loss, nll, norm, applied)

    def gradients(self, batches: list[tuple[Batch, int]], tokens: int) -> Tensor:
        """Leave the gradient in each parameter; return the sums of loss and nll, (2,). If memory runs out, try again
        with smaller parts of the micro-batches."""
        while True:
            self.model.zero_grad()
            sums = torch.zeros(2, device=self.compute.device)
            try:
                for batch, seed in batches:
                    torch.manual_seed(seed)
                    for part in batch.parts(self.state.splits):
                        sums += self.backward(part, 1.0 / tokens)
                return sums
            except RuntimeError as error:  # torch.OutOfMemoryError is a RuntimeError
                if not out_of_memory(error):
                    raise
            self.split_more(max(len(batch.src) for batch, _ in batches))

    def backward(self, part: Batch, weight: float) -> Tensor:
        """Add to the gradients. This is a function of its own, so that its graph is freed if memory runs out."""
        with self.compute.autocast():
            loss, nll, _ = self.loss(*self.tensors(part))
        self.scaler.scale(loss * weight).backward()
        return torch.stack([loss.detach(), nll])

    def tensors(self, batch: Batch) -> list[Tensor]:
        device = self.compute.device
        pinned = device.type == "cuda" and self.settings.pin_memory  # then copying does not wait for running kernels
        arrays = [torch.from_numpy(array) for array in (batch.src, batch.tgt_in, batch.tgt_out)]
        if pinned:
            arrays = [array.pin_memory() for array in arrays]
        return [array.to(device, non_blocking=pinned) for array in arrays]

    def split_more(self, rows: int) -> None:
        """Compute micro-batches in twice as many parts from now on. The largest micro-batch has `rows` rows."""
        self.model.zero_grad()
        if self.state.splits >= rows:
            raise NmtError(
                "out of memory even with one sentence at a time",
                "make the model smaller, or leave out long sentences with train.max_length",
            )
        self.state.splits *= 2
        if self.compute.device.type == "cuda":
            torch.cuda.empty_cache()
        parts = f"{self.state.splits} parts"
        self.note(f"out of memory: micro-batches are computed in {parts} from now on, with the same result")

    def is_finite(self, loss: float, norm: float) -> bool:
        """Whether this update may be applied. An update that may not be applied is counted and noted."""
        if math.isfinite(loss) and math.isfinite(norm):
            self.skipped_in_a_row = 0
            return True
        if math.isfinite(loss) and self.scaler.is_enabled() and self.scaler.get_scale() > 1:
            return False  # only the scaled gradient overflowed; the scaler now lowers the scale
        self.state.skipped += 1
        self.skipped_in_a_row += 1
        count = f"{self.state.skipped} so far"
        self.note(f"update {self.state.step} was skipped: its loss or gradient is not finite ({count})")
        return False

    def descend(self, gradients: list[Tensor], norm: float, rate: float) -> None:
        if 0 < self.settings.clip < norm:
            torch._foreach_mul_(gradients, self.settings.clip / norm)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            self.scaler.step(optimizer)
        if self.moving_average is not None:
            # A young average follows faster, so that it forgets the random weights of the start.
            decay = min(self.settings.ema, (1 + self.state.step) / (10 + self.state.step))
            weights = self.model.state_dict()
            averages = list(self.moving_average.values())
            torch._foreach_lerp_(averages, [weights[name] for name in self.moving_average], 1 - decay)


def mix_seeds(*numbers: int) -> int:
    """A seed that depends on each of the numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1
