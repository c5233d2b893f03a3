"""The training speed of every rung of the ladder, compared with plain PyTorch LSTMs.

    python benchmarks/rnn.py                         # all rungs, batches of 1024 tokens; a few minutes
    python benchmarks/rnn.py --rungs additive conv --rounds 20

The figures are target tokens per second, and their ratios to the two plain LSTMs: the median over the steps. GFLOP/s is
the speed of the arithmetic, which can be compared between models of different size.

All models have width 256, 8,000 joint pieces, tied embeddings, dropout 0.1, label smoothing 0.1 and float32. A
recurrent encoder has one bidirectional layer, and its decoder has one layer. The plain LSTMs have the same size, one
without and one with dot-product attention: nn.LSTM on padded batches, nn.Dropout, all logits at once and
F.cross_entropy. All models take turns in one process, one step each on the same batch, so that other work and malloc
affect all alike. The sentences are those of benchmarks/train_step.py.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torch.nn.functional as F
from record import Record
from torch import Tensor, nn
from train_step import PIECES, batches

from nmt_cli.model.base import parameters_by_part, training_flops
from nmt_cli.model.build import build_model
from nmt_cli.model.device import keep_freed_memory
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import PAD
from nmt_cli.training.loss import TrainingLoss

RUNGS: dict[str, recipe.Model] = {
    "rnn": recipe.Rnn(cell="rnn", attention="none"),
    "gru": recipe.Rnn(cell="gru", attention="none"),
    "lstm": recipe.Rnn(cell="lstm", attention="none"),
    "lstm, context at every step": recipe.Rnn(attention="none", context="every"),
    "cosine": recipe.Rnn(attention="cosine"),
    "additive": recipe.Rnn(attention="additive"),
    "location": recipe.Rnn(attention="location"),
    "general": recipe.Rnn(attention="general"),
    "dot": recipe.Rnn(attention="dot"),
    "scaled_dot": recipe.Rnn(attention="scaled_dot"),
    "mlp": recipe.Rnn(attention="mlp"),
    "general, local-m": recipe.Rnn(attention="general", span="monotonic"),
    "general, local-p": recipe.Rnn(attention="general", span="predictive"),
    "scaled_dot, 4 heads": recipe.Rnn(attention="scaled_dot", projections=True, heads=4),
    "general, input feeding": recipe.Rnn(attention="general", input_feeding=True),
    "additive, order before": recipe.Rnn(attention="additive", order="before"),
    "additive, input feeding": recipe.Rnn(attention="additive", input_feeding=True),
    "transformer, 3+3 layers": recipe.Transformer(),
    "conv, 4+3 layers": recipe.Conv(),
    "decoder, 6 layers": recipe.DecoderOnly(),
}


class PlainLstm(nn.Module):
    """Encoder, decoder and loss in plain PyTorch."""

    def __init__(self, attention: bool, dim: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(PIECES, dim, padding_idx=PAD)
        self.encoder = nn.LSTM(dim, dim // 2, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(dim, 2 * dim)
        self.decoder = nn.LSTM(dim, dim, batch_first=True)
        self.readout = nn.Linear(2 * dim, dim) if attention else None
        self.dropout = nn.Dropout(0.1)

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        source, (last, _) = self.encoder(self.dropout(self.embedding(src)))
        first = torch.tanh(self.bridge(last.transpose(0, 1).flatten(1))).chunk(2, -1)
        x, _ = self.decoder(self.dropout(self.embedding(tgt_in)), tuple(part[None].contiguous() for part in first))
        if self.readout is not None:
            scores = (x @ source.transpose(1, 2)).masked_fill((src == PAD)[:, None], float("-inf"))
            x = torch.tanh(self.readout(torch.cat([scores.softmax(-1) @ source, x], -1)))
        logits = F.linear(self.dropout(x), self.embedding.weight).flatten(0, 1)
        targets = tgt_out.flatten()
        loss = F.cross_entropy(logits, targets, ignore_index=PAD, label_smoothing=0.1, reduction="sum")
        return loss, loss.detach(), (targets != PAD).sum()


def build(name: str) -> nn.Module:
    torch.manual_seed(1)
    if name.startswith("plain"):
        return PlainLstm(attention="attention" in name)
    return TrainingLoss(build_model(RUNGS[name], PIECES, PIECES), recipe.Train())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rungs", nargs="+", default=list(RUNGS), help="names of rungs, or the beginnings of names")
    options = parser.parse_args()
    with Record("rnn") as record:
        measure(options, record)


def measure(options: argparse.Namespace, record: Record) -> None:
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    chosen = [name for name in RUNGS if name.startswith(tuple(options.rungs))]
    names = ["plain nn.LSTM", "plain nn.LSTM, attention", *chosen]
    models = {name: build(name).train() for name in names}
    optimizers = {name: torch.optim.Adam(model.parameters(), lr=1e-4, fused=True) for name, model in models.items()}
    rates: dict[str, list[float]] = {name: [] for name in names}
    data = batches(options.tokens, 8)
    source_tokens, target_tokens = (sum(int((batch[n] != PAD).sum()) for batch in data) for n in (0, 2))
    for turn in range(options.rounds + 3):
        for name, model in models.items():
            begin = time.perf_counter()
            optimizers[name].zero_grad()
            loss, _, count = model(*data[turn % len(data)])
            (loss / count).backward()
            optimizers[name].step()
            if turn >= 3:  # the first three steps warm up
                rates[name].append(int(count) / (time.perf_counter() - begin))

    load = " ".join(f"{average:.1f}" for average in os.getloadavg())
    print(f"{options.tokens}-token batches, {options.threads} threads, {options.rounds} steps; load {load}")
    print(f"{'':28s} parameters   target tok/s   x plain   x plain with attention   GFLOP/s")
    for name in names:
        ratios = [
            statistics.median(this / other for this, other in zip(rates[name], rates[plain], strict=True))
            for plain in names[:2]
        ]
        parameters, median = parameters_by_part(models[name]).total(), statistics.median(rates[name])
        model = models[name]
        gflops = None
        if isinstance(model, TrainingLoss):
            gflops = median * training_flops(model.model, source_tokens, target_tokens) / target_tokens / 1e9
        shown = "" if gflops is None else f"{gflops:10.0f}"
        print(f"{name:28s} {parameters:10,} {median:14,.0f} {ratios[0]:9.2f} {ratios[1]:24.2f} {shown}")
        figures = {"tokens_per_second": median, "ratio": ratios[0], "ratio_with_attention": ratios[1]}
        record.add(name, parameters=parameters, threads=options.threads, **figures, gflops=gflops)


if __name__ == "__main__":
    main()
