"""The first step of `nmt prepare`: read every file once, and warn of corpora that look like a mistake."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.data.blocks import Pair
from nmt_cli.errors import NmtError
from nmt_cli.recipe.schema import Corpus, Data
from nmt_cli.terminal.console import ShowProgress
from nmt_cli.text.identify import likely_language, other_language
from nmt_cli.text.lines import is_blank, is_read_once, name_of, read_blocks, read_lines, split_tsv

_SAMPLE = 200  # a sample has from this many lines to twice as many, or all lines of a shorter file


@dataclass(frozen=True)
class CheckedCorpus:
    """A corpus that was read once: both sides are valid text and have the same number of lines."""

    given: Corpus  # as the recipe names it
    readable: Corpus  # standard input and pipes are replaced by temporary files
    lines: int
    sha256: tuple[str, ...]
    sample: list[Pair]  # pairs at even distances

    def pairs(self) -> Iterator[Pair]:
        source, target = self.readable.source, self.readable.target
        if target is None:
            return (split_tsv(line, source, number) for number, line in enumerate(read_lines(source), 1))
        return zip(read_lines(source), read_lines(target), strict=True)


Checked = Mapping[str, list[CheckedCorpus]]  # the corpora of each split


def check_corpora(
    split: str, corpora: tuple[Corpus, ...], data: Data, spool: Path, show: ShowProgress
) -> list[CheckedCorpus]:
    """Read the corpora of a split. `spool` is a folder for temporary files."""
    checked = []
    for number, given in enumerate(corpora):
        # A copy is plain text, whatever the pipe is called.
        copies = [
            spool / f"{split}-{number}-{side}" if is_read_once(path) else None for side, path in enumerate(given.paths)
        ]
        scans = [_check_file(*files, given.target is None, show) for files in zip(given.paths, copies, strict=True)]
        counts, digests, sides = zip(*scans, strict=True)
        names = [name_of(path) for path in given.paths]
        if len(set(counts)) > 1:
            raise NmtError(
                f"{names[0]} has {counts[0]:,} lines, but {names[1]} has {counts[1]:,}",
                "line n of one file must be the translation of line n of the other; nmt counts lines as wc -l does",
            )
        sample = list(zip(*sides, strict=True))
        if given.target is None:
            sample = [split_tsv(line, given.source, 0) for line in sides[0]]
        elif digests[0] == digests[1] and counts[0] and data.clean.identical:
            hint = "name the translations; --set data.clean.identical=false allows source and target to be the same"
            raise NmtError(f"{names[0]} and {names[1]} have the same content", hint)
        readable = Corpus(*(copy or path for path, copy in zip(given.paths, copies, strict=True)))
        checked.append(CheckedCorpus(given, readable, counts[0], digests, sample))
    if checked and not any(corpus.lines for corpus in checked):
        listed = ", ".join(str(corpus.given) for corpus in checked)
        raise NmtError(f"the {split} corpus is empty: {listed}", "name files with at least one line")
    return checked


def _check_file(path: Path, copy_to: Path | None, tsv: bool, show: ShowProgress) -> tuple[int, str, list[str]]:
    """The number of lines of a file, their hash and a sample. Text that can be read only once is copied to a file.

    The sample has every n-th line. n doubles whenever the sample is full, so two files with the same number of lines
    have the same n, and their samples are sentence pairs.
    """
    lines, distance = 0, 1
    digest = hashlib.sha256()
    sample: list[str] = []
    with copy_to.open("wb") if copy_to else nullcontext() as copy:
        for block in read_blocks(path):
            if tsv:
                for number, line in enumerate(block, lines + 1):
                    split_tsv(line, path, number)
            sample += block[-lines % distance :: distance]
            while len(sample) > 2 * _SAMPLE:
                sample, distance = sample[::2], 2 * distance
            lines += len(block)
            data = "".join(line + "\n" for line in block).encode()
            digest.update(data)
            if copy is not None:
                copy.write(data)
            show("checking", lines, 0)
    return lines, digest.hexdigest(), sample


def find_warnings(corpora: Checked, data: Data) -> Iterator[str]:
    """Warn of the same corpus twice, of text that is not translated, and of text in other languages."""
    seen: dict[tuple[str, ...], str] = {}
    if corpora["train"] and not (data.source_lang and data.target_lang):
        yield _unknown_languages(corpora["train"][0].sample, data)
    for split, checked in corpora.items():
        for corpus in checked:
            name = f"the {split} corpus {corpus.given}"
            if corpus.sha256 in seen:
                yield f"{name} has the same content as {seen[corpus.sha256]}"
            seen.setdefault(corpus.sha256, name)
            pairs = [pair for pair in corpus.sample if not any(map(is_blank, pair))]
            same = sum(source == target for source, target in pairs)
            if 2 * same > len(pairs):
                yield f"{name}: source and target are the same in {same / len(pairs):.0%} of the lines"
            elif pairs:
                yield from _language_warnings(name, pairs, data)


def _unknown_languages(pairs: list[Pair], data: Data) -> str:
    """Languages that neither an option nor the name of a file states."""
    sides = {"source": data.source_lang, "target": data.target_lang}
    unknown = {side: number for number, side in enumerate(sides) if not sides[side]}
    likely = {side: likely_language([pair[number] for pair in pairs]) for side, number in unknown.items()}
    options = " ".join(f"--{side}-lang {language or 'CODE'}" for side, language in likely.items())
    return (
        f"the language of the {' and of the '.join(unknown)} is not known, so nmt cannot check that the text is in it; "
        f"state it: {options}"
    )


def _language_warnings(name: str, pairs: list[Pair], data: Data) -> Iterator[str]:
    languages = data.source_lang, data.target_lang
    sides = list(zip(*pairs, strict=True))
    found = [other_language(lines, language) for lines, language in zip(sides, languages, strict=True)]
    swapped = [other_language(lines, language) for lines, language in zip(sides, reversed(languages), strict=True)]
    if all(found) and not any(swapped):
        yield (
            f"{name}: the source looks like {languages[1]} and the target like {languages[0]}: "
            f"swap the two sides, or set --source-lang {languages[1]} and --target-lang {languages[0]}"
        )
        return
    for side, other, language in zip(("source", "target"), found, languages, strict=True):
        if other:
            yield f"{name}: the {side} looks like {other}, but --{side}-lang (data.{side}_lang) is {language}"
