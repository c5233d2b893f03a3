"""Lines in CAPITALS or in Title Case: translate them in sentence case, and put the case back.

A model that was trained on sentences reads capitals letter by letter, and writes nonsense.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from nmt_cli.text.languages import language_code
from nmt_cli.translate.protect import Span

Case = Literal["capitals", "title_case"]
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_FEWEST_LETTERS = 5  # of a text in capitals; a shorter one may be an abbreviation, such as NATO
_FEWEST_WORDS_OF_A_TITLE = 4
_LONGEST_SHORT_WORD = 3  # "New York City Council" is a name. A title has short words, such as "In" and "The".


@dataclass(frozen=True)
class Recased:
    """A text in sentence case, and the case that it had. `fixed` are texts that keep their case."""

    text: str
    case: Case
    fixed: tuple[str, ...]

    def put_back(self, translation: str) -> str:
        """The translation in the case that the text had."""
        fixed = sorted(self.fixed, key=len, reverse=True)  # a short text may be the beginning of a long one
        parts = re.split(f"({'|'.join(map(re.escape, fixed))})", translation) if fixed else [translation]
        for number in range(0, len(parts), 2):
            if self.case == "capitals":
                parts[number] = parts[number].upper()
            else:
                parts[number] = _WORD.sub(lambda word: word[0][0].upper() + word[0][1:], parts[number])
        return "".join(parts)


def sentence_case(
    text: str, find_fixed: Callable[[str], list[Span]], count_pieces: Callable[[str], int], language: str
) -> Recased | None:
    """The text in sentence case; None if it is neither in capitals nor in title case. Fixed spans stay as they are.

    Each word gets the case that has the fewest pieces: a vocabulary has "Berlin" and "NATO", but not "berlin". Capitals
    that the vocabulary has as whole pieces, such as "USA", are no reason to change a text.
    """
    if any(word.isalpha() and word.islower() for word in text.split()):  # a fast test: most lines have such a word
        return None
    fixed = find_fixed(text)
    words: list[re.Match] = []
    parts: list[str] = []
    done = 0
    for start, stop in [*((span.start, span.stop) for span in fixed), (len(text), len(text))]:
        words += _WORD.finditer(text, done, start)
        done = stop
    case = _case_of([word[0] for word in words])
    if case is None:
        return None
    done = 0
    for number, word in enumerate(words):
        lower, capital = word[0].lower(), word[0][0] + word[0][1:].lower()
        forms = [lower, capital, word[0]] if case == "capitals" else [lower, word[0]]
        if number == 0 or (lower == "i" and language_code(language) == "en"):
            forms.remove(lower)
        parts += [text[done : word.start()], min(forms, key=count_pieces)]
        done = word.end()
    changed = "".join([*parts, text[done:]])
    if changed == text or count_pieces(changed) > count_pieces(text):
        return None
    return Recased(changed, case, tuple(span.wanted for span in fixed))


def _case_of(words: Sequence[str]) -> Case | None:
    cased = [word for word in words if word.lower() != word.upper()]
    if sum(map(len, cased)) >= _FEWEST_LETTERS and all(word == word.upper() for word in cased):
        return "capitals"
    has_short_word = any(len(word) <= _LONGEST_SHORT_WORD for word in cased[1:])
    is_long = len(cased) >= _FEWEST_WORDS_OF_A_TITLE
    return "title_case" if is_long and has_short_word and all(word[0].isupper() for word in cased) else None
