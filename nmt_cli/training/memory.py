"""The memory of training, predicted: an update on tensors without values, and the bytes of all tensors alive.

`nmt train --dry-run` shows the prediction. One mechanism serves all families: nothing here knows a layer.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nmt_cli.data.batches import make_batch
from nmt_cli.model.build import build_model
from nmt_cli.model.device import Compute, as_accelerator
from nmt_cli.recipe.schema import Recipe
from nmt_cli.store.checkpoint import State
from nmt_cli.training.loss import TrainingLoss
from nmt_cli.training.step import Updater

aten = torch.ops.aten
_LEFT_FREE = 0.1  # share of a card that stays free, for the context of the device and gaps between tensors


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak of an update. What torch itself needs, some hundred megabytes, is not counted."""

    parameters: int  # and the moving average of train.ema
    gradients: int
    moments: int  # of the optimizers
    activations: int  # all else: tensors between the forward and the backward pass, and those of the optimizers' steps

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.moments + self.activations


class _Alive(TorchDispatchMode):
    """Counts the bytes of the tensors that are alive, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        # There are no values. The answers are those of a batch without padding, whose gradient is not clipped.
        if func is aten._local_scalar_dense.default:
            return 0
        if func is aten.nonzero.default:
            result: Any = args[0].new_empty((args[0].numel(), args[0].dim()), dtype=torch.long)
        elif func is aten.index.Tensor and args[1][0].dtype is torch.bool:
            result = torch.empty_like(args[0])
        else:
            result = func(*args, **(kwargs or {}))
        if func is aten.mkldnn_rnn_layer.default:
            # oneDNN keeps the gates and more of each step, measured: 9 numbers for each output and 6.5 for each input.
            output, *states, workspace = result
            size = int(4 * output[..., 0].numel() * (9 * output.size(-1) + 6.5 * args[0].size(-1)))
            result = (output, *states, workspace.new_empty(size))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage not in self._known:
            self._known.add(storage)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, storage.nbytes())

    def _forget(self, size: int) -> None:
        self.now -= size


def predict_memory(
    recipe: Recipe, sizes: tuple[int, int], length: int, accelerator: bool = False, precision: str = "fp32"
) -> Memory:
    """The memory of an update with full micro-batches of sentences that have `length` pieces.

    `sizes` are those of the vocabularies. An accelerator computes the loss and attention in another way than a CPU.
    """
    settings, way = recipe.train, as_accelerator() if accelerator else nullcontext()
    sentences = [np.full(length, 4)] * max(1, settings.batch_tokens // (length + 1))
    batch = make_batch(sentences, sentences, settings.pad_to or (8 if accelerator else 1))
    with FakeTensorMode(allow_non_fake_inputs=True), _Alive() as alive, way:
        model = build_model(recipe.model, *sizes)
        compute = Compute(torch.device("cpu"), precision, "")
        updater = Updater(model, TrainingLoss(model, settings).train(), settings, compute, State(), print)
        # The optimizers make their moments in the first step.
        for parameter in updater.parameters:
            parameter.grad = torch.zeros_like(parameter)
        _descend(updater)
        alive.peak = alive.now
        updater.gradients([(batch, 1)], batch.tokens)
        _descend(updater)
        average = list((updater.moving_average or {}).values())
        moments = [tensor for each in updater.optimizers for state in each.state.values() for tensor in state.values()]
        groups = ([*updater.parameters, *average], _gradients(updater), moments)
        fixed = [sum(tensor.nbytes for tensor in group) for group in groups]
    return Memory(fixed[0], fixed[1], fixed[2], max(0, alive.peak - sum(fixed)))


def _gradients(updater: Updater) -> list[Tensor]:
    return [parameter.grad for parameter in updater.parameters if parameter.grad is not None]


def _descend(updater: Updater) -> None:
    updater.descend(_gradients(updater), torch.zeros(()), 0.0)


def propose_batch_tokens(recipe: Recipe, sizes: tuple[int, int], length: int, precision: str, memory: float) -> int:
    """The largest train.batch_tokens that fits into this many bytes of a card, by prediction. 0: not even one pair.

    Memory grows about linearly with the batch, so the line through the last two predictions gives the next guess. The
    guesses aim 2 % below the limit: most of them then stay within it, and a guess that is 2 % off is near enough.
    """
    limit, tried = (1 - _LEFT_FREE) * memory, list[tuple[int, int]]()
    aim = 0.98 * limit

    def predicted(tokens: int) -> None:
        settings = replace(recipe.train, batch_tokens=tokens)
        tried.append((tokens, predict_memory(replace(recipe, train=settings), sizes, length, True, precision).total))

    for rows in (32, 64):
        predicted(rows * (length + 1))
    for _ in range(3):
        (first, first_bytes), (last, last_bytes) = tried[-2:]
        tokens = last + round((aim - last_bytes) * (last - first) / max(1, last_bytes - first_bytes))
        if abs(tokens - last) < last // 50 or tokens < length + 1:
            break
        predicted(tokens)
    fitting = [tokens for tokens, size in tried if size <= limit]
    return max(fitting, default=0) // 64 * 64
