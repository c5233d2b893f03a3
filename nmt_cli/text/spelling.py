"""Slips of the keyboard, and the words that a model knows (words.tsv of a vocabulary).

`nmt prepare` writes words.tsv: a word and its number in the training text on each line, the most frequent word first.
A word with the number 0 is a word of the language that the training text lacks, although one slip turns a word of the
training text into it. `nmt translate` does not correct such a word (translate/respell.py). A vocabulary of an older
version, of an imported model, or of a language without a word list has no such file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path

from nmt_cli.errors import NmtError
from nmt_cli.files import read_small
from nmt_cli.text.languages import language_code, words_in
from nmt_cli.text.lines import write_text

# Languages whose list in pyspellchecker knows at least 85 % of the different words in Django's translations. The lists
# of the others know less (Italian 82 %, Spanish 55 %, Russian 51 %), so correct words would be changed.
LANGUAGES = ("de", "en", "fr", "nl", "pt")
_FEWEST = 3  # occurrences in the training text; a rarer word may be a typo itself
_MOST = 100_000  # words of the training text in the file; `nmt translate` reads them in a tenth of a second
_LONGEST = 30  # letters of a word that is corrected
_LETTERS = 64  # the most frequent letters; a correction inserts no other letter
WORDS_FILE = "words.tsv"  # in a vocabulary folder


def _neighbors(rows: Sequence[str]) -> dict[str, str]:
    """For each letter, the letters whose keys touch its key. Each row is half a key to the right of the row above."""
    near: dict[str, str] = {}
    for number, row in enumerate(rows):
        for place, letter in enumerate(row):
            touching = [(number, place - 1), (number, place + 1), (number - 1, place), (number - 1, place + 1)]
            touching += [(number + 1, place - 1), (number + 1, place)]
            near[letter] = "".join(rows[r][p] for r, p in touching if 0 <= r < len(rows) and 0 <= p < len(rows[r]))
    return near


KEYBOARD = _neighbors(("qwertyuiop", "asdfghjkl", "zxcvbnm"))


def slips(word: str) -> Iterator[str]:
    """Every text that one slip makes of a word in lower case: two letters swapped, one dropped, one doubled, one
    replaced by a letter beside its key, or such a letter added."""
    for n, letter in enumerate(word):
        before, after = word[:n], word[n + 1 :]
        yield before + after
        yield before + letter + letter + after
        if after:
            yield before + after[0] + letter + after[1:]
        for near in KEYBOARD.get(letter, ""):
            yield before + near + after
            yield before + near + letter + after
            yield before + letter + near + after


def intended(typed: str, letters: Iterable[str]) -> Iterator[str]:
    """Every word of these letters that one slip turns into the typed word: the inverse of `slips`."""
    for n, letter in enumerate(typed):
        before, after = typed[:n], typed[n + 1 :]
        beside = before[-1:] + after[:1]
        if any(letter == other or letter in KEYBOARD.get(other, "") for other in beside):
            yield before + after
        if after:
            yield before + after[0] + letter + after[1:]
        for near in KEYBOARD.get(letter, ""):
            yield before + near + after
    for n in range(len(typed) + 1):
        for letter in letters:
            yield typed[:n] + letter + typed[n:]


@dataclass(frozen=True)
class Words:
    """The words that a model knows."""

    counts: Mapping[str, int]  # how often the training text has each word; upper and lower case differ
    others: frozenset[str]  # further words of the language, in lower case

    @cached_property
    def _trained(self) -> frozenset[str]:
        return frozenset(map(str.lower, self.counts))

    @cached_property
    def _letters(self) -> tuple[str, ...]:
        """The letters that may have been dropped. A text with words of many scripts has thousands of letters."""
        frequent = "".join(islice(self.counts, 10_000)).lower()
        return tuple(letter for letter, _ in Counter(frequent).most_common(_LETTERS))

    def is_trained(self, word: str) -> bool:
        """Does the training text have the word, in upper or lower case?"""
        return word.lower() in self._trained

    def correct(self, typed: str, begins_sentence: bool) -> str | None:
        """The most frequent word of the training text that one slip turns into `typed`. None: the word is right, or
        there is no such word.

        An unknown name looks like a slip of another name or of a German noun. So a word with a capital is corrected
        only if it begins a sentence, and only to a word that the training text has in lower case.
        """
        lower, rest = typed.lower(), typed[1:]
        if lower in self._trained or lower in self.others:
            return None
        if not 2 <= len(typed) <= _LONGEST or not typed.isalpha() or rest != rest.lower():
            return None
        has_capital = typed[0] != lower[0]
        if has_capital and not begins_sentence:
            return None
        found = {word for word in intended(lower, self._letters) if word in self.counts and len(word) > 1}
        if not found:
            return None
        best = min(found, key=lambda word: (-self.counts[word], word))
        return best[0].upper() + best[1:] if has_capital else best


@lru_cache(maxsize=2)
def general_words(language: str) -> frozenset[str] | None:
    """The words of a language, in lower case. None: there is no good list.

    Parts of words are words, too ("isn" and "t" of "isn't"), and so are words typed without the apostrophe ("isnt").
    """
    code = language_code(language)
    if code not in LANGUAGES:
        return None
    from spellchecker import SpellChecker  # takes 0.2 s, and only `nmt prepare` needs the lists

    words = set(SpellChecker(code))
    for word in [word for word in words if not word.isalpha()]:
        words.update((*words_in(word), word.replace("'", "")))
    return frozenset(words)


def write_words(folder: Path, lines: Iterable[str], language: str, old: Words | None = None) -> None:
    """Write words.tsv of this text into a vocabulary folder, if there is a list of the language.

    `old` are the words of the text that a model was trained on before.
    """
    general = general_words(language)
    if general is None:
        return
    counts = Counter(word for line in lines for word in words_in(line) if word.isalpha())
    counts.update(old.counts if old else {})
    frequent = sorted((-count, word) for word, count in counts.items() if count >= _FEWEST)[:_MOST]
    trained = {word.lower() for _, word in frequent}
    others = general.intersection(slip for word in trained for slip in slips(word)) - trained
    lines = [f"{word}\t{-count}\n" for count, word in frequent] + [f"{word}\t0\n" for word in sorted(others)]
    write_text(folder / WORDS_FILE, "".join(lines))


def read_words(folder: Path) -> Words | None:
    """The words of a vocabulary folder. None: the vocabulary has none."""
    path = folder / WORDS_FILE
    if not path.exists():
        return None
    try:
        columns = read_small(path).decode().replace("\n", "\t").split("\t")[:-1]
        words, counts = columns[::2], list(map(int, columns[1::2]))
        if len(words) != len(counts):
            raise ValueError("a column is missing")
        trained = sum(map(bool, counts))  # the words of the training text come first
        return Words(dict(zip(words[:trained], counts[:trained], strict=True)), frozenset(words[trained:]))
    except ValueError:  # UnicodeDecodeError, too
        raise NmtError(f"{path} is damaged: a line is not a word, a tab and a number", "copy the model again") from None
