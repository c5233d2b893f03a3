"""Does a paragraph lose anything? python benchmarks/paragraphs.py RUN SOURCE REF

Joins two to four lines of a test set into one line, translates the joined lines and the lines one by one, and prints
BLEU of both against the references, joined in the same way. The third figure is that of --no-split.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from record import Record

import nmt_cli
from nmt_cli.text.lines import read_lines


def joined(lines: list[str]) -> list[str]:
    """Every second to fourth line together, always in the same way."""
    rng, result, first = random.Random(1), [], 0
    while first < len(lines):
        size = rng.randint(2, 4)
        result.append(" ".join(lines[first : first + size]))
        first += size
    return result


def main() -> None:
    if len(sys.argv) != 4:
        print("name a run and two files: python benchmarks/paragraphs.py RUN SOURCE REF")
        return
    source, reference = (list(read_lines(Path(name))) for name in sys.argv[2:])
    paragraphs, references = joined(source), joined(reference)
    with nmt_cli.load(sys.argv[1]) as translator:

        def texts(lines: list[str], split: bool) -> list[str]:
            return [translation.text for translation in translator.translate(lines, split=split)]

        one_by_one = joined(texts(source, False))
        systems = {"lines": one_by_one, "paragraphs": texts(paragraphs, True), "--no-split": texts(paragraphs, False)}
    scores = {}
    with Record(f"paragraphs-{Path(sys.argv[1]).name}") as record:
        for name, hypotheses in systems.items():
            found = nmt_cli.score({name: hypotheses}, references, metrics="bleu").scores[0]
            scores[name] = found.score
            share = scores[name] / scores["lines"]
            print(f"{name:<12} BLEU {scores[name]:6.2f}, {share:.3f} of the lines one by one")
            record.add(name, bleu=scores[name], share=share, signature=found.signature)


if __name__ == "__main__":
    main()
