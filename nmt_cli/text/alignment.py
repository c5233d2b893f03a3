"""From attention over pieces to attention and alignments over words, for `nmt translate --align` and `nmt inspect`.

numpy only, so that the fast engine need not import torch. Shapes: T target pieces, S source pieces.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nmt_cli.text.words import UNSPACED

SPACE = "▁"  # how SentencePiece writes the space before a word

_JOINING = ("'", "’", "-", "\u2010", "\u2011")  # within a word


@dataclass(frozen=True)
class Word:
    """A word, and the pieces from `start` to before `stop` that spell it."""

    text: str
    start: int
    stop: int


def words_of(pieces: Sequence[str], punctuation: bool = False) -> list[Word]:
    """Pieces merged to words, which begin where a space was; with `punctuation`, that is a word of its own too, but not
    the apostrophe of "j'aime" or the hyphen of "vis-à-vis".

    Where no spaces are written, as in Chinese, each piece is a word.
    """
    if not pieces:
        return []
    starts = [
        index
        for index, piece in enumerate(pieces)
        if index == 0
        or piece.startswith(SPACE)
        or _unspaced(piece)
        or _unspaced(pieces[index - 1])
        or (punctuation and (_parts(piece) or _parts(pieces[index - 1])))
    ]
    # A space of its own belongs to what follows.
    starts = [a for a in starts if a == 0 or pieces[a - 1] != SPACE or pieces[a].startswith(SPACE)]
    spans = zip(starts, [*starts[1:], len(pieces)], strict=True)
    return [Word("".join(pieces[a:b]).replace(SPACE, " ").strip(), a, b) for a, b in spans]


def over_words(weights: np.ndarray, targets: Sequence[Word], sources: Sequence[Word]) -> np.ndarray:
    """(T,S) -> words x words: what the pieces of a source word get is added up, target pieces are averaged."""
    columns = np.stack([weights[:, word.start : word.stop].sum(1) for word in sources], 1)
    return np.stack([columns[word.start : word.stop].mean(0) for word in targets])


def aligned(weights: np.ndarray) -> list[tuple[int, int]]:
    """words x words -> for each target word, (source, target) with the source word it attends to most."""
    return sorted((int(source), target) for target, source in enumerate(weights.argmax(1)))


def pharaoh(pairs: Iterable[tuple[int, int]]) -> str:
    """As "0-0 1-2"."""
    return " ".join(f"{source}-{target}" for source, target in pairs)


def _parts(piece: str) -> bool:
    return is_punctuation(piece) and piece not in _JOINING


def is_punctuation(piece: str) -> bool:
    text = piece.replace(SPACE, "")
    return bool(text) and all(unicodedata.category(character)[0] in "PS" for character in text)


_UNSPACED = re.compile(f"[{UNSPACED}]")


def _unspaced(piece: str) -> bool:
    """Of a script that is written without spaces: Chinese, Japanese, Thai, Lao, Khmer, Burmese."""
    return _UNSPACED.search(piece) is not None
