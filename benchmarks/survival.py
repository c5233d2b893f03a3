"""What does --protect bring, and what a glossary? python benchmarks/survival.py RUN SOURCE REFERENCE [--rules]

    python benchmarks/survival.py runs/python-docs-en-fr test.en.gz test.fr.gz

1. The share of things that survive the translation of tests/translate/survival.tsv (made by tools/survival_corpus.py),
   by kind, without --protect and with it. A number survives if its digits and its decimal mark do, a date in words if
   its numbers do, a pair of tags if text stands between them. Everything else must be there letter by letter.
2. chrF of SOURCE, a test set of the model, without --protect and with it. Protection must not hurt the rest.
3. A glossary of SOURCE and REFERENCE: words of 4 letters or more in at least MANY lines, each with the word of the
   reference that has the highest Dice coefficient, if it is DICE or more. On the lines whose reference has the term,
   the share of terms that are there, chrF, and log p for each piece, without the glossary and with it.
4. With --rules: what survives if one rule of protect.py is switched off.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

from record import Record
from sacrebleu.metrics import CHRF

from nmt_cli.text.lines import read_lines
from nmt_cli.translate import line as line_module
from nmt_cli.translate import protect
from nmt_cli.translate.results import Translation
from nmt_cli.translate.translator import Translator, load

CORPUS = Path(__file__).parents[1] / "tests/translate/survival.tsv"
MANY, DICE = 8, 0.6
WORD = re.compile(r"[^\W\d_]{4,}")
Line = tuple[str, list[tuple[str, str]]]  # a line and the (kind, text) of its things


def read_corpus() -> list[Line]:
    rows = [row.split("\t") for row in read_lines(CORPUS) if not row.startswith("# ")]
    return [(line, list(zip(things[::2], things[1::2], strict=True))) for _, line, *things in rows]


def canonical(text: str) -> str:
    """1,234.5 and 1 234,5 are the same number."""
    return re.sub(r"(?<=\d)[.,:](?=\d)", "·", re.sub(r"(?<=\d)[.,\u00a0\u202f ](?=\d{3}(?!\d))", "", text))


def survives(kind: str, text: str, times: int, translation: str) -> bool:
    """Does the translation contain the thing this many times?"""
    if kind == "pair":
        begin, end = map(re.escape, text.split("…"))
        return len(re.findall(rf"{begin}[^<>]*\w[^<>]*{end}", translation)) >= times
    if kind in ("number", "unit", "written date"):
        return all(
            len(re.findall(rf"(?<![\d·]){number}(?![\d·])", canonical(translation))) >= times
            for number in re.findall(r"[\d·]+", canonical(text))
        )
    return translation.count(text) >= times


def survivors(lines: list[Line], translations: Iterable[Translation]) -> Counter[str]:
    kept: Counter[str] = Counter()
    for (_, things), translation in zip(lines, translations, strict=True):
        for (kind, text), times in Counter(things).items():
            kept[kind] += times * survives(kind, text, times, translation.text)
    return kept


def timed(translator: Translator, lines: list[str], **options: bool) -> tuple[list[Translation], float]:
    start = time.perf_counter()
    return translator.translate(lines, **options), time.perf_counter() - start


def chrf(translations: Iterable[Translation], references: list[str]) -> float:
    return CHRF().corpus_score([translation.text for translation in translations], [references]).score


def make_terms(sources: list[str], references: list[str]) -> dict[str, str]:
    """Pairs of words that mostly stand in the same pairs of lines."""
    words = [[set(WORD.findall(line.lower())) for line in side] for side in (sources, references)]
    counts = [Counter(word for line in side for word in line) for side in words]
    together = Counter(
        (a, b) for one, two in zip(*words, strict=True) for a in one for b in two if counts[0][a] >= MANY
    )
    dice = {(a, b): 2 * n / (counts[0][a] + counts[1][b]) for (a, b), n in together.items() if a != b}
    return {a: b for (a, b), share in sorted(dice.items(), key=lambda item: (item[1], item[0])) if share >= DICE}


def print_survival(lines: list[Line], translator: Translator, record: Record) -> None:
    texts = [line for line, _ in lines]
    total = Counter(kind for _, things in lines for kind, _ in things)
    (plain, seconds), (full, more_seconds) = timed(translator, texts, protect=False), timed(translator, texts)
    without, kept = survivors(lines, plain), survivors(lines, full)
    again = sum("restored" in translation.flags for translation in full)
    print(
        f"{len(lines)} lines, {total.total()} things, {translator.engine}: {seconds:.0f} s without --protect, ", end=""
    )
    print(f"{more_seconds:.0f} s with it; {again} lines were translated again")
    print(f"\n{'kind':<14}{'things':>8}{'without':>10}{'with':>8}")
    for kind, count in total.items():
        print(f"{kind:<14}{count:>8}{without[kind] / count:>10.0%}{kept[kind] / count:>8.0%}")
        record.add(kind, things=count, without=without[kind] / count, with_protect=kept[kind] / count)
    shares = without.total() / total.total(), kept.total() / total.total()
    print(f"{'all':<14}{total.total():>8}{shares[0]:>10.1%}{shares[1]:>8.1%}\n", flush=True)
    figures = {"seconds_without": seconds, "seconds": more_seconds, "translated_again": again}
    record.add("all", things=total.total(), without=shares[0], with_protect=shares[1], **figures)


def print_rules(lines: list[Line], translator: Translator) -> None:
    """Translate the lines that a rule matches without this rule. The other lines do not change."""

    def show(name: str, affected: list[Line]) -> None:
        texts = [line for line, _ in affected]
        before = survivors(affected, translator.translate(texts))
        with switched_off:
            now = survivors(affected, translator.translate(texts))
        lost = ", ".join(f"{before[kind] - now[kind]} {kind}" for kind in before if before[kind] != now[kind])
        print(f"{name:<16}{len(affected):>6}   {lost}", flush=True)

    print(f"\n{'switched off':<16}{'lines':>6}   more things lost")
    for rules, pattern in ((protect.RULES, "_PATTERN"), (protect.CODE, "_CODE")):
        for name in rules.keys() - {"word"}:  # CODE has the kinds of words
            others = "|".join(rule for other, rule in rules.items() if other != name)
            switched_off = mock.patch.object(protect, pattern, re.compile(others, re.VERBOSE))
            rule = re.compile(rules[name], re.VERBOSE)
            show(name, [line for line in lines if any(map(rule.search, [line[0], *line[0].split()]))])
    switched_off = mock.patch.object(protect, "_NUMBER", re.compile(r"(?!)"))
    show("numbers", [line for line in lines if protect._NUMBER.search(line[0])])
    switched_off = mock.patch.object(protect, "_unknown_words", lambda text, is_known: [])
    show("unknown words", [line for line in lines if not line[0].isascii()])
    switched_off = mock.patch.object(line_module, "ATTEMPTS", 1)
    show("second attempt", [line for line in lines if len(line[1]) > 1])


def print_glossary(sources: list[str], references: list[str], translator: Translator, record: Record) -> None:
    terms = make_terms(sources, references)
    wanted = [
        {b for a, b in terms.items() if a in WORD.findall(source.lower()) and b in WORD.findall(reference.lower())}
        for source, reference in zip(sources, references, strict=True)
    ]
    chosen = [n for n, words in enumerate(wanted) if words]
    texts, total = [sources[n] for n in chosen], sum(map(len, wanted))
    print(f"\nglossary of {len(terms)} terms, {len(chosen)} lines; {total} times the reference has the term")
    for name, glossary in (("without", {}), ("with", {**terms})):
        found = translator.translate(texts, glossary=glossary)
        there = sum(len(wanted[n] & set(WORD.findall(t.text.lower()))) for n, t in zip(chosen, found, strict=True))
        pieces = sum(translation.best.logprob for translation in found) / sum(t.best.length for t in found)
        score = chrf(found, [references[n] for n in chosen])
        print(f"{name:<8} terms there {there / total:.1%}  chrF {score:.1f}  log p of a piece {pieces:.3f}", flush=True)
        record.add(f"{name} glossary", terms=len(terms), there=there / total, chrf=score, logp=pieces)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--rules", action="store_true")
    args = parser.parse_args()
    lines, sources, references = read_corpus(), list(read_lines(args.source)), list(read_lines(args.reference))
    with load(args.run) as translator, Record(f"survival-{Path(args.run).name}") as record:
        print_survival(lines, translator, record)
        for name, on in (("without", False), ("with", True)):
            found, seconds = timed(translator, sources, protect=on)
            restored = sum("restored" in translation.flags for translation in found)
            score = chrf(found, references)
            print(f"{args.source.name} {name:<8} chrF {score:.1f}  {seconds:.0f} s, {restored} lines translated again")
            record.add(f"{args.source.name}, {name} --protect", chrf=score, seconds=seconds, translated_again=restored)
        print_glossary(sources, references, translator, record)
        if args.rules:
            print_rules(lines, translator)


if __name__ == "__main__":
    main()
