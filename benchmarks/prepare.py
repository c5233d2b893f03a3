"""Start-up time, speed and memory of `nmt prepare`.

    python benchmarks/prepare.py [FOLDER]       # FOLDER holds train.en.gz and train.de.gz of Tatoeba

The goal stands beside each figure. Three of the goals: encoding takes at most 1.3 times as long as SentencePiece's own
batch encoding of the same text on the same cores; Tatoeba is prepared in under 20 s, without learning the vocabulary; a
corpus ten times as large needs less than 1.2 times the memory.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sentencepiece
from record import DATA, Record

from nmt_cli.data.blocks import Encoder, split_into_blocks
from nmt_cli.parallel import cores, ordered_map
from nmt_cli.recipe.schema import Clean

TATOEBA = DATA / "tatoeba-en-de"


def run(*args: object) -> tuple[float, float]:
    """Seconds of an nmt command, and the peak megabytes of its largest process."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "nmt_cli", *map(str, args)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def startup(folder: Path, record: Record) -> None:
    (folder / "a").write_text("".join(f"hello number {n}\n" for n in range(10)))
    (folder / "b").write_text("".join(f"hallo Nummer {n}\n" for n in range(10)))
    help_seconds = min(run("--help")[0] for _ in range(5))
    files = ("--source", folder / "a", "--target", folder / "b", "--vocab-size", 40, "--force")
    ten_seconds = min(run("prepare", *files, "--out", folder / "ten")[0] for _ in range(5))
    print(f"nmt --help                    {help_seconds:6.2f} s   (goal: under 0.5)")
    print(f"nmt prepare, ten lines        {ten_seconds:6.2f} s   (goal: under 1.5)")
    record.add("nmt --help", seconds=help_seconds, goal=0.5)
    record.add("nmt prepare, ten lines", seconds=ten_seconds, goal=1.5)


def encoding(folder: Path, record: Record, source: list[str], target: list[str]) -> None:
    """Both encodings run in turn; the fastest run of each counts."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tatoeba/vocab/joint.model"))
    rules = Clean(max_tokens=0, max_ratio=0)
    theirs, ours = [], []
    for _ in range(3):
        start = time.perf_counter()
        processor.encode(source, num_threads=cores())
        processor.encode(target, num_threads=cores())
        theirs.append(time.perf_counter() - start)
        start = time.perf_counter()
        blocks = split_into_blocks(enumerate(zip(source, target, strict=True)))
        for _block in ordered_map(Encoder(folder / "tatoeba/vocab", rules), blocks, cores()):
            pass
        ours.append(time.perf_counter() - start)
    print(f"SentencePiece's batch encode  {min(theirs):6.2f} s")
    print(f"nmt's encoding                {min(ours):6.2f} s   {min(ours) / min(theirs):.2f}x (goal: at most 1.3x)")
    ratio = min(ours) / min(theirs)
    record.add("encoding", sentencepiece_seconds=min(theirs), nmt_seconds=min(ours), ratio=ratio, goal=1.3)


def main() -> None:
    tatoeba = Path(sys.argv[1]) if len(sys.argv) > 1 else TATOEBA
    with tempfile.TemporaryDirectory() as name, Record("prepare") as record:
        folder = Path(name)
        startup(folder, record)
        if not tatoeba.is_dir():
            print(
                f"the rest is skipped: no folder {tatoeba}; name a folder with train.en.gz and train.de.gz of Tatoeba"
            )
            return
        texts = {side: gzip.decompress((tatoeba / f"train.{side}.gz").read_bytes()) for side in ("en", "de")}
        for side, data in texts.items():
            (folder / f"one.{side}").write_bytes(data)
            (folder / f"ten.{side}").write_bytes(data * 10)
        # Duplicates must stay: without them the repeated corpus would be as small as the first.
        common = ("--vocab-size", 8000, "--force", "--set", "data.clean.duplicates=false", "--set", "data.hold_out=0")
        memory = {}
        for size, times, out in (("one", 1, "tatoeba"), ("ten", 10, "ten-fold")):
            files = ("--source", folder / f"{size}.en", "--target", folder / f"{size}.de", "--out", folder / out)
            seconds, memory[size] = run("prepare", *files, *common)
            note = "(goal: under 20 s, without the vocabulary, which is included here)" if size == "one" else ""
            print(f"nmt prepare, Tatoeba x{times:<7} {seconds:6.2f} s   peak {memory[size]:.0f} MB {note}")
            record.add(f"nmt prepare, Tatoeba x{times}", seconds=seconds, peak_mb=memory[size])
        print(f"memory, ten times the corpus  {memory['ten'] / memory['one']:6.2f}x  (goal: under 1.2x)")
        record.add("memory, ten times the corpus", ratio=memory["ten"] / memory["one"], goal=1.2)
        encoding(folder, record, *(texts[side].decode().split("\n")[:-1] for side in ("en", "de")))


if __name__ == "__main__":
    main()
