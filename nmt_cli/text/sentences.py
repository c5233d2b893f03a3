"""Split text into sentences, with sentencex.

sentencex knows abbreviations, decimals, quotes and URLs of some 300 languages, and starts in a millisecond.
benchmarks/sentences.py compares it with other packages. This module joins sentences that sentencex cuts in the wrong
place, because a wrong cut hurts a translation more than a missing cut.
"""

from __future__ import annotations

import re

from nmt_cli.text.languages import language_code

# A list marker is not a sentence: "1.", "a)". It belongs to the text behind it.
_MARKER = re.compile(r"\s*[(\[]?(?:\d{1,3}|[^\W\d_])[.)\]]+\s*")
# One letter and a point are an initial or the end of an abbreviation: "M. Dupont", "at 5 a.m. Eastern time".
_INITIAL = re.compile(r"(?:^|[\s.(\[\"'’“„«])[^\W\d_]\.$")


def split_sentences(text: str, language: str) -> list[str]:
    """The sentences of a text, each with the spaces behind it: joined, they are the text."""
    import sentencex

    pieces: list[str] = sentencex.segment(language_code(language) or "en", text) if text else []
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


def has_several_sentences(text: str, language: str) -> bool:
    return len(split_sentences(text, language)) > 1


def _is_open(pieces: list[str]) -> bool:
    """Do these pieces end with a list marker or an initial, so that their sentence goes on?"""
    is_marker = len(pieces) == 1 and _MARKER.fullmatch(pieces[0])
    return bool(is_marker or _INITIAL.search(pieces[-1].rstrip()[-3:]))
