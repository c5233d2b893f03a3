"""Long inputs: the memory does not grow with the input, and every line is there."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from support.toy_corpus import NUMBERS, ZAHLEN

from torture.bench import Bench, Case, Failure

LINES = 1_000_000  # through nmt translate
PAIRS = 10_000_000  # through nmt prepare
DISTINCT = 1000  # lines of the input of nmt translate
GROWTH = 1.15  # of the memory, from a tenth of the input to all of it


def spelled(number: int, words: list[str]) -> str:
    return " ".join(words[int(digit)] for digit in str(number)) + "."


def peak(command: list[str], cwd: Path, stdin: Path | None, stdout: Path) -> int:
    """Run a command, and return the largest memory in kilobytes of its largest process."""
    with stdout.open("wb") as out, (stdin or Path(os.devnull)).open("rb") as lines:
        process = subprocess.Popen(command, cwd=cwd, stdin=lines, stdout=out, stderr=subprocess.PIPE)
        assert process.stderr is not None
        errors = process.stderr.read().decode()
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise Failure(f"exit code {os.waitstatus_to_exitcode(status)}: {errors[-500:]}")
    return used.ru_maxrss


def _check_growth(small: int, large: int) -> None:
    if large > GROWTH * small + 20_000:
        raise Failure(f"a tenth of the input takes {small:,} kB, all of it {large:,} kB")


def translate(bench: Bench, lines: int, chance: random.Random) -> str:
    bench.fresh("one/run")
    source, out = bench.place / "in.txt", bench.place / "out.txt"
    used = []
    for count in (lines // 10, lines):
        with source.open("w") as stream:
            stream.writelines(spelled(n % DISTINCT, NUMBERS) + "\n" for n in range(count))
        command = [sys.executable, "-m", "nmt_cli", "translate", "one/run", "--engine", "ctranslate2", "--beam", "1"]
        used.append(peak([*command, "--workers", "1"], bench.place, source, out))
        with out.open("rb") as stream:
            first = [stream.readline() for _ in range(min(count, DISTINCT))]
            written = len(first)
            for line in stream:
                if line != first[written % DISTINCT]:
                    raise Failure(f"line {written + 1} has another translation than its twin")
                written += 1
        if written != count:
            raise Failure(f"{count} lines in, {written} lines out")
    _check_growth(*used)
    return "right"


def prepare(bench: Bench, pairs: int, chance: random.Random) -> str:
    bench.fresh()
    bench.place.mkdir(exist_ok=True)
    used = []
    for count in (pairs // 10, pairs):
        for name, words in (("a.en", NUMBERS), ("a.de", ZAHLEN)):
            with (bench.place / name).open("w") as stream:
                stream.writelines(spelled(n, words) + "\n" for n in range(count))
        command = [
            sys.executable,
            "-m",
            "nmt_cli",
            "prepare",
            "--source",
            "a.en",
            "--target",
            "a.de",
            "--vocab-size",
            "60",
        ]
        used.append(peak([*command, "--out", f"data-{count}"], bench.place, None, bench.folder / "stdout"))
        offsets = (bench.place / f"data-{count}/train.source.offsets").stat().st_size // 8 - 1
        if not 0.8 * count < offsets <= count:
            raise Failure(f"{count} pairs in, {offsets} pairs kept")
    _check_growth(*used)
    return "right"


def cases(bench: Bench) -> Iterator[Case]:
    lines, pairs = max(5000, round(LINES * bench.share)), max(20_000, round(PAIRS * bench.share))
    yield Case("load", f"translate {lines:,} lines", partial(translate, bench, lines))
    yield Case("load", f"prepare {pairs:,} pairs", partial(prepare, bench, pairs))
