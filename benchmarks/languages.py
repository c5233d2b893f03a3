"""How well nmt prepare tells languages (nmt_cli/text/identify.py): right ones that it doubts, wrong ones it accepts.

    pip download django && unzip -d django Django*.whl
    python benchmarks/languages.py django de=ntrex/deu.gz en=multi30k/train.en.gz ...

A folder is searched for gettext catalogs. Measured with Django 5.2, and NTREX, Multi30k, Tatoeba and the Python docs as
text: 0 of 99 right languages doubted; 24 of 3,621 wrong ones accepted with 400 lines, 25 with 50, 175 with 20.
"""

import gettext
import random
import sys
from pathlib import Path

from record import Record

from nmt_cli.text.identify import _FREQUENT, other_language
from nmt_cli.text.lines import read_lines

OWN_SCRIPT = ("el", "he", "ja", "ko", "th", "zh")


def texts(names: list[str]) -> list[tuple[str, list[str]]]:
    """The language and the lines of each text."""
    found = []
    for name in names:
        language, equals, file = name.partition("=")
        if equals:
            found.append((language, [line for line in read_lines(Path(file)) if line]))
            continue
        catalogs: dict[str, list[str]] = {}
        for path in sorted(Path(name).rglob("LC_MESSAGES/django.mo")):
            place = path.parts[-3]
            if "_" not in place or place == "sr_Latn":
                with path.open("rb") as stream:
                    entries = gettext.GNUTranslations(stream)._catalog.items()
                sentences = [text for key, text in entries if key and isinstance(text, str) and " " in text]
                catalogs.setdefault(place, []).extend(sentences)
        found += [(place.split("_")[0], lines) for place, lines in catalogs.items() if len(lines) >= 150]
    return found


def main() -> None:
    if len(sys.argv) < 2:
        print("name texts: python benchmarks/languages.py FOLDER LANGUAGE=FILE ...")
        return
    with Record("languages") as record:
        measure(texts(sys.argv[1:]), record)


def measure(found: list[tuple[str, list[str]]], record: Record) -> None:
    entries = {code: codes for codes in _FREQUENT for code in codes.split()} | {code: code for code in OWN_SCRIPT}
    for size in (20, 50, 400):
        chance = random.Random(5)
        samples = [(language, chance.sample(lines, min(size, len(lines)))) for language, lines in found]
        doubted = [language for language, lines in samples if other_language(lines, language)]
        wrong = [
            (language, other, other_language(lines, other))
            for language, lines in samples
            for other in entries
            if language in entries and entries[other] != entries[language]
        ]
        accepted = [(language, other) for language, other, looks_like in wrong if not looks_like]
        print(f"{size} lines: {len(doubted)} of {len(samples)} right languages doubted {doubted},")
        print(f"  {len(accepted):,} of {len(wrong):,} wrong languages accepted {accepted[:10]}")
        counts = {"doubted": len(doubted), "right": len(samples), "accepted": len(accepted), "wrong": len(wrong)}
        record.add(f"{size} lines", **counts)


if __name__ == "__main__":
    main()
