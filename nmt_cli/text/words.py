"""Words and punctuation marks in text of any script."""

from __future__ import annotations

import re

# Scripts written without spaces between words: Thai to Khmer, kana, Han.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_MARKS = "!-/:-@\\[-`{-~\u00a1\u00ab\u00b7\u00bb\u00bf\u2010-\u2027\u2030-\u205e\u3001-\u301f\uff01-\uff0f\uff1a-\uff20"
_WORD = f"[{UNSPACED}]|[^\\s{UNSPACED}{_MARKS}]+"
_WORDS = re.compile(_WORD)
_PIECES = re.compile(f"({_WORD}|[{_MARKS}])(\\s*)")


def count_words(text: str) -> int:
    """Count the words, without punctuation. In scripts without spaces every character counts as a word."""
    return len(_WORDS.findall(text))


def words_and_marks(text: str) -> list[tuple[str, str]]:
    """Every word and punctuation mark, each with the space that follows it."""
    return _PIECES.findall(text)
