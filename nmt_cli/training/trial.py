"""Time a model before its training begins, to choose its size (plan.py) and its precision (precision.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import numpy as np
import torch

from nmt_cli.data.batches import make_batch
from nmt_cli.model.build import build_model
from nmt_cli.model.device import Compute, free_cache, out_of_memory
from nmt_cli.recipe.schema import Model, Train
from nmt_cli.training.loss import TrainingLoss

CELLS = 1024  # size of the batch that is timed on a CPU


class Trial:
    """A model with random weights, and a batch of sentences that have one length on each side."""

    def __init__(
        self, model: Model, settings: Train, sizes: tuple[int, int], lengths: tuple[int, int], device: torch.device
    ) -> None:
        """`sizes` are those of the vocabularies. The lengths are in pieces, without end marks. A model with fewer
        positions gets shorter sentences.

        An accelerator waits for the host when batches are small, so it gets a batch of train.batch_tokens.
        """
        self.device, ids = device, np.random.default_rng(0)
        cells, pad_to = (CELLS, 1) if device.type == "cpu" else (settings.batch_tokens, 8)
        most = max(0, model.learned_positions - 1)
        shortened = [min(length, most) if most else length for length in lengths]
        rows = max(1, cells // (1 + max(shortened)))
        source, target = (
            list(ids.integers(4, size, (rows, length))) for size, length in zip(sizes, shortened, strict=True)
        )
        self.batch = make_batch(source, target, settings.pad_to or pad_to, most)
        arrays = (self.batch.src, self.batch.tgt_in, self.batch.tgt_out)
        self.tensors = [torch.from_numpy(array).to(device) for array in arrays]
        self.model = build_model(model, *sizes).to(device)
        self.loss = TrainingLoss(self.model, settings).train()

    def passes(self, precision: str = "fp32", rounds: int = 3) -> float:
        """Seconds of the forward and the backward pass of the batch. They leave gradients.

        When memory runs out, the batch is computed in two parts, then four, as in training.
        """
        parts = 1
        while True:
            try:
                return fastest(partial(self._compute, precision, parts), self.device, rounds)
            except RuntimeError as error:
                if parts >= len(self.batch.src) or not out_of_memory(error):
                    raise
            # Only here is the memory of the failed pass free: the error refers to its tensors.
            parts *= 2
            self.model.zero_grad()
            free_cache()

    def _compute(self, precision: str, parts: int) -> None:
        for part in zip(*(tensor.chunk(parts) for tensor in self.tensors), strict=True):
            with Compute(self.device, precision, "").autocast():
                loss, *_ = self.loss(*part)
            (loss / self.batch.tokens).backward()


def fastest(work: Callable[[], None], device: torch.device, rounds: int = 3) -> float:
    """The fewest seconds of these rounds. The first round is slow."""
    times = []
    for _ in range(rounds):
        began = perf_counter()
        work()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        times.append(perf_counter() - began)
    return min(times)
