"""The speed of beam search on this machine, compared with a textbook loop. All variants run alternately.

    python benchmarks/search.py                            # a random model; about two minutes
    python benchmarks/search.py runs/x text.en             # a trained model on real lines
    python benchmarks/search.py --beam 1 --batch 128

The first comparison runs in one thread. The textbook loop copies memory and state at every step, calls topk on all of
K*V, and keeps each sentence until the last sentence of its batch has ended. With a trained model, nmt also runs with
patience 1, which stops earlier. The second comparison is between one process with two threads and two processes with
one thread each, where each process has half of the sentences.

The speed is target tokens of the best hypotheses, EOS included, per second.

The random model has width 256, ff 1024, 3+3 layers and 8,000 pieces. It would rarely write EOS, so every output gets
the length of its source. Only a trained model shows the effect of stopping early.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
import statistics
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import torch
from record import Record
from torch import Tensor

from nmt_cli.data.batches import pad
from nmt_cli.model.base import Seq2Seq, select
from nmt_cli.model.build import build_model
from nmt_cli.model.device import keep_freed_memory
from nmt_cli.recipe import schema as recipe
from nmt_cli.search.beam import search
from nmt_cli.search.contract import SearchOptions, length_limit
from nmt_cli.store.checkpoint import load_model
from nmt_cli.text.lines import read_lines
from nmt_cli.text.vocab import BOS, EOS, PAD

PIECES = 8000


def load(args: argparse.Namespace) -> tuple[Seq2Seq, list[list[int]], SearchOptions]:
    """The model, the sentences sorted by length, and the options of the search."""
    if args.model:
        trained = load_model(args.model)
        lines = list(islice(read_lines(args.text), args.sentences))
        sentences = trained.vocab.encode_source(lines)
        return trained.model, sorted(sentences, key=len), SearchOptions(beam=args.beam)
    torch.manual_seed(1)
    rng = random.Random(1)
    lengths = sorted(min(max(4, round(rng.gauss(13, 4))), 40) for _ in range(args.sentences))
    sentences = [[rng.randrange(4, PIECES) for _ in range(length)] for length in lengths]
    model = build_model(recipe.Transformer(heads=args.heads), PIECES, PIECES).eval()
    # min_length is above every length limit, so that no output ends before the length of its source.
    return model, sentences, SearchOptions(beam=args.beam, max_ratio=1.0, max_extra=1, min_length=1000)


def batches(sentences: list[list[int]], size: int) -> list[Tensor]:
    return [torch.from_numpy(pad(sentences[n : n + size])) for n in range(0, len(sentences), size)]


def ours(model: Seq2Seq, src: Tensor, options: SearchOptions) -> int:
    return sum(len(best.token_logprobs) for best, *_ in search([model], src, options))


@torch.inference_mode()
def textbook(model: Seq2Seq, src: Tensor, options: SearchOptions) -> int:
    """The same search without the early stop of nmt. It supports beam, alpha and the length options only."""
    count, width = len(src), options.beam
    rows = torch.arange(count).repeat_interleave(width)
    memory = select(model.encode(src), rows)
    state = model.start(memory)
    ids = torch.full((count * width, 1), BOS)
    totals = torch.full((count, width), -math.inf)
    totals[:, 0] = 0
    limits = [length_limit(int(n), 0, options) for n in ((src != PAD) & (src != EOS)).sum(1)]
    ended: list[list[tuple[float, int]]] = [[] for _ in limits]
    for length in range(1, max(limits) + 1):
        logits, _, state = model.step(ids[:, -1], memory, state)
        logp = logits.log_softmax(1)
        logp[:, [PAD, BOS]] = -math.inf
        if length <= options.min_length:
            logp[:, EOS] -= 1000
        continuations = (logp + totals.view(-1, 1)).view(count, -1)
        best, at = continuations.topk(2 * width, 1)
        token = at % logits.size(1)
        for b, limit in enumerate(limits):
            if length > limit or len(ended[b]) >= width:
                continue
            if length == limit:
                ends = list(range(width))
            else:
                ends = [c for c in range(width) if token[b, c] == EOS]
            ended[b] += [(best[b, c].item() / length**options.alpha, length) for c in ends]
        if all(len(hypotheses) >= width for hypotheses in ended):
            break
        totals, order = best.masked_fill(token == EOS, -math.inf).topk(width, 1)
        token = token.gather(1, order)
        rows = (at.gather(1, order) // logits.size(1) + torch.arange(count)[:, None] * width).flatten()
        ids = torch.cat([ids[rows], token.view(-1, 1)], 1)
        memory, state = select(memory, rows), select(state, rows)
    return sum(max(hypotheses)[1] for hypotheses in ended)


def compare(args: argparse.Namespace, record: Record) -> None:
    """Run all variants on each batch in turn, in one thread. CPU time suffers less from other programs."""
    torch.set_num_threads(1)
    model, sentences, options = load(args)
    variants = {"textbook": (textbook, options), "nmt": (ours, options)}
    if args.model:
        variants["nmt, patience 1"] = (ours, dataclasses.replace(options, patience=1.0))
    parts = batches(sentences, args.batch)
    seconds, tokens = dict.fromkeys(variants, 0.0), dict.fromkeys(variants, 0)
    for run, variant_options in variants.values():
        run(model, parts[0], variant_options)  # warm up
    for src in parts:
        for name, (run, variant_options) in variants.items():
            best = math.inf
            for _ in range(args.rounds):
                start = time.process_time()
                count = run(model, src, variant_options)
                best = min(best, time.process_time() - start)
            seconds[name] += best
            tokens[name] += count
    print(f"one thread, CPU time, beam {args.beam}, batches of {args.batch}, {len(sentences)} sentences")
    base = tokens["textbook"] / seconds["textbook"]
    for name in variants:
        speed = tokens[name] / seconds[name]
        rate = len(sentences) / seconds[name]
        print(f"  {name:<24}{speed:8.0f} tokens/s   {rate:6.1f} sentences/s   {speed / base:.2f}x")
        record.add(f"{name}, one thread", tokens_per_second=speed, sentences_per_second=rate, ratio=speed / base)


class Worker:
    """A process that translates its share of the batches each time `start` is called."""

    def __init__(self, threads: int, part: int, parts: int) -> None:
        command = [sys.executable, __file__, *sys.argv[1:], "--worker", f"{threads},{part},{parts}"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tokens()  # wait until the model is loaded

    def start(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def tokens(self) -> int:
        """Wait for the process and return the number of tokens that it wrote."""
        assert self.process.stdout
        return int(self.process.stdout.readline())


def work(args: argparse.Namespace) -> None:
    threads, part, parts = map(int, args.worker.split(","))
    torch.set_num_threads(threads)
    model, sentences, options = load(args)
    share = batches(sentences, args.batch)[part::parts]
    ours(model, share[0], options)  # warm up
    print(0, flush=True)
    for _ in sys.stdin:
        print(sum(ours(model, src, options) for src in share), flush=True)


def processes(args: argparse.Namespace, record: Record) -> None:
    teams = {"1 process x 2 threads": [(2, 0, 1)], "2 processes x 1 thread": [(1, 0, 2), (1, 1, 2)]}
    workers = {name: [Worker(*share) for share in shares] for name, shares in teams.items()}
    speeds: dict[str, list[float]] = {name: [] for name in teams}
    for _ in range(args.rounds):
        for name, team in workers.items():
            began = time.perf_counter()
            for worker in team:
                worker.start()
            tokens = sum(worker.tokens() for worker in team)
            speeds[name].append(tokens / (time.perf_counter() - began))
    for team in workers.values():
        for worker in team:
            worker.process.communicate()
    print(f"whole machine, {args.rounds} rounds in turn")
    base = max(speeds["1 process x 2 threads"])
    for name, all_speeds in speeds.items():
        best, middle = max(all_speeds), statistics.median(all_speeds)
        print(f"  {name:<24}{best:8.0f} tokens/s (median {middle:.0f})   {best / base:.2f}x")
        record.add(name, best_tokens_per_second=best, tokens_per_second=middle, ratio=best / base)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="a run or model folder")
    parser.add_argument("text", nargs="?", type=Path, help="source lines to translate with the model")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--sentences", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.model and not args.text:
        parser.error("name the text to translate after the model")
    keep_freed_memory()
    if args.worker:
        work(args)
        return
    with Record("search-trained" if args.model else "search") as record:
        compare(args, record)
        processes(args, record)


if __name__ == "__main__":
    main()
