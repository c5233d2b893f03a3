"""`nmt score` against the sacrebleu command, on 10,000 lines: python benchmarks/score.py [rounds]

Two claims: the same scores take at most 1.1 times as long, and a few lines are scored in under 0.7 s. Both commands run
in turn, so that other work on the machine meets both, and are compared by their minima and by their medians.
"""

from __future__ import annotations

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


def seconds(*command: object) -> float:
    start = time.perf_counter()
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return time.perf_counter() - start


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
    minima = min(ours) / min(theirs)
    medians = statistics.median(ours) / statistics.median(theirs)
    print(f"{', '.join(metrics):<12} sacrebleu {min(theirs):5.2f} s   nmt score {min(ours):5.2f} s")
    print(f"{'':<12} {minima:.2f}x by minima, {medians:.2f}x by medians (wanted: at most 1.1x)")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hypothesis, reference = corpus(folder)
        (folder / "few.de").write_text("Ein Satz.\n" * 10)
        few = min(seconds(*NMT, folder / "few.de", "--ref", folder / "few.de") for _ in range(rounds))
        print(f"{'ten lines':<12} nmt score {few:5.2f} s   (wanted: under 0.7 s)")
        for metrics in (("bleu",), ("bleu", "chrf")):
            compare(hypothesis, reference, metrics, rounds)


if __name__ == "__main__":
    main()
