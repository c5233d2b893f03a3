"""A glossary for `nmt translate`: terms that must be translated in one way, from a TSV of source and target."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.errors import NmtError
from nmt_cli.text.languages import UNSPACED
from nmt_cli.text.lines import Normalization, normalize, read_lines, split_tsv
from nmt_cli.translate.protect import Span, without_overlaps


@dataclass(frozen=True)
class Term(Span):
    """A term in a line. Its translation must be whole words."""


class Glossary:
    """Target terms by their source in lower case. A dictionary is faster than one pattern of thousands of terms."""

    def __init__(self, targets: dict[str, str]) -> None:
        self.targets = targets
        self.lengths: dict[str, set[int]] = {}  # of the terms that begin with each character
        for term in targets:
            self.lengths.setdefault(term[0], set()).add(len(term))

    def find(self, text: str) -> list[Term]:
        """Terms in a line: whole words, in upper or lower case. Where several begin, the longest."""
        lower = _lower(text)
        terms = []
        for start, first in enumerate(lower):
            for stop in (start + length for length in self.lengths.get(first, ())):
                wanted = self.targets.get(lower[start:stop])
                if wanted is not None and stop <= len(lower) and _is_whole_word(lower, start, stop):
                    terms.append(Term(start, stop, wanted))
        return without_overlaps(terms)


def terms_in(translation: str, wanted: Sequence[Term]) -> list[Term]:
    """The contents of the wanted terms in a translation. At the beginning of a sentence a term may have a capital."""
    texts = Glossary({_lower(term.wanted): term.wanted for term in wanted}).find(translation)
    found = [translation[term.start : term.stop] for term in texts]
    return [Term(0, 0, form) for text in found for form in {text, text[0].lower() + text[1:]}]


def _lower(text: str) -> str:
    """Lower case, character by character. İ stays, because it becomes two characters, which would shift positions."""
    return "".join(lower if len(lower := character.lower()) == 1 else character for character in text)


def _is_whole_word(text: str, start: int, stop: int) -> bool:
    """Does text[start:stop] begin and end where words begin and end?"""
    return not (_is_joined(text[start], text[start - 1 : start]) or _is_joined(text[stop - 1], text[stop : stop + 1]))


def _is_joined(character: str, neighbor: str) -> bool:
    """Are the first or last character of a term and its neighbor in one word? Scripts without spaces have no words."""
    spaced_letter = _is_accent(character) or re.fullmatch(rf"[^\W{UNSPACED}]", character)
    return bool(spaced_letter and neighbor and (_is_accent(neighbor) or re.match(r"\w", neighbor)))


def _is_accent(character: str) -> bool:
    """Also a vowel sign, which belongs to its word like an accent."""
    return unicodedata.category(character).startswith("M")


def capitalized(term: str) -> str:
    return term[0].upper() + term[1:]


def make_glossary(terms: str | Path | Mapping[str, str], form: Normalization) -> Glossary:
    """A glossary from a TSV file, or from {source: target}."""
    if isinstance(terms, Mapping):
        entries = [(f'"{source}"', source, target) for source, target in terms.items()]
        name = "glossary"
    else:
        path = Path(terms)
        numbered = [(number, line) for number, line in enumerate(read_lines(path), 1) if line.strip()]
        entries = [(f"{path}, line {number}", *split_tsv(line, path, number)) for number, line in numbered]
        name = f"glossary {path}"
    targets: dict[str, str] = {}
    for place, *columns in entries:
        source, target = (normalize(column, form) for column in columns)
        if not source or not target:
            raise NmtError(f"{place}: a side of the entry is blank", "write the source, a tab, and the target")
        if (other := targets.get(_lower(source), target)) != target:
            problem = f'"{source}" has two translations, "{other}" and "{target}"'
            raise NmtError(f"{place}: {problem}", "keep one of the two lines")
        targets[_lower(source)] = target
    if not targets:
        raise NmtError(f"the {name} is empty", "write one term per line: source, a tab, target")
    return Glossary(targets)
