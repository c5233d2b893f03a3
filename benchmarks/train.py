"""Tokens/s and peak memory of the whole command `nmt train` on Multi30k.

    python benchmarks/train.py [FOLDER]         # FOLDER holds train.en.gz and train.de.gz; five minutes

The model has width 256, 4 heads, ff 1024, 3+3 layers, 8,000 joint pieces, dropout 0.1, label smoothing 0.1. It trains
in fp32 with Adam. All cores are used, in two ways: with the number of processes that `nmt train` chooses, which
depends on the tokens per batch, and with one process and one thread per core. A figure is target tokens/s, the median
of the lines of log.jsonl; "fastest quarter" is less sensitive to other work on the machine. The last column is the
share of the matrix rate: the operations of the training by weight (6 for each weight and token) and second, divided
by those of a large matrix product, which nmt measures when it starts. `make bench-rivals` compares nmt with other
programs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from record import DATA, Record, recipe_hash

from nmt_cli.recipe.load import load_recipe

MULTI30K = DATA / "multi30k"
MODEL = ("model.dim=256", "model.heads=4", "model.ff=1024", "model.encoder_layers=3", "model.decoder_layers=3")
TRAIN = (
    *("model.dropout=0.1", "train.auto=false", "train.optimizer=adam", "train.label_smoothing=0.1"),
    *("train.precision=fp32", "train.lr=1e-3", "train.warmup=400"),
)
NO_VALIDATION = ("train.valid_every=1000000", "train.valid_lines=10", "train.log_every=5")


def nmt(*args: object) -> None:
    subprocess.run([sys.executable, "-m", "nmt_cli", *map(str, args)], check=True, capture_output=True)


def main() -> None:
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else MULTI30K
    if not data.is_dir():
        print(f"skipped: there is no folder {data}; name a folder that holds train.en.gz and train.de.gz of Multi30k")
        return
    with tempfile.TemporaryDirectory() as name, Record("train") as record:
        folder = Path(name)
        files = ("--source", data / "train.en.gz", "--target", data / "train.de.gz", "--vocab-size", 8000)
        nmt("prepare", *files, "--out", folder / "data")
        print("tokens per batch    processes   median tok/s   fastest quarter   peak MB   padding   of matrix rate")
        for tokens in (1024, 4096):
            for processes in (0, 1):
                run = folder / f"run-{tokens}-{processes}"
                sets = (*MODEL, *TRAIN, f"train.batch_tokens={tokens}", f"train.processes={processes}", *NO_VALIDATION)
                nmt("train", folder / "data", "--out", run, "--minutes", 1, *(p for s in sets for p in ("--set", s)))
                entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
                trained = [entry for entry in entries if entry["kind"] == "train"][2:]  # two lines of warm-up
                first, last = trained[0], trained[-1]
                rate = (last["flops"] - first["flops"]) / (60 * (last["minutes"] - first["minutes"]))
                share = rate / entries[0]["rate"]
                speeds = sorted(entry["tokens_per_second"] for entry in trained)
                print(
                    f"{tokens:>17,} {entries[0]['processes']:>11} {statistics.median(speeds):>14,.0f} "
                    f"{speeds[-len(speeds) // 4]:>17,.0f} {last['memory_mb']:>9,.0f} "
                    f"{last['padding']:>9.1%} {share:>16.0%}",
                    flush=True,
                )
                record.add(
                    f"{tokens} tokens per batch, {entries[0]['processes']} processes",
                    tokens_per_second=statistics.median(speeds),
                    fastest_quarter=speeds[-len(speeds) // 4],
                    peak_mb=last["memory_mb"],
                    padding=last["padding"],
                    share_of_matrix_rate=share,
                    recipe=recipe_hash(load_recipe(run / "recipe.toml")),
                )


if __name__ == "__main__":
    main()
