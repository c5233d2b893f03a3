"""How the time grows: with the corpus, the sentence, the model, the beam, the threads and the processes.

    python benchmarks/scaling.py                           # all six; ten minutes on a quiet machine
    python benchmarks/scaling.py --only length beam
    python benchmarks/scaling.py --draw docs/pictures/scaling.svg       # plot the results of this processor

The points of a curve take turns, and a figure is the median of the rounds. Corpora are cuts of Tatoeba English-German.
Without that corpus, `corpus` is skipped. All other curves use random pieces: a vocabulary of 8,000, a Transformer of
width 256 and 3+3 layers unless the curve varies it, updates of 2,048 target tokens with Adam, and beam 5.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from prepare import run
from record import DATA, Record

from nmt_cli.data.batches import make_batch, pad
from nmt_cli.model.build import build_model
from nmt_cli.model.device import Compute, keep_freed_memory
from nmt_cli.recipe.automatic import SIZES
from nmt_cli.recipe.schema import Train, Transformer
from nmt_cli.search.beam import search
from nmt_cli.search.contract import SearchOptions
from nmt_cli.store.checkpoint import State
from nmt_cli.training.loss import TrainingLoss
from nmt_cli.training.step import Updater

PIECES, TOKENS, SENTENCES = 8000, 2048, 32
TATOEBA = DATA / "tatoeba-en-de"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_turns(jobs: dict[int, Callable[[], object]], rounds: int) -> dict[int, float]:
    """The median seconds of each job. The first round only warms up."""
    seconds: dict[int, list[float]] = {at: [] for at in jobs}
    for turn in range(rounds + 1):
        for at, job in jobs.items():
            began = time.perf_counter()
            job()
            if turn:
                seconds[at].append(time.perf_counter() - began)
    return {at: statistics.median(found) for at, found in seconds.items()}


def sentences(count: int, length: int) -> list[np.ndarray]:
    return list(np.random.default_rng(length).integers(4, PIECES, (count, length)))


def update(config: Transformer, length: int) -> Callable[[], object]:
    """An update of TOKENS target tokens, in pairs of `length` pieces each."""
    settings = Train()
    torch.manual_seed(1)
    model = build_model(config, PIECES, PIECES)
    compute = Compute(torch.device("cpu"), "fp32", "")
    updater = Updater(model, TrainingLoss(model, settings).train(), settings, compute, State(), print)
    batch = make_batch(sentences(TOKENS // (length + 1), length), sentences(TOKENS // (length + 1), length))
    return partial(updater.update, [(batch, 1)], batch.tokens, 1e-4)


def translation(length: int, beam: int) -> Callable[[], object]:
    """A search over SENTENCES sources of `length` pieces. Each output gets the length of its source."""
    torch.manual_seed(1)
    model = build_model(Transformer(), PIECES, PIECES).eval()
    source = torch.from_numpy(pad(sentences(SENTENCES, length)))
    # min_length is above the length limit, so that no output ends early.
    options = SearchOptions(beam=beam, max_ratio=1.0, max_extra=1, min_length=1000)
    return lambda: search([model], source, options)


def add(record: Record, curve: str, unit: str, seconds: dict[int, float], per: Callable[[int], float]) -> None:
    """Print and record the points. `per` is the amount of work of a point, in units."""
    first = min(seconds)
    for at, found in seconds.items():
        each, relative = found / per(at), found / per(at) / (seconds[first] / per(first))
        print(f"{curve}: {at:>9,}  {1000 * each:10.4f} ms for each {unit}, {relative:.2f} of the first", flush=True)
        record.add(curve, at=at, unit=unit, seconds=found, seconds_per_unit=each, relative=relative)


def corpus(record: Record, rounds: int, folder: Path) -> None:
    if not TATOEBA.is_dir():
        print("corpus: skipped, because Tatoeba is not here")
        return
    jobs, cuts = {}, (10_000, 20_000, 40_000, 80_000, 160_000)
    for language in ("en", "de"):
        lines = gzip.decompress((TATOEBA / f"train.{language}.gz").read_bytes()).split(b"\n")
        for cut in cuts:
            (folder / f"{cut}.{language}").write_bytes(b"".join(line + b"\n" for line in lines[:cut]))
    for cut in cuts:
        files = ("--source", folder / f"{cut}.en", "--target", folder / f"{cut}.de", "--vocab-size", 4000)
        jobs[cut] = partial(run, "prepare", *files, "--out", folder / f"data-{cut}", "--force")
    add(record, "corpus", "pair", in_turns(jobs, rounds), float)


def length(record: Record, rounds: int, folder: Path) -> None:
    lengths = [2**n - 1 for n in range(3, 9)]  # with the end mark, a power of two
    updates = in_turns({at: update(Transformer(), at) for at in lengths}, rounds)
    add(record, "length, training", "target token", updates, lambda at: TOKENS // (at + 1) * (at + 1))
    searches = in_turns({at: translation(at, 5) for at in lengths[:-1]}, rounds)
    add(record, "length, translation", "target token", searches, lambda at: SENTENCES * (at + 1))


def size(record: Record, rounds: int, folder: Path) -> None:
    configs = [Transformer(**table) for table in SIZES[:-1]]  # the largest needs minutes
    weights = [sum(part.numel() for part in build_model(config, PIECES, PIECES).parameters()) for config in configs]
    jobs = {count: update(config, 31) for count, config in zip(weights, configs, strict=True)}
    add(record, "size", "parameter", in_turns(jobs, rounds), float)


def beam(record: Record, rounds: int, folder: Path) -> None:
    jobs = {width: translation(15, width) for width in (1, 2, 4, 8, 16, 32)}
    add(record, "beam", "hypothesis and sentence", in_turns(jobs, rounds), lambda width: SENTENCES * width)


def threads(record: Record, rounds: int, folder: Path) -> None:
    step, before = update(Transformer(), 31), torch.get_num_threads()

    def with_threads(count: int) -> None:
        torch.set_num_threads(count)
        step()

    jobs = {count: partial(with_threads, count) for count in range(1, CORES + 1)}
    add(record, "threads", "update", in_turns(jobs, rounds), lambda count: 1)
    torch.set_num_threads(before)


def processes(record: Record, rounds: int, folder: Path) -> None:
    """The whole command on the demo corpus, one thread to a process: the median speed of its log."""
    run("demo", folder / "demo")
    files = ("--source", folder / "demo/train.en", "--target", folder / "demo/train.fr")
    run("prepare", *files, "--out", folder / "data")
    found = {}
    for count in range(1, CORES + 1):
        sets = (f"train.processes={count}", "train.log_every=5", "train.batch_tokens=4096")
        options = [part for one in sets for part in ("--set", one)]
        words = ["train", folder / "data", "--out", folder / f"run-{count}", "--minutes", 0.5, *options]
        command = [sys.executable, "-m", "nmt_cli", *map(str, words)]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        entries = [json.loads(line) for line in (folder / f"run-{count}/log.jsonl").read_text().splitlines()]
        found[count] = 1 / statistics.median(one["tokens_per_second"] for one in entries if one["kind"] == "train")
    add(record, "processes", "target token", found, lambda count: 1)


CURVES = {"corpus": corpus, "length": length, "size": size, "beam": beam, "threads": threads, "processes": processes}
AXES = {
    "corpus": "training pairs, nmt prepare",
    "length, training": "pieces of a sentence, training",
    "length, translation": "pieces of a sentence, translation",
    "size": "parameters of the model",
    "beam": "beam",
    "threads": "threads of one process",
    "processes": "processes of nmt train",
}


def draw(results: Path, picture: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    content = json.loads(results.read_text(encoding="utf-8"))
    curves = [name for name in AXES if any(row["what"] == name for row in content["figures"])]
    figure, places = plt.subplots((len(curves) + 1) // 2, 2, figsize=(8, 1.6 * len(curves)), layout="constrained")
    for place, name in zip(places.flat, curves, strict=False):
        rows = [row for row in content["figures"] if row["what"] == name]
        at = [row["at"] for row in rows]
        place.plot(at, [1000 * row["seconds_per_unit"] for row in rows], marker="o")
        place.set(xscale="log", ylim=(0, None), xlabel=AXES[name], ylabel=f"ms for each {rows[0]['unit']}")
        place.set_xticks(at, [f"{point / 1e6:.1f} M" if point > 1e6 else f"{point:,}" for point in at], fontsize=7)
        place.minorticks_off()
        place.grid(alpha=0.3)
    for place in list(places.flat)[len(curves) :]:
        place.remove()
    plt.rcParams["svg.hashsalt"] = "nmt"  # the same figures give the same file
    figure.savefig(picture, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CURVES, nargs="*", default=list(CURVES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--draw", type=Path, metavar="SVG", help="measure nothing; plot the results")
    args = parser.parse_args()
    if args.draw:
        draw(Record("scaling").path, args.draw)
        return
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder, Record("scaling") as record:
        for name in args.only:
            CURVES[name](record, args.rounds, Path(folder))


if __name__ == "__main__":
    main()
