"""The memory that `nmt train --dry-run` predicts, compared with the memory that torch allocates.

    python benchmarks/memory.py                            # five shipped recipes, one update each; a minute or two
    python benchmarks/memory.py demo demo-rnn --tokens 512

Both figures are bytes of tensors at the peak of the second update, in fp32 on the CPU, with pairs of 50 pieces. torch's
profiler counts what its allocator gives out. The resident memory of a process is larger: Python and torch alone have
several hundred megabytes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import torch
from record import Record, recipe_hash
from torch.profiler import ProfilerActivity, profile

from nmt_cli.data.batches import make_batch
from nmt_cli.model.build import build_model
from nmt_cli.model.device import Compute
from nmt_cli.recipe.load import open_recipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.store.checkpoint import State
from nmt_cli.training.loss import TrainingLoss
from nmt_cli.training.memory import predict_memory
from nmt_cli.training.step import Updater

RECIPES = ("demo", "demo-rnn-attention", "demo-conv", "demo-decoder", "multi30k-en-de-quick")


def measured_peak(recipe: Recipe, pieces: int, length: int) -> int:
    """The most bytes that torch's allocator had given out in two updates."""
    settings = recipe.train
    ids = np.random.default_rng(1).integers(4, pieces, (max(1, settings.batch_tokens // (length + 1)), length))
    batch = make_batch(list(ids), list(ids))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model = build_model(recipe.model, pieces, pieces)
        objective = TrainingLoss(model, settings).train()
        updater = Updater(model, objective, settings, Compute(torch.device("cpu"), "fp32", ""), State(), print)
        for _ in range(2):
            updater.update([(batch, 1)], batch.tokens, 1e-4)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return int(np.cumsum([event.nbytes() for event in events]).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--tokens", type=int, default=1024, help="train.batch_tokens")
    parser.add_argument("--pieces", type=int, default=8000, help="size of the vocabulary")
    options = parser.parse_args()
    with Record("memory") as record:
        for name in options.recipes:
            recipe = open_recipe(name)
            recipe = replace(recipe, train=replace(recipe.train, batch_tokens=options.tokens))
            predicted = predict_memory(recipe, (options.pieces, options.pieces), 50).total
            measured = measured_peak(recipe, options.pieces, 50)
            figures = f"predicted {predicted / 1e6:5,.0f} MB, measured {measured / 1e6:5,.0f} MB"
            print(f"{name:22} {figures}, ratio {predicted / measured:.2f}", flush=True)
            sizes = {"predicted_mb": predicted / 1e6, "measured_mb": measured / 1e6, "ratio": predicted / measured}
            record.add(name, recipe=recipe_hash(recipe), **sizes)


if __name__ == "__main__":
    main()
