"""What `nmt score` reads: translations of systems, references, perhaps the source. Read, checked, and looked over."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from nmt_cli.errors import NmtError
from nmt_cli.text.lines import check_stdin_once, is_blank, name_of, read_lines
from nmt_cli.text.words import UNSPACED

_PIECES_LEFT = re.compile(r"@@(?: |$)|▁")  # of subword-nmt and of SentencePiece
_NOT_FOR_13A = re.compile(f"[{UNSPACED}\uac00-\ud7af]")  # Korean has spaces, but fewer than it has words


@dataclass(frozen=True)
class Texts:
    """Lines by the name of their file, in the order of the command line; all lists are equally long."""

    systems: dict[str, list[str]]
    references: dict[str, list[str]]
    source: list[str] | None = None
    boms: tuple[str, ...] = ()  # files that began with one

    @property
    def lines(self) -> int:
        return len(next(iter(self.references.values())))


def read_texts(systems: list[Path], references: list[Path], source: Path | None) -> Texts:
    paths = [*systems, *references, *([source] if source else [])]
    check_stdin_once(paths)
    for group in (systems, references):
        twice = [path for path in group if group.count(path) > 1]
        if twice:
            raise NmtError(f"{twice[0]} is given twice", "name every file once")

    boms: list[str] = []

    def read(path: Path) -> list[str]:
        return list(read_lines(path, lambda: boms.append(name_of(path))))

    texts = Texts(
        systems={name_of(path): read(path) for path in systems},
        references={name_of(path): read(path) for path in references},
        source=read(source) if source else None,
        boms=tuple(boms),
    )
    sources = {name_of(source): texts.source} if source and texts.source is not None else {}
    _check_counts({**texts.references, **sources, **texts.systems})
    return texts


def _check_counts(texts: dict[str, list[str]]) -> None:
    """All are compared with the first, and all that differ are named."""
    (first, wanted), *others = ((name, len(lines)) for name, lines in texts.items())
    wrong = [f"{name} has {_lines(count)}" for name, count in others if count != wanted]
    if wrong:
        raise NmtError(
            f"{', '.join(wrong)}, but {first} has {_lines(wanted)}",
            "line n is compared with line n: every line needs its counterpart, blank ones too",
        )
    if not wanted:
        raise NmtError(f"{first} is empty: there is nothing to score", "name files with a sentence on each line")


def _lines(count: int) -> str:
    return f"{count:,} line" + "s" * (count != 1)


# ---------------------------------------------------------------------------------------------------------------------
# What looks wrong


def suspicions(texts: Texts, metrics: tuple[str, ...], tokenizer: str) -> list[str]:
    """Sentences about what may make the scores meaningless. None of it is an error."""
    found = [f"{name}: a byte order mark at its beginning was removed" for name in texts.boms]
    first_name, first = next(iter(texts.references.items()))
    if _mostly(_NOT_FOR_13A, first):
        if "bleu" in metrics and tokenizer in ("13a", "intl"):
            found.append(
                f"{first_name} looks Chinese, Japanese, Korean or the like, where the tokeniser {tokenizer} finds no "
                "words: BLEU means little; --lang zh (ja, ko, th) chooses a better one"
            )
        if "ter" in metrics:
            found.append(f"TER counts words between spaces, of which {first_name} has few: it means little here")
    for name, lines in texts.references.items():
        found += _counted(name, "blank: are these all the references?", map(is_blank, lines))
    for name, lines in texts.systems.items():
        found += _counted(name, "blank", map(is_blank, lines))
        found += _counted(name, "not joined from pieces: @@ or ▁ is left in", map(_PIECES_LEFT.search, lines))
        spaced = sum(line.endswith(" .") for line in lines)
        if 2 * spaced > len(lines):
            found.append(f"{name} looks tokenised: {_of(spaced, len(lines))} end in a space and a full stop")
        found += [f"{name} is the same text as {other}" for other, text in texts.references.items() if text == lines]
        if texts.source is not None:
            copies = [a == b and not is_blank(a) for a, b in zip(lines, texts.source, strict=True)]
            if 20 * sum(copies) >= len(lines):  # names and numbers are copied rightly: one line in twenty
                found += _counted(name, "the source itself, not translated", copies)
    for (one, lines), (other, others) in combinations(texts.systems.items(), 2):
        if lines == others:
            found.append(f"{other} is the same text as {one}")
    return found


def _mostly(pattern: re.Pattern[str], lines: list[str]) -> bool:
    """A third of the characters of the first lines match."""
    text = "".join(lines[:200])
    return 3 * len(pattern.findall(text)) > len(text)


def _counted(name: str, what: str, matches: Iterable[object]) -> list[str]:
    numbers = [number for number, match in enumerate(matches, 1) if match]
    if not numbers:
        return []
    return [f"{name}, line {numbers[0]:,}" + (f" and {len(numbers) - 1:,} more" if numbers[1:] else "") + f": {what}"]


def _of(count: int, total: int) -> str:
    return f"{count:,} of {_lines(total)}"
