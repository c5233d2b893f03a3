"""A line with typos: words that one slip of the keyboard turned into something else are corrected.

A word is changed only if neither the training text nor a list of the language's words has it, and if one slip of a word
of the training text gives it (text/spelling.py). A sentence in which many words are unknown and cannot be corrected is
of another kind or language than the training text, and stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from nmt_cli.text.languages import find_words, words_in
from nmt_cli.text.spelling import Words
from nmt_cli.translate.protect import Span
from nmt_cli.translate.results import Correction

# If a sentence has more unknown words that cannot be corrected than both limits allow, nothing in it is corrected.
_MOST_UNKNOWN = 1
_MOST_UNKNOWN_SHARE = 0.2


@dataclass(frozen=True)
class Respelled:
    """A text with corrected words."""

    text: str
    corrections: tuple[Correction, ...]


def respell(text: str, find_fixed: Callable[[str], list[Span]], words: Words) -> Respelled | None:
    """The text with corrected words; None if no word is changed. Fixed spans stay as they are."""
    if all(words.is_trained(word) for word in words_in(text)):  # a fast test: most lines have no other word
        return None
    found: list[re.Match] = []
    done = 0
    for start, stop in [*((span.start, span.stop) for span in find_fixed(text)), (len(text), len(text))]:
        found += (word for word in find_words(text, done, start) if word[0].isalpha())
        done = stop
    unknown = [number for number, word in enumerate(found) if not words.is_trained(word[0])]
    correct = {number: words.correct(found[number][0], number == 0) for number in unknown}
    changes = [(found[number], new) for number, new in correct.items() if new]
    rest = len(unknown) - len(changes)
    if not changes or rest > max(_MOST_UNKNOWN, _MOST_UNKNOWN_SHARE * len(found)):
        return None
    parts: list[str] = []
    done = 0
    for word, new in changes:
        parts += [text[done : word.start()], new]
        done = word.end()
    return Respelled("".join([*parts, text[done:]]), tuple(Correction(word[0], new) for word, new in changes))
