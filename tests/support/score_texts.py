"""Made-up German texts for tests of scoring: two references, two systems, a source. And a reader of TSV output."""

from __future__ import annotations

import csv
import io
import random

from support.checks import Result

WORDS = "der die das Hund Katze läuft schläft über Straße, grüne Wiese »nach« Hause heute nicht sehr".split()  # noqa: SIM905


def sentences(seed: int, count: int = 60) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, 14))) + "." for _ in range(count)]


def worsened(lines: list[str], seed: int, share: float) -> list[str]:
    chance = random.Random(seed)
    return [
        " ".join(word if chance.random() > share else chance.choice(WORDS) for word in line.split()) for line in lines
    ]


REFERENCE = sentences(1)
FILES = {
    "ref.de": REFERENCE,
    "ref2.de": worsened(REFERENCE, 2, 0.4),
    "src.en": sentences(3),
    "a.de": worsened(REFERENCE, 4, 0.3),
    "b.de": worsened(REFERENCE, 5, 0.45),
}


def tsv_rows(result: Result) -> list[dict[str, str]]:
    assert result.code == 0, result.err
    return list(csv.DictReader(io.StringIO(result.text), delimiter="\t", quoting=csv.QUOTE_NONE))
