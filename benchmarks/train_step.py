"""The speed of one training step, and the gain of each optimization that docs/performance.md describes.

    python benchmarks/train_step.py                        # batches of 1024 and of 4096 tokens; two or three minutes
    python benchmarks/train_step.py --tokens 4096 --rounds 20
    python benchmarks/train_step.py --growth               # does the cost grow linearly with the tokens of a batch?
    python benchmarks/train_step.py --profile              # the time of each operation

The figures are target tokens per second, and their ratio to a plain PyTorch step ("plain eager"). The ratio is the
figure to compare between machines.

Each variant runs in its own process, because malloc settings cannot be undone. The processes take turns, one step each,
so that other work on the machine slows all of them alike. A step is forward, loss, backward and fused Adam on a model
of width 256, 4 heads, ff 1024, 3+3 layers, 8,000 joint pieces, all embeddings tied, dropout 0.1, label smoothing 0.1,
float32. The sentences have the lengths and word frequencies of Multi30k if that corpus is available. Otherwise they are
random.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from record import DATA, Record
from torch import Tensor, nn

from nmt_cli.model import attention, linear, transformer
from nmt_cli.model.build import build_model
from nmt_cli.model.device import keep_freed_memory
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import BOS, EOS, PAD
from nmt_cli.training.loss import TrainingLoss

MULTI30K = DATA / "multi30k"
PIECES = 8000
# Each variant adds one optimization to the variant before it.
VARIANTS = (
    "plain eager", "+ kept memory", "+ byte dropout", "+ chunked loss", "+ fewer copies", "+ oneDNN", "+ shorter waits"
)  # fmt: skip


def pairs() -> list[tuple[list[int], list[int]]]:
    """Sentence pairs as ids. The id of a word is its hash, which preserves sentence lengths and word frequencies."""
    if (MULTI30K / "train.en.gz").is_file():
        sides = []
        for language in ("en", "de"):
            with gzip.open(MULTI30K / f"train.{language}.gz", "rt", encoding="utf-8") as file:
                words = [re.findall(r"\w{1,8}|[^\w\s]", line) for line in file]
            sides.append([[4 + zlib.crc32(word.encode()) % (PIECES - 4) for word in line] for line in words])
        return list(zip(*sides, strict=True))
    rng = random.Random(1)
    lengths = [max(3, round(rng.gauss(14, 4))) for _ in range(20_000)]
    return [tuple([4 + int((PIECES - 4) * rng.random() ** 3) for _ in range(n)] for _ in "st") for n in lengths]


def batches(tokens: int, count: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Batches (src, tgt_in, tgt_out) of sentences of similar length: rows x longest target <= tokens."""
    rows = sorted(pairs(), key=lambda pair: (len(pair[1]), len(pair[0])))
    result, begin = [], 0
    while begin < len(rows):
        end = begin + 1
        while end < len(rows) and (end + 1 - begin) * (len(rows[end][1]) + 1) <= tokens:
            end += 1
        source, target = zip(*rows[begin:end], strict=True)
        src = pad([[*ids, EOS] for ids in source])
        result.append((src, pad([[BOS, *ids] for ids in target]), pad([[*ids, EOS] for ids in target])))
        begin = end
    random.Random(2).shuffle(result)
    return result[:count]


def pad(rows: list[list[int]]) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


