"""Which package splits text into sentences best? python benchmarks/sentences.py

    pip install sentencex pysbd sentence-splitter syntok      # in an environment of its own
    PYTHONPATH=. python benchmarks/sentences.py

Two to four lines of ntrex (news in eleven languages and eight scripts; ../shared/data) from one document are joined
into one line. Each line is a segment, mostly one sentence. "found" is the share of the joints behind a final mark
at which a package splits. "inside" is the number of other splits per 100 lines. Some of them are right, as some lines
have two sentences.
Packages that are not installed are left out, and a package that does not know a language has a dash.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import accumulate

from record import DATA, Record

from nmt_cli.text.languages import puts_spaces_between_sentences
from nmt_cli.text.lines import read_lines
from nmt_cli.text.sentences import split_sentences

NTREX = DATA / "ntrex"
LANGUAGES = {
    **{"eng": "en", "deu": "de", "fra": "fr", "ces": "cs", "rus": "ru", "ell": "el"},
    **{"arb": "ar", "hin": "hi", "tha": "th", "jpn": "ja", "zho-CN": "zh"},
}
FINAL = re.compile(r"[.!?…。！？।؟;][\"'»”’“)\]」』]*\s*$")
Split = Callable[[str], list[str]]


def splitters(language: str) -> Iterator[tuple[str, Split | None]]:
    """Each package as a function from a text to sentences."""
    yield "nmt", lambda text: split_sentences(text, language)
    if find_spec("sentencex"):
        import sentencex

        yield "sentencex", lambda text: sentencex.segment(language, text)
    if find_spec("pysbd"):
        import pysbd

        known = language in pysbd.languages.LANGUAGE_CODES
        yield "pysbd", pysbd.Segmenter(language, clean=False).segment if known else None
    if find_spec("sentence_splitter"):
        from sentence_splitter import SentenceSplitter, SentenceSplitterException

        try:
            yield "sentence_splitter", SentenceSplitter(language).split
        except SentenceSplitterException:
            yield "sentence_splitter", None
    if find_spec("syntok"):
        from syntok import segmenter

        def with_syntok(text: str) -> list[str]:
            sentences = [sentence for paragraph in segmenter.process(text) for sentence in paragraph]
            return ["".join(token.spacing + token.value for token in sentence) for sentence in sentences]

        yield "syntok", with_syntok if language in ("en", "de", "es") else None


def joined(language: str) -> list[list[str]]:
    """Groups of two to four lines of a document."""
    lines, documents = (list(read_lines(NTREX / f"{name}.gz")) for name in (language, "DOCUMENT_IDS.tsv"))
    rng, groups, first = random.Random(1), [], 0
    while first < len(lines):
        last = first + rng.randint(2, 4)
        size = sum(name == documents[first] for name in documents[first:last])
        groups.append(lines[first : first + size])
        first += size
    return [group for group in groups if len(group) > 1]


def ends(parts: list[str]) -> list[int]:
    """Numbers of characters other than spaces before each end of a part, but the last."""
    return list(accumulate(len("".join(part.split())) for part in parts))[:-1]


def main() -> None:
    if not NTREX.is_dir():
        print(f"skipped: {NTREX} is not here")
        return
    with Record("sentences") as record:
        measure(record)


def measure(record: Record) -> None:
    print(f"{'':>8}", *(f"{name:>26}" for name, _ in splitters("en")))
    seconds: dict[str, float] = {}
    for name, language in LANGUAGES.items():
        groups, space = joined(name), " " if puts_spaces_between_sentences(language) else ""
        cells = []
        for package, split in splitters(language):
            if split is None:
                cells.append("-")
                continue
            found = inside = total = 0
            began = time.perf_counter()
            results = [split(space.join(group)) for group in groups]
            seconds[package] = seconds.get(package, 0) + time.perf_counter() - began
            for group, result in zip(groups, results, strict=True):
                gold, cut = ends(group), set(ends(result))
                marked = {end for end, line in zip(gold, group, strict=False) if FINAL.search(line)}
                found, inside, total = found + len(marked & cut), inside + len(cut - {*gold}), total + len(marked)
            lines = sum(map(len, groups))
            cells.append(f"found {found / total:4.0%} inside {100 * inside / lines:5.1f}")
            record.add(f"{language}, {package}", found=found / total, inside_per_100_lines=100 * inside / lines)
        print(f"{language:>8}", *(f"{cell:>26}" for cell in cells), flush=True)
    for package, took in seconds.items():
        module = {"nmt": "sentencex"}.get(package, package)
        code = f"import time; began = time.perf_counter(); import {module}; print(time.perf_counter() - began)"
        start = min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3))
        print(f"{package}: {took:.2f} s for its languages, {1000 * start:.0f} ms to import")
        record.add(package, seconds=took, import_seconds=start)


if __name__ == "__main__":
    main()
