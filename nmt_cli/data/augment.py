"""Training pairs as people write them: capitals, Title Case, lower case, no final mark, typos ([train.augment]).

Capitals, Title Case and a missing final mark are forms that a translation takes over, so both sides are changed. Lower
case and typos are noise: only the source is changed, and the target stays well written.

The changes of a pair are drawn by its own random generator, from (seed, epoch, number of the pair). They depend neither
on the order of the pairs nor on the number of processes, and a resumed run sees the same text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from random import Random

import numpy as np

from nmt_cli.recipe.schema import Augment
from nmt_cli.text.languages import language_code
from nmt_cli.text.spelling import KEYBOARD
from nmt_cli.text.vocab import Vocab, symbol_pattern

Sides = list[list[np.ndarray]]  # the ids of all sources, and of all targets

_WORDS_WITH_TYPO = 1 / 3
# Text that is never changed: tags, placeholders, code, entities, addresses, names of files, options and paths.
_KEPT = (
    r"<[^<>]*>",
    r"\{[^{}]*\}",
    r"`+[^`]*`+",
    r"&\#?\w+;",
    r"\S*(?:[@\#$%\\_=]|://|\w\.\w)\S*",
    r"(?<!\S)(?:--|\.{0,2}/)\w\S*",
)
_FIRST_LETTER = re.compile(r"(?<!\S)[^\w\s]*[^\W\d_]")  # of a word, with the marks before it
_FINAL_MARK = re.compile(r"\s*[.!?…。！？।۔؟]+\Z")
_SPACES = re.compile(r"(\s+)")
# In these languages the capital of i is İ, and the small letter of I is ı.
_DOTTED_CAPITAL_I = ("tr", "az")


class Rewriter:
    """The changes of a text. Symbols of the vocabulary, tags, placeholders, addresses and the like stay as they are."""

    def __init__(self, language: str = "", symbols: tuple[str, ...] = ()) -> None:
        self.dotted_capital_i = language_code(language) in _DOTTED_CAPITAL_I
        self._kept = re.compile(f"({'|'.join([symbol_pattern(symbols), *_KEPT])})")

    def capitals(self, text: str) -> str:
        return self._outside_kept(text, self._upper)

    def lower_case(self, text: str) -> str:
        return self._outside_kept(text, self._lower)

    def title_case(self, text: str) -> str:
        """Begin each word with a capital. The other letters stay."""
        return self._outside_kept(text, lambda part: _FIRST_LETTER.sub(lambda match: self._upper(match[0]), part))

    def without_final_mark(self, text: str) -> str:
        """Leave out the marks that end a sentence, unless nothing else is left."""
        *before, last = self._kept.split(text)
        shorter = "".join(before) + _FINAL_MARK.sub("", last)
        return shorter if shorter.strip() else text

    def with_typos(self, text: str, random: Random) -> str:
        """Put a typo into about each third word, and at least into one. A word is text between two spaces."""
        tokens: list[str] = []
        words: list[int] = []  # the tokens that may get a typo
        for number, part in enumerate(self._kept.split(text)):
            for token in [part] if number % 2 else _SPACES.split(part):
                is_word = sum(map(str.isalpha, token)) >= 2 and not any(map(str.isnumeric, token))
                if is_word and number % 2 == 0:
                    words.append(len(tokens))
                tokens.append(token)
        drawn = [word for word in words if random.random() < _WORDS_WITH_TYPO]
        for word in drawn or (random.sample(words, 1) if words else []):
            tokens[word] = mistyped(tokens[word], random)
        return "".join(tokens)

    def _outside_kept(self, text: str, change: Callable[[str], str]) -> str:
        parts = self._kept.split(text)
        parts[::2] = map(change, parts[::2])
        return "".join(parts)

    def _upper(self, text: str) -> str:
        return (text.replace("i", "İ") if self.dotted_capital_i else text).upper()

    def _lower(self, text: str) -> str:
        return (text.replace("I", "ı").replace("İ", "i") if self.dotted_capital_i else text).lower()


def mistyped(word: str, random: Random) -> str:
    """The word with one typo: two letters swapped, a letter dropped, doubled, or replaced by one beside its key."""
    letters = [n for n, character in enumerate(word) if character.isalpha()]
    places = {
        "swap": [n for n in letters if word[n + 1 : n + 2].isalpha() and word[n] != word[n + 1]],
        "drop": letters,
        "double": letters,
        "neighbor": [n for n in letters if word[n].lower() in KEYBOARD],
    }
    kind = random.choice([kind for kind, possible in places.items() if possible])
    n = random.choice(places[kind])
    letter, after = word[n], word[n + 1 :]
    match kind:
        case "swap":
            typed, after = after[0] + letter, after[1:]
        case "drop":
            typed = ""
        case "double":
            typed = letter + letter
        case _:
            near = random.choice(KEYBOARD[letter.lower()])
            typed = near.upper() if letter.isupper() else near
    return word[:n] + typed + after


@dataclass(frozen=True)
class _Drawn:
    """The changes of one pair."""

    number: int  # of the pair in the pool
    case: str  # capitals, title_case, lower_case or none
    no_final_mark: bool
    typos: bool
    seed: str  # of the typos


class Augmenter:
    """Changes the drawn pairs of a pool: decodes them to text, changes the text, and encodes it again."""

    def __init__(self, shares: Augment, vocab: Vocab, max_length: int = 0) -> None:
        """A pair that would have more than max_length pieces on a side stays as it is. 0: no limit."""
        self.shares, self.vocab, self.max_length = shares, vocab, max_length
        cases = {"capitals": shares.capitals, "title_case": shares.title_case, "lower_case": shares.lower_case}
        self._cases = list(zip(cases, accumulate(cases.values()), strict=True))
        languages = (vocab.source_lang, vocab.target_lang)
        self._source, self._target = (Rewriter(language, vocab.symbols) for language in languages)
        self._is_unknown = [
            np.array([side.is_unknown(i) or side.is_byte(i) for i in range(side.get_piece_size())])
            for side in (vocab.source, vocab.target)
        ]

    def change(self, sides: Sides, pairs: np.ndarray, seed: int, epoch: int) -> Sides:
        """Change the ids of source and target. `pairs` has the number of each pair in the corpus."""
        drawn = [self._draw(number, f"{seed} {epoch} {pair}") for number, pair in enumerate(pairs.tolist())]
        changes = [
            each for each in drawn if each and not any(self._has_unknown(n, sides[n][each.number]) for n in (0, 1))
        ]
        old = [
            processor.decode([side[each.number].tolist() for each in changes])
            for side, processor in zip(sides, (self.vocab.source, self.vocab.target), strict=True)
        ]
        new = zip(*map(self.rewrite, *old, changes), strict=True) if changes else [(), ()]
        changed: list[dict[int, np.ndarray]] = []  # for each side, the new ids by the number of the pair
        for before, after, encode in zip(old, new, (self.vocab.encode_source, self.vocab.encode_target), strict=True):
            texts = {each.number: text for each, was, text in zip(changes, before, after, strict=True) if text != was}
            encoded = encode(list(texts.values()))
            changed.append({number: np.array(ids, np.int32) for number, ids in zip(texts, encoded, strict=True)})
        refused = {number for n in (0, 1) for number, ids in changed[n].items() if not self._is_usable(n, ids)}
        return [
            [ids if number in refused else news.get(number, ids) for number, ids in enumerate(side)]
            for side, news in zip(sides, changed, strict=True)
        ]

    def _draw(self, number: int, seed: str) -> _Drawn | None:
        random = Random(seed)
        case, mark, typo = random.random(), random.random(), random.random()
        chosen = next((name for name, limit in self._cases if case < limit), "")
        no_final_mark, typos = mark < self.shares.no_final_mark, typo < self.shares.typos
        return (
            _Drawn(number, chosen, no_final_mark, typos, f"{seed} typos") if chosen or no_final_mark or typos else None
        )

    def rewrite(self, source: str, target: str, drawn: _Drawn) -> tuple[str, str]:
        match drawn.case:
            case "capitals":
                source, target = self._source.capitals(source), self._target.capitals(target)
            case "title_case":
                source, target = self._source.title_case(source), self._target.title_case(target)
            case "lower_case":
                source = self._source.lower_case(source)
        if drawn.no_final_mark:
            shorter = self._source.without_final_mark(source), self._target.without_final_mark(target)
            if shorter[0] != source and shorter[1] != target:
                source, target = shorter
        if drawn.typos:
            source = self._source.with_typos(source, Random(drawn.seed))
        return source, target

    def _has_unknown(self, side: int, ids: np.ndarray) -> bool:
        """Whether a character has no piece of its own: it is unknown, so its text is lost, or it is a row of bytes."""
        return bool(self._is_unknown[side][ids].any())

    def _is_usable(self, side: int, ids: np.ndarray) -> bool:
        return not self._has_unknown(side, ids) and not (self.max_length and len(ids) > self.max_length)
