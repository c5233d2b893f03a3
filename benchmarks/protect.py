"""What does --protect bring? python benchmarks/protect.py RUN

    python benchmarks/protect.py runs/python-docs-en-fr

Draws 500 English lines with placeholders, tags, URLs, numbers, code and so on from ../shared/data: python-docs-en-fr
(test and dev), ntrex, tatoeba-en-de and multi30k. These texts have few placeholders and no emoji. For a kind with fewer
than 25 lines, things that are common in real messages are inserted into real lines of multi30k.

Prints the share of things that survive the translation, by kind: without --protect, with it, with single rules of
protect.py switched off, and without the second attempt. A number of two digits or more survives if its digits and its
decimal mark do. Everything else must be there letter by letter. The patterns below are not those of protect.py.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections import Counter
from pathlib import Path
from unittest import mock

from nmt_cli.text.lines import read_lines
from nmt_cli.text.vocab import UNK
from nmt_cli.translate import line as line_module
from nmt_cli.translate import protect
from nmt_cli.translate.translator import Translator, load

DATA = Path(__file__).parents[2] / "shared/data"
TEXTS = [
    *("python-docs-en-fr/test.en.gz", "python-docs-en-fr/dev.en.gz", "ntrex/eng.gz"),
    *("tatoeba-en-de/test.en.gz", "tatoeba-en-de/dev.en.gz", "tatoeba-en-de/train.en.gz"),
    *("multi30k/test_2016_flickr.en.gz", "multi30k/train.en.gz"),
]
LINES, FEW = 500, 25
KINDS = {
    "URL": r"https?://[^\s<>\"'`)]*[\w/]",
    "e-mail": r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    "tag": r"</?[A-Za-z][^<>]*>",
    "entity": r"&(?:#\d+|[a-z]+);",
    "braces": r"[$%]?\{[^{}]*\}",
    "percent": r"(?<![\d%])%(?:\(\w+\)|\d+\$)?[\d.]*[a-z](?![a-z])",
    "mention": r"(?<![\w&`])[@#][A-Za-z]\w+",
    "version": r"(?<![\w.])v?\d+(?:\.\d+){2,}(?![\w])",
    "size": r"(?<!\w)\d+[x×]\d+(?!\w)",
    "emoji": "[\U0001f300-\U0001faff☀-➿][\U0001f300-\U0001faff\ufe0f\u200d]*",
    "number": r"(?<![\w.,:/-])(?:\d{2,}|\d+[.,:]\d+)(?:[.,:]\d+)*(?![\w.,:/-]*\w)",
    "code": r"``[^`]+``|(?<=[a-z]:)`[^`<>]+`",
    "foreign word": r"\w*[^\W\x00-\xff\u0152\u0153]\w*",  # not English, not French
    "option, path": r"(?<![\w-])--[a-z][\w-]+|(?<![\w:/<.])/[a-z]+(?:/[\w.-]+)+",
}
INSERTED = {
    "URL": ["https://example.org/a?b=1&c=2", "http://www.w3.org/TR/xml/"],
    "e-mail": ["jane.doe@example.org", "help+fr@mail.example.com"],
    "entity": ["&nbsp;", "&amp;", "&#39;"],
    "braces": ["{name}", "{0}", "${HOME}", "{{count}}"],
    "percent": ["%s", "%d", "%1$s", "%(name)s"],
    "mention": ["@jane_doe", "#travel"],
    "version": ["1.2.3", "v3.11.0", "10.0.19041.1"],
    "size": ["1920x1080", "3×4"],
    "emoji": ["😀", "👍🏽", "❤️", "🚀🚀"],
    "foreign word": ["Gdańsk", "Пушкин", "北京", "Erdoğan", "Ελλάδα"],
    "option, path": ["--force", "--dry-run", "/etc/hosts", "/usr/local/bin"],
}
PATTERNS = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}


def things(line: str) -> Counter[tuple[str, str]]:
    """(kind, text) of everything in a line that a translation should keep. Each character counts once."""
    found: Counter[tuple[str, str]] = Counter()
    for kind, pattern in PATTERNS.items():
        found.update((kind, match[0]) for match in pattern.finditer(line))
        line = pattern.sub(lambda match: "\0" * len(match[0]), line)
    return found


def draw() -> list[str]:
    """The same 500 lines every time: the same number for each kind, if there are so many."""
    shuffled = random.Random(1)
    by_kind: dict[str, list[str]] = {kind: [] for kind in KINDS}
    lines = [line for text in TEXTS for line in read_lines(DATA / text) if 20 <= len(line) <= 300]
    shuffled.shuffle(lines)
    for line in lines:
        for kind in {kind for kind, _ in things(line)}:
            by_kind[kind].append(line)
    plain = [line for line in read_lines(DATA / TEXTS[-2]) if not things(line) and line.count(" ") > 5]
    for kind, texts in INSERTED.items():
        for n in range(FEW - len(by_kind[kind])):
            words = plain.pop().split(" ")
            words.insert(shuffled.randrange(1, len(words)), texts[n % len(texts)])
            by_kind[kind].append(" ".join(words))
    drawn: dict[str, None] = {}
    while len(drawn) < LINES:
        for kind in sorted(KINDS, key=lambda kind: len(by_kind[kind])):
            if by_kind[kind]:
                drawn[by_kind[kind].pop()] = None
    return list(drawn)[:LINES]


def survivors(lines: list[str], translator: Translator, **options: bool) -> tuple[list[Counter[str]], int]:
    """The number of things that survive, by kind, for each line; and how many lines were translated again."""
    translations = translator.translate(lines, **options)
    kept = []
    for line, translation in zip(lines, translations, strict=True):
        kept.append(Counter[str]())
        for (kind, text), count in things(line).items():
            span = protect.Span(0, 0, text, number=kind == "number")
            kept[-1][kind] += min(count, span.count_in(translation.text))
    return kept, sum("restored" in translation.flags for translation in translations)


def main() -> None:
    if len(sys.argv) != 2:
        print("name a run: python benchmarks/protect.py RUN")
        return
    if not all((DATA / text).is_file() for text in TEXTS):
        print(f"skipped: the texts are not in {DATA}")
        return
    lines = draw()
    total = Counter(kind for line in lines for kind, _ in things(line).elements())
    everything = sum(total.values())
    print(f"{len(lines)} lines, {everything} things; {', '.join(INSERTED)}: inserted up to {FEW} lines")
    with load(sys.argv[1]) as translator:
        seconds = [time.perf_counter()]
        without, _ = survivors(lines, translator, protect=False)
        seconds.append(time.perf_counter())
        kept, again = survivors(lines, translator)
        seconds.append(time.perf_counter())
        plain, full = sum(without, Counter()), sum(kept, Counter())
        print(f"{seconds[1] - seconds[0]:.0f} s without --protect, {seconds[2] - seconds[1]:.0f} s with it", end="; ")
        print(f"{again} lines were translated again; {translator.engine}")
        print(f"\n{'kind':<14}{'things':>8}{'without':>10}{'with':>8}")
        for kind in KINDS:
            print(f"{kind:<14}{total[kind]:>8}{plain[kind] / total[kind]:>10.0%}{full[kind] / total[kind]:>8.0%}")
        shares = [sum(counts.values()) / everything for counts in (plain, full)]
        print(f"{'all':<14}{everything:>8}{shares[0]:>10.1%}{shares[1]:>8.1%}")

        def show(name: str, affected: list[int]) -> None:
            """Translate the affected lines once more. The others do not change."""
            changed, _ = survivors([lines[n] for n in affected], translator)
            now, before = sum(changed, Counter()), sum((kept[n] for n in affected), Counter())
            lost = ", ".join(f"{before[kind] - now[kind]} {kind}" for kind in KINDS if before[kind] != now[kind])
            share = (sum(full.values()) - sum(before.values()) + sum(now.values())) / everything
            print(f"{name:<20}{len(affected):>6}{share:>10.1%}   {lost}", flush=True)

        def matching(pattern: re.Pattern) -> list[int]:
            return [n for n, line in enumerate(lines) if pattern.search(line)]

        print(f"\n{'switched off':<20}{'lines':>6}{'survive':>10}   more things lost")
        for name, rule in protect.RULES.items():
            others = re.compile("|".join(other for other in protect.RULES.values() if other is not rule), re.VERBOSE)
            with mock.patch.object(protect, "_PATTERN", others):
                show(f"rule {name}", matching(re.compile(rule, re.VERBOSE)))
        affected = matching(protect._NUMBER)
        with mock.patch.object(protect, "_NUMBER", re.compile(r"(?!)")):
            show("numbers", affected)
        vocab = translator.models[0].vocab.source
        several = [n for n, line in enumerate(lines) if things(line).total() > 1]
        with mock.patch.object(line_module, "ATTEMPTS", 1):
            show("second attempt", several)
        with mock.patch.object(protect, "_unknown_words", lambda text, is_known: []):
            show("unknown words", [n for n, line in enumerate(lines) if UNK in vocab.encode(line)])


if __name__ == "__main__":
    main()
