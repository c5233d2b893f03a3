"""A glossary for `nmt translate`: terms that must be translated in one way, from a TSV of source and target."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from nmt_cli.errors import NmtError
from nmt_cli.text.lines import Normalization, normalize, read_lines, split_tsv
from nmt_cli.text.words import UNSPACED
from nmt_cli.translate.protect import Span, without_overlaps


@dataclass(frozen=True)
class Term(Span):
    """A term in a line, and its translation, which counts as whole words."""

    def count_in(self, text: str) -> int:
        """At the beginning of a sentence it may have a capital."""
        return len(self._places(text))

    def without(self, text: str, count: int) -> str:
        for place in reversed(self._places(text)[:count]):
            text = text[: place.start()] + "\0" + text[place.end() :]
        return text

    def _places(self, text: str) -> list[re.Match]:
        forms = dict.fromkeys((self.wanted, capitalized(self.wanted)))
        found = re.finditer("|".join(map(re.escape, forms)), text)
        return [place for place in found if _is_whole(text, place.start(), place.end())]


@dataclass(frozen=True)
class Glossary:
    """Terms by their source in lower case. A dictionary, since a pattern of all would be tried at every character."""

    targets: dict[str, str]

    @cached_property
    def lengths(self) -> dict[str, list[int]]:
        """Of the terms that begin with a character."""
        found: dict[str, set[int]] = {}
        for term in self.targets:
            found.setdefault(term[0], set()).add(len(term))
        return {first: sorted(lengths) for first, lengths in found.items()}

    def find(self, text: str) -> list[Term]:
        """Terms in a line, the longest where several begin; whole words, in whatever case."""
        small = _small(text)
        found = []
        for start, first in enumerate(small):
            for stop in (start + length for length in self.lengths.get(first, ())):
                wanted = self.targets.get(small[start:stop])
                if wanted is not None and stop <= len(small) and _is_whole(small, start, stop):
                    found.append(Term(start, stop, wanted))
        return without_overlaps(found)


def _small(text: str) -> str:
    """In lower case, character by character: where İ would become two, places would move."""
    return "".join(small if len(small := character.lower()) == 1 else character for character in text)


def _is_whole(text: str, start: int, stop: int) -> bool:
    """Does no word go on beyond these places?"""
    return not (_joined(text[start], text[start - 1 : start]) or _joined(text[stop - 1], text[stop : stop + 1]))


def _joined(character: str, neighbour: str) -> bool:
    """Is the first or last character of a term in one word with its neighbour? Where no spaces are written, a word has
    no edge; an accent or a vowel sign is part of its word."""
    marked = neighbour and unicodedata.category(neighbour).startswith("M")
    return _has_edge(character) and bool(marked or re.match(r"\w", neighbour))


def capitalized(term: str) -> str:
    return term[0].upper() + term[1:]


def load_glossary(path: Path, form: Normalization) -> Glossary:
    targets: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        source, target = (normalize(column, form) for column in split_tsv(line, path, number))
        if not source or not target:
            raise NmtError(f"{path}, line {number}: a side of the entry is blank", "source, a tab, target")
        if (other := targets.get(_small(source), target)) != target:
            raise NmtError(
                f'{path}, line {number}: "{source}" has two translations, "{other}" and "{target}"',
                "keep one of them",
            )
        targets[_small(source)] = target
    if not targets:
        raise NmtError(f"the glossary {path} is empty", "a line of it is: source, a tab, target")
    return Glossary(targets)


def _has_edge(character: str) -> bool:
    marked = unicodedata.category(character).startswith("M")
    return marked or re.fullmatch(rf"[^\W{UNSPACED}]", character) is not None
