"""Time a model before its training begins, to choose its size (plan.py) and its precision (precision.py)."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch

from nmt_cli.data.batches import make_batch
from nmt_cli.model.build import build_model
from nmt_cli.model.device import Compute
from nmt_cli.recipe.schema import Model, Train
from nmt_cli.training.loss import TrainingLoss

CELLS = 1024  # size of the batch that is timed


class Trial:
    """A model with random weights, and a batch of sentences that have one length on each side."""

    def __init__(
        self, model: Model, settings: Train, sizes: tuple[int, int], lengths: tuple[int, int], device: torch.device
    ) -> None:
        """`sizes` are those of the vocabularies. The lengths are in pieces, without end marks."""
        self.device, ids = device, np.random.default_rng(0)
        rows = max(1, CELLS // (1 + max(lengths)))
        source, target = (
            list(ids.integers(4, size, (rows, length))) for size, length in zip(sizes, lengths, strict=True)
        )
        self.batch = make_batch(source, target)
        arrays = (self.batch.src, self.batch.tgt_in, self.batch.tgt_out)
        self.tensors = [torch.from_numpy(array).to(device) for array in arrays]
        self.model = build_model(model, *sizes).to(device)
        self.loss = TrainingLoss(self.model, settings).train()

    def passes(self, precision: str = "fp32") -> float:
        """Seconds of a forward and a backward pass. They leave gradients."""

        def work() -> None:
            with Compute(self.device, precision, "").autocast():
                loss, *_ = self.loss(*self.tensors)
            (loss / self.batch.tokens).backward()

        return fastest(work, self.device)


def fastest(work: Callable[[], None], device: torch.device) -> float:
    """The fewest seconds of three rounds. The first round is slow."""
    times = []
    for _ in range(3):
        began = perf_counter()
        work()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        times.append(perf_counter() - began)
    return min(times)
