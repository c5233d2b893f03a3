"""One update of the weights: gradients of a batch, fp16 scaling, the optimizers. Read `Updater.update`.

An accelerator works through a queue that the host fills. The host must not wait for it: nothing here reads a value of a
tensor on an accelerator, except `Figures.read`, which the trainer calls when the next update is in the queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from nmt_cli.data.batches import Batch, make_batch
from nmt_cli.errors import NmtError
from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.device import Compute, free_cache, out_of_memory
from nmt_cli.recipe.schema import Train
from nmt_cli.store.checkpoint import State
from nmt_cli.text.vocab import UNK
from nmt_cli.training import distributed
from nmt_cli.training.optimizer import ALONE, make_optimizers
from nmt_cli.training.shard import is_sharded, local, whole

# For a pass whose loss does not count. torch.compile would make another graph for sizes of 1.
STAND_IN = make_batch([[UNK]] * 2, [[UNK]] * 2)


@dataclass(frozen=True)
class Update:
    """Figures of an update, over all processes."""

    loss: float  # sum over target tokens
    nll: float  # sum over target tokens, without label smoothing
    gradient_norm: float  # before clipping
    applied: bool  # False if the update was skipped


class Figures:
    """Figures of an update, on their way to the host: loss, nll, norm of the gradient, scale of fp16."""

    def __init__(self, step: int, figures: Tensor, batches: list[tuple[Batch, int]]) -> None:
        self.step, self._copy = step, figures.to("cpu", non_blocking=True)
        self._batches = batches  # their memory must not be used again before an accelerator has copied it
        self._arrived = torch.Event(figures.device) if figures.device.type != "cpu" else None
        if self._arrived is not None:
            self._arrived.record()

    def read(self) -> list[float]:
        """Wait until an accelerator has made the update."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copy.tolist()


