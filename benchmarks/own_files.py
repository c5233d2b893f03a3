"""Do the settings that nmt chooses reach the quality of settings tuned by hand, in the same time?

    python benchmarks/own_files.py --minutes 5 15 60                  # all corpora: 16 hours
    python benchmarks/own_files.py --minutes 10 --only multi30k-en-de
    python benchmarks/own_files.py --minutes 5 --only docs-en-fr --try model.dim=256 model.ff=1024

Each corpus is given as two files: `nmt prepare --source --target` with its validation and test files, then `nmt train
--minutes M` without a recipe. The rival is a recipe, or a list of settings, that was tuned by hand on the validation
lines. Both train one after the other on the same machine. The result is the ratio of their BLEU scores on the test
lines. Validation BLEU stands beside it: a choice may look at nothing else. --try trains with further settings instead,
and shows their validation BLEU only.

Each corpus and time has a result file of its own, written as soon as it is measured. The same command skips what has a
file, so the 16 hours may be several sessions.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import DATA, Record

MUON = (
    "train.optimizer=muon",
    "train.batch_tokens=2048",
    "train.schedule=linear",
    "train.warmup=200",
    "train.ema=0.99",
)
TINY = (
    *("model.dim=128", "model.heads=4", "model.ff=256", "model.encoder_layers=4", "model.decoder_layers=4"),
    *("train.lr=8e-3", *MUON),
)
LONG = ("train.schedule=wsd", "train.cooldown=0.5", "train.lr=5e-3", "train.warmup=300", "train.ema=0.999")
SMALL = (
    *("model.dim=256", "model.heads=4", "model.ff=1024", "model.encoder_layers=3", "model.decoder_layers=3"),
    *(*MUON, *LONG),
)

# folder, names of the splits, languages; vocabulary and settings of the rival for short and for long trainings
CORPORA = {
    "multi30k-en-de": ("multi30k", ("train", "val", "test_2016_flickr"), ("en", "de")),
    "multi30k-en-fr": ("multi30k", ("train", "val", "test_2016_flickr"), ("en", "fr")),
    "tatoeba-en-de": ("tatoeba-en-de", ("train", "dev", "test"), ("en", "de")),
    "docs-en-fr": ("python-docs-en-fr", ("train", "dev", "test"), ("en", "fr")),
    "multi30k-2000": ("multi30k", ("train", "val", "test_2016_flickr"), ("en", "de")),
    "demo": ("", ("train", "dev", "test"), ("en", "fr")),
}
RIVALS = {
    "multi30k-en-de": (4000, (*TINY, "model.dropout=0.1"), (*TINY, *LONG, "model.dropout=0.2")),
    "multi30k-en-fr": (4000, (*TINY, "model.dropout=0.1"), (*TINY, *LONG, "model.dropout=0.2")),
    "tatoeba-en-de": (8000, (*SMALL, "model.dropout=0.1"), (*SMALL, "model.dropout=0.1")),
    "docs-en-fr": (4000, (*TINY, "model.dropout=0.1"), (*SMALL, "model.dropout=0.1")),
    "multi30k-2000": (1000, (*TINY, "model.dropout=0.3"), (*TINY, *LONG, "model.dropout=0.3")),
    "demo": (
        2000,
        *2
        * (
            (
                *("model.dim=128", "model.heads=4", "model.ff=512", "model.encoder_layers=2", "model.decoder_layers=2"),
                *("model.dropout=0", "train.optimizer=adam", "train.schedule=inverse_sqrt", "train.batch_tokens=512"),
                *("train.warmup=300", "train.lr=4e-3", "train.ema=0.998"),
            ),
        ),
    ),
}


def nmt(*args: object) -> str:
    done = subprocess.run([sys.executable, "-m", "nmt_cli", *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"nmt {' '.join(map(str, args))}\n{done.stderr}")
    return done.stdout


def files_of(name: str, work: Path) -> list[Path]:
    """Source and target of train, valid and test, as plain files."""
    folder, splits, languages = CORPORA[name]
    if not folder:
        nmt("demo", work / "corpus")
        return [work / f"corpus/{split}.{language}" for split in splits for language in languages]
    files = []
    for split in splits:
        for language in languages:
            lines = gzip.decompress((DATA / folder / f"{split}.{language}.gz").read_bytes()).splitlines(keepends=True)
            files.append(work / f"{split}.{language}")
            files[-1].write_bytes(b"".join(lines[:2000] if name.endswith("-2000") and split == "train" else lines))
    return files


def trained(data: Path, run: Path, minutes: float, settings: tuple[str, ...]) -> tuple[float, float]:
    """The best validation BLEU of a training, and the minutes that the command took."""
    began = time.perf_counter()
    sets = [part for setting in settings for part in ("--set", setting)]
    nmt("train", data, "--out", run, "--minutes", minutes, *sets)
    took = (time.perf_counter() - began) / 60
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return max(entry["bleu"] for entry in entries if entry["kind"] == "valid"), took


def test_bleu(run: Path, source: Path, reference: Path) -> float:
    (run / "out").write_text(nmt("translate", run, source, "--beam", 5))
    report = json.loads(nmt("score", run / "out", "--ref", reference, "--format", "json"))
    return next(score["score"] for score in report["scores"] if score["metric"] == "BLEU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, nargs="+", default=[5])
    parser.add_argument("--only", choices=CORPORA, nargs="*", default=list(CORPORA))
    parser.add_argument("--again", action="store_true", help="measure also what has a result of this processor")
    parser.add_argument("--try", nargs="*", dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep data and runs here")
    args = parser.parse_args()
    for minutes, name in itertools.product(args.minutes, args.only):
        if CORPORA[name][0] and not (DATA / CORPORA[name][0]).is_dir():
            print(f"{name}: skipped, because the corpus is not here")
            continue
        with tempfile.TemporaryDirectory() as folder, Record(f"own_files-{name}-{minutes:g}") as record:
            if record.path.exists() and not args.again and args.settings is None:
                print(f"{name}, {minutes:g} minutes: skipped, {record.path.name} has the result")
                continue
            work = args.keep / f"{name}-{minutes:g}" if args.keep else Path(folder)
            work.mkdir(parents=True, exist_ok=True)
            measure(name, minutes, args.settings, work, record)


def measure(name: str, minutes: float, settings: list[str] | None, work: Path, record: Record) -> None:
    files = files_of(name, work)
    options = ("--source", "--target", "--valid-source", "--valid-target", "--test-source", "--test-target")
    given = [part for pair in zip(options, files, strict=True) for part in pair]
    nmt("prepare", *given, "--out", work / "own")
    if settings is not None:
        valid, took = trained(work / "own", work / "tried", minutes, tuple(settings))
        print(f"{name}: valid {valid:.2f} after {took:.2f} minutes with {' '.join(settings)}", flush=True)
        return
    size, short, long = RIVALS[name]
    nmt("prepare", *given, "--out", work / "tuned", "--vocab-size", size)
    rival = (*(short if minutes <= 20 else long), "train.auto=false", "train.steps=0", "train.patience=0")
    rival += ("train.valid_every=1000000", f"train.valid_minutes={minutes / 4}")
    figures = []
    for data, settings_of_run in (("own", ()), ("tuned", rival)):
        valid, took = trained(work / data, work / f"run-{data}", minutes, settings_of_run)
        figures.append((valid, test_bleu(work / f"run-{data}", *files[4:]), took))
    (own_valid, own, own_took), (tuned_valid, tuned, tuned_took) = figures
    print(
        f"{name}, {minutes:g} minutes: chosen {own:.2f} (valid {own_valid:.2f}, {own_took:.2f} minutes), "
        f"tuned {tuned:.2f} (valid {tuned_valid:.2f}, {tuned_took:.2f} minutes), ratio {own / tuned:.3f}",
        flush=True,
    )
    valid_and_time = {"valid": own_valid, "tuned_valid": tuned_valid, "took_minutes": own_took}
    record.add(name, minutes=minutes, bleu=own, tuned_bleu=tuned, ratio=own / tuned, **valid_and_time)


if __name__ == "__main__":
    main()
