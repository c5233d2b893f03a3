"""The texts that are scored, from files or from Python lists, and warnings of likely mistakes in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from nmt_cli.errors import NmtError
from nmt_cli.text.languages import UNSPACED
from nmt_cli.text.lines import check_stdin_once, is_blank, name_of, read_lines

_SUBWORD_MARKS = re.compile(r"@@(?: |$)|▁")  # marks of subword-nmt and SentencePiece
_NOT_FOR_13A = re.compile(f"[{UNSPACED}\uac00-\ud7af]")  # Korean spaces separate phrases rather than words

Lines = Sequence[str]


@dataclass(frozen=True)
class Texts:
    """Lines by the name of their system or reference. All lists have the same length."""

    systems: dict[str, list[str]]
    references: dict[str, list[str]]
    source: list[str] | None

    @property
    def lines(self) -> int:
        return len(next(iter(self.references.values())))


def read_texts(systems: list[Path], references: list[Path], source: Path | None) -> tuple[Texts, list[str]]:
    """The lines of files, by file name, and a warning for each byte order mark that was removed."""
    paths = [*systems, *references, *([source] if source else [])]
    check_stdin_once(paths)
    for group in (systems, references):
        if repeated := [path for path in group if group.count(path) > 1]:
            raise NmtError(f"{repeated[0]} is named twice", "name every file once")

    warnings: list[str] = []

    def read(path: Path) -> list[str]:
        warning = f"{name_of(path)}: a byte order mark at its beginning was removed"
        return list(read_lines(path, on_bom=lambda: warnings.append(warning)))

    texts = Texts(
        systems={name_of(path): read(path) for path in systems},
        references={name_of(path): read(path) for path in references},
        source=read(source) if source else None,
    )
    _check_counts(texts, name_of(source) if source else "")
    return texts, warnings


def given_texts(
    hypotheses: Lines | Mapping[str, Lines],
    references: Lines | Sequence[Lines] | Mapping[str, Lines],
    source: Lines | None,
) -> Texts:
    """The texts of a call from Python. Lists without a name are called "system" and "reference"."""
    texts = Texts(
        systems=_named("hypotheses", "system", hypotheses),
        references=_named("references", "reference", references),
        source=None if source is None else _lines("source", source),
    )
    _check_counts(texts, "source")
    return texts


def _named(argument: str, label: str, given: Lines | Sequence[Lines] | Mapping[str, Lines]) -> dict[str, list[str]]:
    if not isinstance(given, str | Mapping):
        given = list(given)  # an iterator can be read only once
    if isinstance(given, Mapping):
        named = dict(given)
    elif isinstance(given, str) or all(isinstance(line, str) for line in given):
        named = {label: given}  # type: ignore[dict-item]
    else:
        named = {f"{label} {number}": lines for number, lines in enumerate(given, 1)}
    if not named:
        raise NmtError(f"{argument} is empty: there is nothing to score", "give a list with a sentence in each string")
    return {name: _lines(argument, lines) for name, lines in named.items()}


def _lines(argument: str, lines: object) -> list[str]:
    if isinstance(lines, str) or not isinstance(lines, Iterable):
        raise NmtError(f"{argument} must be a list of strings, not {lines!r:.40}", "give one string for each line")
    return list(lines)


def _check_counts(texts: Texts, source_name: str) -> None:
    """Compare the first reference with every other text, and name each text that differs."""
    named = [*texts.references.items(), *texts.systems.items()]
    if texts.source is not None:
        named.insert(len(texts.references), (source_name, texts.source))
    (first, count), *others = ((name, len(lines)) for name, lines in named)
    if wrong := [f"{name} has {_line_count(other)}" for name, other in others if other != count]:
        hint = "line n is compared with line n: every line needs its counterpart, blank ones too"
        raise NmtError(f"{', '.join(wrong)}, but {first} has {_line_count(count)}", hint)
    if not count:
        raise NmtError(f"{first} is empty: there is nothing to score", "name files with a sentence on each line")


def _line_count(count: int) -> str:
    return f"{count:,} line" + "s" * (count != 1)


def find_warnings(texts: Texts, metrics: tuple[str, ...], tokenizer: str) -> list[str]:
    """Warn of texts that may make the scores meaningless."""
    warnings = []
    first_name, first = next(iter(texts.references.items()))
    sample = "".join(first[:200])
    if 3 * len(_NOT_FOR_13A.findall(sample)) > len(sample):  # more than a third of the characters
        if "bleu" in metrics and tokenizer in ("13a", "intl"):
            warnings.append(
                f"{first_name} looks Chinese, Japanese, Korean or similar, and the tokenizer {tokenizer} finds no "
                "words in such text: BLEU means little; --lang zh (ja, ko, th) chooses a better tokenizer"
            )
        if "ter" in metrics:
            warnings.append(f"TER counts words between spaces, and {first_name} has few spaces: TER means little")
    for name, lines in texts.references.items():
        warnings += _counted(name, "blank: is the file of references complete?", map(is_blank, lines))
    for name, lines in texts.systems.items():
        warnings += _counted(name, "blank", map(is_blank, lines))
        warnings += _counted(name, "not joined from pieces: @@ or ▁ is left in", map(_SUBWORD_MARKS.search, lines))
        spaced = sum(line.endswith(" .") for line in lines)
        if 2 * spaced > len(lines):
            warnings.append(
                f"{name} looks tokenized: {spaced:,} of {_line_count(len(lines))} end in a space and a period"
            )
        warnings += [f"{name} is the same text as {other}" for other, text in texts.references.items() if text == lines]
        if texts.source is not None:
            copies = [line == source and not is_blank(line) for line, source in zip(lines, texts.source, strict=True)]
            if 20 * sum(copies) >= len(lines):  # below 5 %, the copies may well be right: names, numbers
                warnings += _counted(name, "the source itself, not translated", copies)
    for (name, lines), (other, other_lines) in combinations(texts.systems.items(), 2):
        if lines == other_lines:
            warnings.append(f"{other} is the same text as {name}")
    return warnings


def _counted(name: str, problem: str, matches: Iterable[object]) -> list[str]:
    """A warning that names the first line that matches, and counts the others. Without a match, an empty list."""
    numbers = [number for number, match in enumerate(matches, 1) if match]
    if not numbers:
        return []
    others = f" and {len(numbers) - 1:,} more" if numbers[1:] else ""
    return [f"{name}, line {numbers[0]:,}{others}: {problem}"]