class Updater:
    """Changes the weights of a model. `state` holds the numbers that a checkpoint must save."""

    def __init__(
        self,
        model: Seq2Seq,
        loss: Callable[..., tuple[Tensor, Tensor, Tensor]],
        settings: Train,
        compute: Compute,
        state: State,
        note: Callable[[str], None],
        world: distributed.World = ALONE,
    ) -> None:
        """If there are several processes, `loss` comes from share_gradients, or is sharded with its model."""
        self.model, self.loss, self.settings = model, loss, settings
        self.compute, self.state, self.note, self.world = compute, state, note, world
        self.parameters = list(model.parameters())
        self.shared = loss if isinstance(loss, DistributedDataParallel) else None
        self.sharded = is_sharded(self.parameters[0])
        self.largest = 0  # cells of the largest part of a micro-batch whose passes had enough memory
        self.optimizers = make_optimizers(model, settings, world)
        # fp16 cannot hold small gradients, so the loss is multiplied by a large scale. Other precisions need no scale.
        self.scaler = torch.amp.GradScaler(compute.device.type, enabled=compute.precision == "fp16")
        if state.scaler:
            self.scaler.load_state_dict(state.scaler)
        self.moving_average: dict[str, Tensor] | None = None
        if settings.ema:
            self.moving_average = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        self.skipped_in_a_row = 0

    @property
    def late(self) -> bool:
        """Whether the host reads the figures of an update after the next update. Reading a CPU takes no time."""
        return self.compute.device.type != "cpu"

    def update(self, batches: list[tuple[Batch, int]], tokens: int, rate: float) -> Figures:
        """Make one update from this process's micro-batches. Each comes with the seed of its dropout.

        `tokens` is the number of target tokens in all processes. The loss is the mean over these tokens. `read` returns
        the figures of the update.
        """
        # 1. The gradient and the figures, over all processes.
        sums = self.gradients(batches, tokens)
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        distributed.add_up([sums], self.world)

        # 2. The gradient's norm, without the scale of fp16.
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        norm = whole(torch.nn.utils.get_total_norm(gradients))
        figures = torch.stack([*sums, norm, self.scaler.scale(torch.ones_like(norm))])

        # 3. The step of the optimizers. It changes nothing if the loss or the norm is not finite.
        is_finite = sums[0].isfinite() & norm.isfinite()
        if self.late:
            self.descend(gradients, norm, rate, found_inf=1.0 - is_finite.float())
        elif is_finite:
            self.descend(gradients, norm, rate)
        self.scaler.update()
        return Figures(self.state.step, figures, batches)

    def read(self, figures: Figures) -> Update:
        """Wait for the figures of an update. An update that was skipped is counted and noted."""
        loss, nll, norm, scale = figures.read()
        if math.isfinite(loss) and math.isfinite(norm):
            self.skipped_in_a_row = 0
            return Update(loss, nll, norm, applied=True)
        only_overflowed = math.isfinite(loss) and scale > 1  # the scaler has lowered the scale
        if not only_overflowed:
            self.state.skipped += 1
            self.skipped_in_a_row += 1
            count = f"{self.state.skipped} so far"
            self.note(f"update {figures.step} was skipped: its loss or gradient is not finite ({count})")
        return Update(loss, nll, norm, applied=False)

    def gradients(self, batches: list[tuple[Batch, int]], tokens: int) -> Tensor:
        """Leave the gradient over all processes in each parameter; return this process's sums of loss and nll, (2,).

        If memory runs out, try again with smaller parts of the micro-batches.
        """
        weight = self.world.size / tokens  # the gradient over all processes is the mean of theirs
        while True:
            self.model.zero_grad()
            sums = torch.zeros(2, device=self.compute.device)
            splits = 1 if self.sharded else self.state.splits
            work = [(list(batch.parts(splits)), seed) for batch, seed in batches]
            last = next((parts[-1] for parts, _ in reversed(work) if parts), None)
            # The backward pass of the last part sends the gradients while it runs. A part that is larger than all parts
            # before may need too much memory, so it only accumulates, and the gradients are sent afterwards.
            sends = self.shared is not None and last is not None and last.cells <= self.largest
            together = self.sharded  # whether the current pass needs the other processes, so it cannot be repeated
            try:
                for parts, seed in work:
                    torch.manual_seed(seed)
                    for part in parts:
                        together = self.sharded or (sends and part is last)
                        sums += self.backward(part, weight, together)
                        if self.optimizers[0].state:  # the first step of the optimizers takes memory for their moments
                            self.largest = max(self.largest, part.cells)
                    if self.sharded and not parts:
                        self.backward(STAND_IN, 0.0, together)
                break
            except RuntimeError as error:  # torch.OutOfMemoryError is a RuntimeError
                if not out_of_memory(error):
                    raise
                if together:
                    raise NmtError(
                        "memory ran out in a pass that all processes make together, so it cannot be tried again",
                        "the last checkpoint is intact, and the same command continues from it; "
                        "train.checkpoint_activations = true and a new run with a smaller train.batch_tokens need less",
                    ) from None
            self.split_more(max(len(batch.src) for batch, _ in batches))
        if self.shared is not None and not sends:
            self.shared()[0].backward()
        return sums

    def backward(self, part: Batch, weight: float, together: bool) -> Tensor:
        """Add to the gradients. This is a function of its own, so that its graph is freed if memory runs out."""
        with nullcontext() if self.shared is None or together else self.shared.no_sync():
            with self.compute.autocast():
                loss, nll, _ = self.loss(*self.tensors(part))
            self.scaler.scale(loss * weight).backward()
        return torch.stack([loss.detach(), nll])

    def tensors(self, batch: Batch) -> list[Tensor]:
        arrays = (batch.src, batch.tgt_in, batch.tgt_out)
        return [torch.from_numpy(array).to(self.compute.device, non_blocking=True) for array in arrays]

    def split_more(self, rows: int) -> None:
        """Compute micro-batches in twice as many parts from now on. The largest micro-batch has `rows` rows."""
        self.model.zero_grad()
        if self.state.splits >= rows:
            raise NmtError(
                "out of memory even with one sentence at a time",
                "make the model smaller, or leave out long sentences with train.max_length",
            )
        self.split(2 * self.state.splits)
        free_cache()

    def split(self, parts: int) -> None:
        """Compute micro-batches in this many parts from now on."""
        self.state.splits = parts
        work = f"micro-batches are computed in {parts} parts from now on"
        self.note(f"out of memory: {work}, with the same effective batch")

    def descend(self, gradients: list[Tensor], norm: Tensor, rate: float, found_inf: Tensor | None = None) -> None:
        """The step of the optimizers. If `found_inf` is 1, it changes nothing; only the device knows that."""
        clip = self.settings.clip
        if clip and found_inf is not None:
            torch._foreach_mul_(local(gradients), (clip / norm).clamp(max=1.0))
        elif 0 < clip < norm:
            torch._foreach_mul_(local(gradients), clip / float(norm))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.found_inf = found_inf  # type: ignore[attr-defined]  # fused kernels read it; GradScaler sets it too
            optimizer.step()
        if self.moving_average is not None:
            # A young average follows faster, so that it forgets the random weights of the start.
            decay = min(self.settings.ema, (1 + self.state.step) / (10 + self.state.step))
            weights = self.model.state_dict()
            averages = local(self.moving_average.values())
            follow = 1 - decay if found_inf is None else [(1 - found_inf) * (1 - decay)] * len(averages)
            torch._foreach_lerp_(averages, local(weights[name] for name in self.moving_average), follow)


def mix_seeds(*numbers: int) -> int:
    """A seed that depends on each of the numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1