def stock_dropout(x: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
    x = F.dropout(x, p)
    return x if residual is None else residual + x


def plain_feed_forward(self: transformer.FeedForward, x: Tensor) -> Tensor:
    return self.outer(F.relu(self.inner(x)))


def plain_embed(self: transformer.Transformer, ids: Tensor, table: nn.Embedding, positions: nn.Module) -> Tensor:
    x = table(ids) * self.scale + positions(0, ids.size(1), table.weight)
    return transformer.dropout(x, self.dropout_rate)


class PlainLoss(TrainingLoss):
    """The plain way: all logits at once, and PyTorch's cross-entropy."""

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, targets = self.model(src, tgt_in).flatten(0, 1), tgt_out.flatten()
        loss = F.cross_entropy(logits, targets, ignore_index=PAD, label_smoothing=0.1, reduction="sum")
        return loss, loss.detach(), (targets != PAD).sum()


def steps(variant: str, tokens: int) -> Iterator[int]:
    """Each `next` runs one training step and returns the number of its target tokens."""
    level = VARIANTS.index(variant)
    if level >= 1:
        keep_freed_memory()
    if level < 2:
        transformer.dropout = attention.dropout = stock_dropout
    if level < 4:
        transformer.FeedForward.forward = plain_feed_forward
        transformer.Transformer.embed = lambda *arguments, norm: plain_embed(*arguments[:4])
    if level < 5:
        linear.prefers_onednn = lambda: False  # otherwise a rule chooses; it never chooses oneDNN on an Intel processor
    torch.manual_seed(1)
    model = build_model(recipe.Transformer(), PIECES, PIECES)
    model_with_loss = (TrainingLoss if level >= 3 else PlainLoss)(model, recipe.Train()).train()
    optimizer = torch.optim.Adam(model_with_loss.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    data = batches(tokens, 16)
    while True:
        for batch in data:
            optimizer.zero_grad()
            loss, _, count = model_with_loss(*batch)
            (loss / count).backward()
            optimizer.step()
            yield int(count)


def worker(variant: str, tokens: int) -> None:
    """Run a step for each line on standard input, and print its tokens/s and the peak megabytes of the process."""
    stepper = steps(variant, tokens)
    for _ in sys.stdin:
        begin = time.perf_counter()
        count = next(stepper)
        rate = count / (time.perf_counter() - begin)
        print(rate, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, flush=True)


def take_turns(jobs: list[tuple[str, int]], rounds: int, threads: int) -> tuple[list[list[float]], list[float]]:
    """The tokens/s of each step of each job, and the peak megabytes of each job: a variant and its tokens per batch."""
    workers = []
    for variant, tokens in jobs:
        command = [sys.executable, __file__, "--tokens", str(tokens), "--threads", str(threads), "--worker", variant]
        # libgomp reads this variable when torch is imported.
        spin_count = {"GOMP_SPINCOUNT": "30000"} if variant == VARIANTS[-1] else {}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        workers.append(subprocess.Popen(command, env={**os.environ, **spin_count}, **pipes))
    rates: list[list[float]] = [[] for _ in jobs]
    peaks = [0.0] * len(jobs)
    for turn in range(rounds + 3):
        for i, process in enumerate(workers):
            print("go", file=process.stdin, flush=True)
            rate, peaks[i] = map(float, process.stdout.readline().split())
            if turn >= 3:  # the first three steps warm up
                rates[i].append(rate)
    for process in workers:
        process.stdin.close()
        process.wait()
    return rates, peaks


def compare(record: Record, tokens: int, rounds: int, threads: int) -> None:
    rates, peaks = take_turns([(variant, tokens) for variant in VARIANTS], rounds, threads)
    load = " ".join(f"{average:.1f}" for average in os.getloadavg())
    print(f"\n{tokens}-token batches: target tokens/s over {rounds} steps; load {load}")
    for name, rate, peak in zip(VARIANTS, rates, peaks, strict=True):
        # All variants get the same batches in the same order, so each ratio compares equal work.
        ratio = statistics.median(this / plain for this, plain in zip(rate, rates[0], strict=True))
        print(
            f"  {name:16s} median {statistics.median(rate):5.0f}, best {max(rate):5.0f}, "
            f"{ratio:5.2f} x {VARIANTS[0]}, {max(rate) / max(rates[0]):5.2f} x at best, {peak:5.0f} MB",
            flush=True,
        )
        figures = {"tokens_per_second": statistics.median(rate), "best": max(rate), "ratio": ratio, "peak_mb": peak}
        record.add(f"{tokens} tokens, {name}", threads=threads, rounds=rounds, **figures)


def growth(record: Record, rounds: int, threads: int) -> None:
    """The cost is linear if the rate is constant and memory grows no faster than the batch."""
    sizes = [512 * 2**n for n in range(6)]
    rates, peaks = take_turns([(VARIANTS[-1], size) for size in sizes], rounds, threads)
    print(f"\ntarget tokens/s by tokens per batch, over {rounds} steps")
    for size, rate, peak in zip(sizes, rates, peaks, strict=True):
        middle, base = statistics.median(rate), statistics.median(rates[0])
        print(
            f"  {size:6,} median {middle:5.0f}, best {max(rate):5.0f}, "
            f"{base / middle:5.2f} x the time per token, {peak:5.0f} MB"
        )
        figures = {"tokens_per_second": middle, "best": max(rate), "time_per_token": base / middle, "peak_mb": peak}
        record.add(f"{size} tokens", **figures)


def profile(tokens: int) -> None:
    stepper = steps(VARIANTS[-1], tokens)
    for _ in range(4):
        next(stepper)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(8):
            next(stepper)
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    for event in events[:30]:
        milliseconds, share = event.self_cpu_time_total / 8000, event.self_cpu_time_total / total
        print(f"  {event.key[:60]:60s} {share:6.1%} {milliseconds:8.2f} ms {event.count // 8:5d} calls per step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with Record("train_step-growth" if options.growth else "train_step") as record:
        if options.growth:
            growth(record, options.rounds, options.threads)
            return
        for tokens in options.tokens:
            if options.worker:
                worker(options.worker, tokens)
            elif options.profile:
                profile(tokens)
            else:
                compare(record, tokens, options.rounds, options.threads)


if __name__ == "__main__":
    main()
