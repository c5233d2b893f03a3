"""A glossary for `nmt translate`: terms that must be translated in one way, from a TSV of source and target."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.errors import NmtError
from nmt_cli.protect import Span, without_overlaps
from nmt_cli.text import UNSPACED, Normalization, normalize, read_lines, split_tsv


@dataclass(frozen=True)
class Glossary:
    """Terms by their source in lower case; the pattern finds any of them."""

    targets: dict[str, str]
    pattern: re.Pattern

    def find(self, text: str) -> list[Span]:
        """Terms in a line, the longest where several begin; whole words, in whatever case."""
        matches = [match for match in self.pattern.finditer(text) if match[0].lower() in self.targets]
        return without_overlaps([Span(m.start(), m.end(), self.targets[m[0].lower()]) for m in matches])


def occurrences(term: str, text: str) -> int:
    """How often a text has this term, as whole words; at the beginning of a sentence it may have a capital."""
    capital = term[0].upper() + term[1:]
    return len(re.findall("|".join(_edged(form) for form in dict.fromkeys((term, capital))), text))


def load_glossary(path: Path, form: Normalization) -> Glossary:
    targets: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        source, target = (normalize(column, form) for column in split_tsv(line, path, number))
        if not source or not target:
            raise NmtError(f"{path}, line {number}: a side of the entry is blank", "source, a tab, target")
        if targets.get(source.lower(), target) != target:
            raise NmtError(
                f'{path}, line {number}: "{source}" has two translations, "{targets[source.lower()]}" and "{target}"',
                "keep one of them",
            )
        targets[source.lower()] = target
    if not targets:
        raise NmtError(f"the glossary {path} is empty", "a line of it is: source, a tab, target")
    terms = sorted(targets, key=len, reverse=True)
    return Glossary(targets, re.compile("|".join(map(_edged, terms)), re.IGNORECASE))


def _edged(term: str) -> str:
    """Where no spaces are written, a word has no edge."""
    return rf"{_edge(term[0], '(?<!')}{re.escape(term)}{_edge(term[-1], '(?!')}"


def _edge(character: str, look: str) -> str:
    return rf"{look}\w)" if re.fullmatch(rf"[^\W{UNSPACED}]", character) else ""
