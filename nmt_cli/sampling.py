"""The same text in other pieces: BPE-dropout (Provilkov et al. 2020), and sampling from a unigram model (Kudo 2018).

SentencePiece samples too, but mixes something of the process into every seed, and a run that was resumed would see
other data than one that was not. Here what comes out is a function of the seed. Pieces never cross words, so each word
is cut in `VARIANTS` ways when it is first met, by a generator of its own, and each of a sentence's words picks one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from sentencepiece import SentencePieceProcessor

VARIANTS = 64  # of a word; more are hardly to be told from drawing anew each time
_MOST_WORDS = 200_000  # remembered, all together some hundred megabytes

_SPACE = "▁"  # SentencePiece's mark of a word's beginning


class SubwordSampler:
    """`rate` is the share of merges dropped, or for a unigram model the exponent of the probabilities."""

    def __init__(self, processor: SentencePieceProcessor, rate: float, unigram: bool, symbols: tuple[str, ...]) -> None:
        size = processor.get_piece_size()
        pieces = [processor.id_to_piece(i) for i in range(size)]
        special = (processor.is_control, processor.is_unknown, processor.is_byte)
        usable = [i for i in range(size) if pieces[i] not in symbols and not any(test(i) for test in special)]
        self.processor, self.rate, self.unigram = processor, rate, unigram
        self.ids = {pieces[i]: i for i in usable}
        self.scores = {pieces[i]: processor.get_score(i) for i in usable}
        self.starts = np.array([piece.startswith(_SPACE) for piece in pieces])
        # A word with anything else in it stays as it is: unknown characters, bytes, the user's own symbols.
        self.plain = np.zeros(size, bool)
        self.plain[usable] = True
        self.cache: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def sample(self, sentences: Sequence[np.ndarray], seed: int) -> list[list[int]]:
        """Other ids for the same text."""
        random = np.random.default_rng(seed)
        result = []
        for ids in sentences:
            words = np.split(ids, np.flatnonzero(self.starts[ids])[1:]) if len(ids) else []
            choices = random.integers(VARIANTS, size=len(words)).tolist()
            result.append([i for word, choice in zip(words, choices, strict=True) for i in self.variant(word, choice)])
        return result

    def variant(self, word: np.ndarray, choice: int) -> list[int]:
        key = (tuple(word.tolist()), choice)
        found = self.cache.get(key)
        if found is None:
            if len(self.cache) >= _MOST_WORDS:
                self.cache.clear()
            random = np.random.default_rng([choice, *key[0]])
            cut = self.cut_unigram if self.unigram else self.cut_bpe
            found = self.cache[key] = cut(key[0], random) if self.plain[word].all() else list(key[0])
        return found

    def cut_bpe(self, word: tuple[int, ...], random: np.random.Generator) -> list[int]:
        """Merge characters again, each possible merge left out with probability `rate` at each turn."""
        parts = list("".join(self.processor.id_to_piece(i) for i in word))
        while True:
            merges = [
                (self.scores[joined], -place)
                for place, joined in enumerate(map("".join, pairwise(parts)))
                if joined in self.scores and random.random() >= self.rate
            ]
            if not merges:
                break
            place = -max(merges)[1]
            parts[place : place + 2] = ["".join(parts[place : place + 2])]
        # A character that is no piece of its own, as may be with vocab.coverage below 1: leave the word alone.
        return [self.ids[part] for part in parts] if all(part in self.ids for part in parts) else list(word)

    def cut_unigram(self, word: tuple[int, ...], random: np.random.Generator) -> list[int]:
        """One of the likeliest segmentations, with probability proportional to p^rate."""
        text = "".join(self.processor.id_to_piece(i) for i in word)
        found = self.processor.nbest_encode(text.removeprefix(_SPACE), nbest_size=VARIANTS)
        if not text.startswith(_SPACE) or not found:
            return list(word)
        scores = np.array([sum(self.processor.get_score(i) for i in ids) for ids in found])
        weights = np.exp(self.rate * (scores - scores.max()))
        return found[int(random.choice(len(found), p=weights / weights.sum()))]
