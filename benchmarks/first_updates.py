"""Loss, gradient noise and speed of the first updates of a recipe, at its real size.

    python benchmarks/first_updates.py --source train.en.gz --target train.de.gz --updates 200 --out build/first
    python benchmarks/first_updates.py --recipe demo --set train.accumulate=4 --source ... --target ... --out ...

The text is prepared with the vocabulary of the recipe, and nmt's own session trains on it with all settings of the
recipe. `transformer-base` has 63 M parameters, and about 25,000 tokens in each update. There is one process, which sees
all micro-batches. After each update, results/first_updates-RECIPE.PROCESSOR.json is written. The same command
continues from the last checkpoint (--save-every).

The gradient noise scale of McCandlish et al. 2018 ("An Empirical Model of Large-Batch Training", appendix A.1) is the
batch, in target tokens, at which noise and gradient are equally large: B = tr(Sigma) / |G|^2. g is the gradient of the
whole update, of N tokens. g_i are the gradients of its micro-batches, of n tokens each: n is the harmonic mean, because
the noise of a micro-batch is tr(Sigma) / n. Then these estimates have no bias:

    |G|^2     = (N |g|^2 - n mean |g_i|^2) / (N - n)
    tr(Sigma) = (mean |g_i|^2 - |g|^2) / (1/n - 1/N)

One update gives a rough estimate, so both are averaged over --window updates before they are divided. Dropout is part
of the noise.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import harmonic_mean, mean

import torch
from record import Record
from torch import Tensor

import nmt_cli
from nmt_cli.data.batches import Batch
from nmt_cli.model.base import training_flops
from nmt_cli.recipe.load import open_recipe, parse_overrides
from nmt_cli.store.log import Note, Start
from nmt_cli.training import trainer
from nmt_cli.training.step import Figures, Updater


class Measured(Updater):
    """An Updater that also measures the gradient of each micro-batch, and reports each update."""

    report = staticmethod(lambda row: None)  # is called with the figures of each update

    def gradients(self, batches: list[tuple[Batch, int]], tokens: int) -> Tensor:
        total = [torch.zeros_like(parameter) for parameter in self.parameters]
        sums, self.squares = torch.zeros(2), []
        for batch, seed in batches:
            sums += super().gradients([(batch, seed)], tokens)
            gradients = [parameter.grad for parameter in self.parameters]
            share = batch.tokens / tokens  # the loss of a micro-batch was divided by the tokens of the whole update
            self.squares.append((float(torch.nn.utils.get_total_norm(gradients)) / share) ** 2)
            torch._foreach_add_(total, gradients)
        for parameter, gradient in zip(self.parameters, total, strict=True):
            parameter.grad = gradient
        return sums

    def update(self, batches: list[tuple[Batch, int]], tokens: int, rate: float) -> Figures:
        began = time.perf_counter()
        figures = super().update(batches, tokens, rate)
        loss, nll, norm, _ = figures.read()
        seconds = time.perf_counter() - began
        source = sum(batch.source_tokens for batch, _ in batches)
        flops = training_flops(self.model, source, tokens)
        few_tokens = harmonic_mean([batch.tokens for batch, _ in batches])
        square, trace = noise(norm**2, mean(self.squares), tokens, few_tokens)
        row = {"step": figures.step, "loss": loss / tokens, "nll": nll / tokens, "gradient_norm": norm, "rate": rate}
        row |= {"target_tokens": tokens, "source_tokens": source, "micro_batches": len(batches), "seconds": seconds}
        row |= {"tokens_per_second": tokens / seconds, "gflops": flops / seconds / 1e9}
        self.report(row | {"square_of_gradient": square, "trace_of_noise": trace})
        return figures


def noise(large: float, small: float, all_tokens: float, few_tokens: float) -> tuple[float, float]:
    """Estimates of |G|^2 and tr(Sigma) from squared norms of gradients of many and of few tokens."""
    square = (all_tokens * large - few_tokens * small) / (all_tokens - few_tokens)
    return square, (small - large) / (1 / few_tokens - 1 / all_tokens)


class Updates:
    """The rows of updates.jsonl, and the JSON of the benchmark."""

    def __init__(self, run: Path, record: Record, window: int) -> None:
        self.path, self.record, self.window = run.parent / "updates.jsonl", record, window
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.rows = [json.loads(line) for line in lines]

    def add(self, row: dict) -> None:
        self.rows = [*(old for old in self.rows if old["step"] < row["step"]), row]  # resumed: later rows are repeated
        recent = self.rows[-self.window :]
        square, trace = (mean(old[name] for old in recent) for name in ("square_of_gradient", "trace_of_noise"))
        row["noise_scale"] = trace / square if square > 0 else None
        self.path.write_text("".join(json.dumps(old) + "\n" for old in self.rows))
        self.record.rows = []
        for old in self.rows:
            self.record.add(f"update {old['step']}", **{name: value for name, value in old.items() if name != "step"})
        self.record.save()
        scale = "?" if row["noise_scale"] is None else f"{row['noise_scale']:,.0f}"
        print(
            f"update {row['step']}: loss {row['loss']:.3f}, nll {row['nll']:.3f}, |g| {row['gradient_norm']:.3f}, "
            f"noise scale {scale} tokens, {row['target_tokens']:,} tokens in {row['seconds']:.0f} s: "
            f"{row['tokens_per_second']:,.0f} tokens/s, {row['gflops']:.0f} GFLOP/s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="transformer-base")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--window", type=int, default=20, help="updates over which the noise is averaged")
    parser.add_argument("--save-every", type=int, default=20, help="updates between two checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="folder of the data, the run and updates.jsonl")
    options = parser.parse_args()
    data, run = options.out / "data", options.out / "run"
    changes = {
        **parse_overrides(options.settings),
        **{"data.prepared": str(data), "data.train": [], "data.valid": [], "data.test": [], "train.out": str(run)},
        # Without validation lines, a validation only saves a checkpoint.
        **{"train.steps": options.updates, "train.valid_every": options.save_every, "train.valid_minutes": 0},
        **{"train.processes": 1, "train.precision": "fp32", "train.keep": 1, "train.average": 0},
    }
    recipe = open_recipe(options.recipe, changes)
    if recipe.train.accumulate < 2:
        parser.error("one micro-batch shows no noise: --set train.accumulate=4")
    vocabulary = {"vocab.type": recipe.vocab.type, "vocab.size": recipe.vocab.size, "vocab.joint": recipe.vocab.joint}
    nmt_cli.prepare(source=options.source, target=options.target, out=data, set={"data.hold_out": 0, **vocabulary})

    def watch(event: trainer.Event) -> None:
        if isinstance(event, Start):
            print(f"{event.parameters:,} parameters, {event.threads} threads", flush=True)
        elif isinstance(event, Note):
            print(event.text, flush=True)

    with Record(f"first_updates-{options.recipe}", recipe) as record:
        Measured.report = staticmethod(Updates(run, record, options.window).add)
        trainer.Updater = Measured
        nmt_cli.train(recipe, watch=watch)


if __name__ == "__main__":
    main()
