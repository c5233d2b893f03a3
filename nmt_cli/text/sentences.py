"""Split text into sentences, with sentencex.

sentencex knows abbreviations, decimals, quotes and URLs of some 300 languages, and starts in a millisecond.
benchmarks/sentences.py compares it with other packages. This module joins sentences that sentencex cuts in the wrong
place, because a wrong cut hurts a translation more than a missing cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nmt_cli.text.languages import language_code

# A list marker is not a sentence: "1.", "a)". It belongs to the text behind it.
_MARKER = re.compile(r"\s*[(\[]?(?:\d{1,3}|[^\W\d_])[.)\]]+\s*")
# One letter and a point are an initial or the end of an abbreviation: "M. Dupont", "at 5 a.m. Eastern time".
_INITIAL = re.compile(r"(?:^|[\s.(\[\"'’“„«])[^\W\d_]\.$")

# The end of a sentence in text without spaces, where no mark or quote belongs to the sentence, too.
_WIDE_END = re.compile(r"(?<=[。！？])(?![。！？…」』”’）】》\s])")
_SLICE = 1000  # characters


def split_sentences(text: str, language: str) -> list[str]:
    """The sentences of a text, each with the spaces behind it: joined, they are the text."""
    import sentencex

    code = language_code(language) or "en"
    pieces: list[str] = [piece for part in _slices(text) for piece in sentencex.segment(code, part)]
    has_capitals = text != text.lower()
    sentences: list[list[str]] = []
    for piece in pieces:
        # In text with capitals, no sentence begins with a small letter: "he was b. in 1990" is one sentence.
        continues = has_capitals and piece.lstrip()[:1].islower()
        if sentences and (continues or not any(map(str.isalnum, piece)) or _is_open(sentences[-1])):
            sentences[-1].append(piece)
        else:
            sentences.append([piece])
    return ["".join(pieces) for pieces in sentences]


def _slices(text: str) -> Iterator[str]:
    """The text in slices that end with a sentence. sentencex takes quadratic time for a slice without spaces."""
    start = 0
    while start + _SLICE < len(text) and (end := _WIDE_END.search(text, start + _SLICE)):
        yield text[start : end.start()]
        start = end.start()
    if start < len(text):
        yield text[start:]


def has_several_sentences(text: str, language: str) -> bool:
    return len(split_sentences(text, language)) > 1


def _is_open(pieces: list[str]) -> bool:
    """Do these pieces end with a list marker or an initial, so that their sentence goes on?"""
    is_marker = len(pieces) == 1 and _MARKER.fullmatch(pieces[0])
    return bool(is_marker or _INITIAL.search(pieces[-1].rstrip()[-3:]))
