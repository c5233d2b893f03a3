"""Several processes: the cost of an update with each way to share the gradients.

    python benchmarks/processes.py                   # two processes, batches of 1024 and of 256 tokens; some minutes
    python benchmarks/processes.py --tokens 512 --processes 3 --rounds 100

The ways take turns, one update each, in the same processes, so that other work on the machine slows all of them alike.
The ratios compare an update with the update of DistributedDataParallel in the same round, by the clock and by the
processor time of the first process: the median of the rounds, and the quartiles. "nothing" exchanges no gradients. It
shows the cost of the exchange, but the processes learn different things.

The model is that of train_step.py: width 256, 3+3 layers, 8,000 pieces, 7.6 million values.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from record import Record, spread
from torch import Tensor

from nmt_cli.data.batches import Batch, make_batch
from nmt_cli.model.build import build_model
from nmt_cli.model.device import Compute, keep_freed_memory
from nmt_cli.recipe.schema import Train, Transformer
from nmt_cli.store.checkpoint import State
from nmt_cli.training.distributed import World, share_gradients, with_workers
from nmt_cli.training.loss import TrainingLoss
from nmt_cli.training.shard import shard
from nmt_cli.training.step import Updater

PIECES = 8000
DDP = "DistributedDataParallel"
WAYS = (DDP, "buckets after the pass", "sharded (FSDP2)", "nothing")
BUCKET = 1 << 24  # bytes that are summed in one call


class BucketUpdater(Updater):
    """Adds up the gradients after the backward pass, in buckets, as nmt did before."""

    def gradients(self, batches: list[tuple[Batch, int]], tokens: int) -> Tensor:
        sums = super().gradients(batches, tokens)
        buckets: list[list[Tensor]] = [[]]
        for parameter in self.parameters:
            assert parameter.grad is not None
            buckets[-1].append(parameter.grad)
            if sum(part.nbytes for part in buckets[-1]) >= BUCKET:
                buckets.append([])
        for bucket in filter(None, buckets):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            dist.all_reduce(flat)
            for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))
        return sums


def updater(way: str, world: World) -> Updater:
    torch.manual_seed(1)
    settings, compute = Train(), Compute(torch.device("cpu"), "fp32", "")
    model = build_model(Transformer(), PIECES, PIECES)
    loss: torch.nn.Module = TrainingLoss(model, settings).train()
    if way == DDP:
        loss = share_gradients(loss, world)
    elif way == "sharded (FSDP2)":
        shard(loss, compute.device, world)  # type: ignore[arg-type]
    kind = BucketUpdater if way == "buckets after the pass" else Updater
    return kind(model, loss, settings, compute, State(), print, world)


def measure(tokens: int, rounds: int, world: World) -> dict[str, list[tuple[float, float]]]:
    """The seconds of each update: by the clock, and of the processor."""
    keep_freed_memory()
    torch.set_num_threads(1)
    updaters = {way: updater(way, world) for way in WAYS}
    seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    random = np.random.default_rng(world.rank)
    sentences = [random.integers(4, PIECES, 24) for _ in range(tokens // 25)]
    batch = make_batch(sentences, sentences[::-1])
    for number in range(rounds + 3):  # the first updates allocate memory
        for way in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
            dist.barrier()
            began = time.perf_counter(), time.process_time()
            updaters[way].update([(batch, number)], batch.tokens * world.size, 1e-4)
            dist.barrier()
            if number >= 3:
                seconds[way].append((time.perf_counter() - began[0], time.process_time() - began[1]))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 256], help="of a batch in each process")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    with Record("processes") as record:
        for tokens in options.tokens:
            job = partial(measure, tokens, options.rounds)
            seconds = with_workers(options.processes, job, job)
            print(f"{options.processes} processes, {tokens} tokens each, {options.rounds} rounds")
            for way in WAYS:
                line, figures = f"{way:24}", {}
                for number, kind in enumerate(("clock", "processor")):
                    ours, theirs = ([each[number] for each in seconds[name]] for name in (way, DDP))
                    low, middle, high = statistics.quantiles(spread(ours, theirs)["rounds"], n=4)
                    median = 1000 * statistics.median(ours)
                    line += f"  {kind} {median:5.0f} ms, ratio {middle:.2f} ({low:.2f} to {high:.2f})"
                    figures |= {f"{kind}_ms": median, f"{kind}_ratio": middle, f"{kind}_quartiles": [low, high]}
                print(line, flush=True)
                record.add(f"{way}, {tokens} tokens", processes=options.processes, rounds=options.rounds, **figures)


if __name__ == "__main__":
    main()
