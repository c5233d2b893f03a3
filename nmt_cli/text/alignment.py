"""Turn attention over pieces, shape (T,S), into attention and alignments over words. This module needs no torch."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nmt_cli.text.languages import UNSPACED

SPACE = "▁"  # SentencePiece writes the space before a word like this
_UNSPACED = re.compile(f"[{UNSPACED}]")


@dataclass(frozen=True)
class Word:
    """A word, and its pieces: from `start` up to, but not including, `stop`."""

    text: str
    start: int
    stop: int


def words_of(pieces: Sequence[str], punctuation: bool = False) -> list[Word]:
    """Merge pieces into words. A word begins after a space. In scripts without spaces each piece is a word.

    With `punctuation`, a punctuation mark is a word, except the apostrophe of "j'aime" and hyphens as in "vis-à-vis".
    """
    starts = [
        index
        for index, piece in enumerate(pieces)
        if index == 0
        or piece.startswith(SPACE)
        or _UNSPACED.search(piece)
        or _UNSPACED.search(pieces[index - 1])
        or (punctuation and (_separates(piece) or _separates(pieces[index - 1])))
    ]
    # A piece that is only a space belongs to the next word.
    starts = [a for a in starts if a == 0 or pieces[a - 1] != SPACE or pieces[a].startswith(SPACE)]
    spans = pairwise([*starts, len(pieces)])
    return [Word("".join(pieces[a:b]).replace(SPACE, " ").strip(), a, b) for a, b in spans]


def over_words(weights: np.ndarray, targets: Sequence[Word], sources: Sequence[Word]) -> np.ndarray:
    """(T,S) -> words x words: sum over the pieces of a source word, average over the pieces of a target word."""
    columns = np.stack([weights[:, word.start : word.stop].sum(1) for word in sources], 1)
    return np.stack([columns[word.start : word.stop].mean(0) for word in targets])


def aligned(weights: np.ndarray) -> list[tuple[int, int]]:
    """words x words -> (source, target) for each target word, with the source word that it attends to most."""
    return sorted((int(source), target) for target, source in enumerate(weights.argmax(1)))


def pharaoh(pairs: Iterable[tuple[int, int]]) -> str:
    """Write an alignment in the Pharaoh format: "0-0 1-2"."""
    return " ".join(f"{source}-{target}" for source, target in pairs)


def _separates(piece: str) -> bool:
    """Is this piece a mark between words? Apostrophes and hyphens are not: they join the parts of a word."""
    return is_punctuation(piece) and piece not in ("'", "’", "-", "\u2010", "\u2011")


def is_punctuation(piece: str) -> bool:
    text = piece.replace(SPACE, "")
    return bool(text) and all(unicodedata.category(character)[0] in "PS" for character in text)
