"""`nmt score` against the sacrebleu command, on 10,000 lines: python benchmarks/score.py [rounds]

Two claims: the same scores take at most 1.1 times as long, and a few lines are scored in under 0.7 s. Both commands run
in turn, so that other work on the machine meets both, and are compared by their minima and by their medians.
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

LINES = 10_000
WORDS = 20  # of a line, on average
NMT = (sys.executable, "-m", "nmt_cli", "score")
SACREBLEU = (sys.executable, "-m", "sacrebleu")


def seconds(*command: object) -> tuple[float, float]:
    """Of a clock, and of a processor, which is steadier where other work goes on; both commands have one thread."""
    start = time.perf_counter()
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def corpus(folder: Path) -> tuple[Path, Path]:
    """Sentences of made-up words, as often used as words are, and translations with three words in ten wrong."""
    chance = random.Random(1)
    vocabulary = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(20_000)]
    weights = [1 / rank for rank in range(1, len(vocabulary) + 1)]
    references, hypotheses = [], []
    for _ in range(LINES):
        words = chance.choices(vocabulary, weights, k=chance.randint(WORDS // 2, WORDS * 3 // 2))
        others = [word if chance.random() < 0.7 else chance.choice(vocabulary) for word in words]
        references.append(" ".join(words) + ".\n")
        hypotheses.append(" ".join(others) + ".\n")
    (folder / "ref.de").write_text("".join(references))
    (folder / "hyp.de").write_text("".join(hypotheses))
    return folder / "hyp.de", folder / "ref.de"


def compare(hypothesis: Path, reference: Path, metrics: tuple[str, ...], rounds: int) -> None:
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(seconds(*SACREBLEU, reference, "-i", hypothesis, "-m", *metrics))
        ours.append(seconds(*NMT, hypothesis, "--ref", reference, "-m", ",".join(metrics)))
    print(f"{', '.join(metrics)}   (wanted: at most 1.1x)")
    for index, what in enumerate(("elapsed", "processor")):
        our, their = ([both[index] for both in measured] for measured in (ours, theirs))
        minima, medians = min(our) / min(their), statistics.median(our) / statistics.median(their)
        print(
            f"  {what:<10} sacrebleu {min(their):5.2f} s   nmt score {min(our):5.2f} s   "
            f"{minima:.2f}x by minima, {medians:.2f}x by medians"
        )


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hypothesis, reference = corpus(folder)
        (folder / "few.de").write_text("Ein Satz.\n" * 10)
        few = [seconds(*NMT, folder / "few.de", "--ref", folder / "few.de") for _ in range(rounds)]
        elapsed, processor = map(min, zip(*few, strict=True))
        print(f"ten lines   (wanted: under 0.7 s)\n  elapsed {elapsed:.2f} s, processor {processor:.2f} s")
        for metrics in (("bleu",), ("bleu", "chrf")):
            compare(hypothesis, reference, metrics, rounds)


if __name__ == "__main__":
    main()
