"""The time of `nmt score` compared with the sacrebleu command, on 10,000 lines.

    python benchmarks/score.py [ROUNDS]         # 7 rounds

Two goals: nmt takes at most 1.1 times as long as sacrebleu for the same scores, and scores ten lines in under 0.7 s.
The two commands take turns, so that other work on the machine slows both alike. The figures are ratios of minima and of
medians.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import Record

LINES = 10_000
WORDS = 20  # per line, on average
NMT = (sys.executable, "-m", "nmt_cli", "score")
SACREBLEU = (sys.executable, "-m", "sacrebleu")


def seconds(*command: object) -> tuple[float, float]:
    """Elapsed seconds, and processor seconds, which vary less on a busy machine. Both commands have one thread."""
    start = time.perf_counter()
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def corpus(folder: Path) -> tuple[Path, Path]:
    """Sentences of invented words with the frequencies of real words, and translations with 30 % wrong words."""
    rng = random.Random(1)
    vocabulary = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(20_000)]
    weights = [1 / rank for rank in range(1, len(vocabulary) + 1)]
    references, hypotheses = [], []
    for _ in range(LINES):
        words = rng.choices(vocabulary, weights, k=rng.randint(WORDS // 2, WORDS * 3 // 2))
        others = [word if rng.random() < 0.7 else rng.choice(vocabulary) for word in words]
        references.append(" ".join(words) + ".\n")
        hypotheses.append(" ".join(others) + ".\n")
    (folder / "ref.de").write_text("".join(references))
    (folder / "hyp.de").write_text("".join(hypotheses))
    return folder / "hyp.de", folder / "ref.de"


def compare(record: Record, hypothesis: Path, reference: Path, metrics: tuple[str, ...], rounds: int) -> None:
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(seconds(*SACREBLEU, reference, "-i", hypothesis, "-m", *metrics))
        ours.append(seconds(*NMT, hypothesis, "--ref", reference, "-m", ",".join(metrics)))
    print(f"{', '.join(metrics)}   (goal: at most 1.1x)")
    for index, kind in enumerate(("elapsed", "processor")):
        our, their = ([pair[index] for pair in pairs] for pairs in (ours, theirs))
        minima, medians = min(our) / min(their), statistics.median(our) / statistics.median(their)
        print(
            f"  {kind:<10} sacrebleu {min(their):5.2f} s   nmt score {min(our):5.2f} s   "
            f"{minima:.2f}x by minima, {medians:.2f}x by medians"
        )
        what = f"{', '.join(metrics)}, {kind} seconds"
        record.add(what, sacrebleu=min(their), nmt=min(our), ratio_of_minima=minima, ratio_of_medians=medians)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as name, Record("score") as record:
        folder = Path(name)
        hypothesis, reference = corpus(folder)
        (folder / "few.de").write_text("Ein Satz.\n" * 10)
        few = [seconds(*NMT, folder / "few.de", "--ref", folder / "few.de") for _ in range(rounds)]
        elapsed, processor = map(min, zip(*few, strict=True))
        print(f"ten lines   (goal: under 0.7 s)\n  elapsed {elapsed:.2f} s, processor {processor:.2f} s")
        record.add("ten lines, seconds", elapsed=elapsed, processor=processor)
        for metrics in (("bleu",), ("bleu", "chrf")):
            compare(record, hypothesis, reference, metrics, rounds)


if __name__ == "__main__":
    main()
