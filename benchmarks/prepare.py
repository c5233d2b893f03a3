"""`nmt prepare`, measured: start-up, throughput, memory. python benchmarks/prepare.py [folder of Tatoeba en-de]

Three claims, each a ratio or a limit of the same run: encoding costs at most 1.3 times what SentencePiece's own batch
encoding does on the same text and cores; Tatoeba is prepared whole in under 20 s, vocabulary aside; ten times the
corpus takes less than 1.2 times the memory.
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

from nmt_cli.data.blocks import Encoder, split_into_blocks
from nmt_cli.parallel import cores, ordered_map
from nmt_cli.recipe.schema import Clean

TATOEBA = Path(__file__).parent.parent.parent / "shared/data/tatoeba-en-de"


def run(*args: object) -> tuple[float, float]:
    """Seconds and peak megabytes of an nmt command, its child processes included one by one."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "nmt_cli", *map(str, args)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def startup(folder: Path) -> None:
    (folder / "a").write_text("".join(f"hello number {n}\n" for n in range(10)))
    (folder / "b").write_text("".join(f"hallo Nummer {n}\n" for n in range(10)))
    help_seconds = min(run("--help")[0] for _ in range(5))
    files = ("--source", folder / "a", "--target", folder / "b", "--vocab-size", 40, "--force")
    ten_seconds = min(run("prepare", *files, "--out", folder / "ten")[0] for _ in range(5))
    print(f"nmt --help                    {help_seconds:6.2f} s   (wanted: under 0.5)")
    print(f"nmt prepare, ten lines        {ten_seconds:6.2f} s   (wanted: under 1.5)")


def encoding(folder: Path, source: list[str], target: list[str]) -> None:
    """Alternate the two, take minima."""
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
    print(f"nmt's encoding                {min(ours):6.2f} s   {min(ours) / min(theirs):.2f}x (wanted: at most 1.3x)")


def main() -> None:
    tatoeba = Path(sys.argv[1]) if len(sys.argv) > 1 else TATOEBA
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        startup(folder)
        if not tatoeba.is_dir():
            print(f"the rest needs Tatoeba en-de: train.en.gz and train.de.gz in {tatoeba}, or a folder named here")
            return
        texts = {side: gzip.decompress((tatoeba / f"train.{side}.gz").read_bytes()) for side in ("en", "de")}
        for side, data in texts.items():
            (folder / f"one.{side}").write_bytes(data)
            (folder / f"ten.{side}").write_bytes(data * 10)
        # Duplicates stay, or the repeated corpus would be no larger than the first.
        common = ("--vocab-size", 8000, "--force", "--set", "data.clean.duplicates=false", "--set", "data.hold_out=0")
        memory = {}
        for size, times, out in (("one", 1, "tatoeba"), ("ten", 10, "ten-fold")):
            files = ("--source", folder / f"{size}.en", "--target", folder / f"{size}.de", "--out", folder / out)
            seconds, memory[size] = run("prepare", *files, *common)
            note = "(wanted: under 20 s, vocabulary included here)" if size == "one" else ""
            print(f"nmt prepare, Tatoeba x{times:<7} {seconds:6.2f} s   peak {memory[size]:.0f} MB {note}")
        print(f"memory, ten times the corpus  {memory['ten'] / memory['one']:6.2f}x  (wanted: under 1.2x)")
        encoding(folder, *(texts[side].decode().split("\n")[:-1] for side in ("en", "de")))


if __name__ == "__main__":
    main()
