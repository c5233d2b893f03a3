"""The same text in other pieces: BPE-dropout (Provilkov et al. 2020), and sampling from a unigram model (Kudo 2018).

SentencePiece samples too, but mixes something of the process into every seed, and a run that was resumed would see
other data than one that was not. Here what comes out is a function of the seed. Pieces never cross words, so each word
is cut in `VARIANTS` ways when it is first met, by a generator of its own, and each of a sentence's words picks one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from operator import add
from random import Random

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
        self.cache: dict[tuple[bytes, int], list[int]] = {}
        self.segmentations: dict[tuple[int, ...], tuple[list[list[int]], list[float]]] = {}  # of a unigram model

    def sample(self, sentences: Sequence[np.ndarray], seed: int | np.random.Generator) -> list[np.ndarray]:
        """Other ids for the same text."""
        lengths = np.array([len(ids) for ids in sentences], np.int64)
        firsts = np.cumsum(lengths) - lengths
        # All words of all sentences at once, each as the bytes of its ids.
        flat = np.concatenate([*sentences, np.empty(0, np.int32)]).astype(np.int32)
        starts = self.starts[flat]
        starts[firsts[lengths > 0]] = True
        begins = np.flatnonzero(starts)
        ends = np.append(begins, len(flat))[1:]
        choices = np.random.default_rng(seed).integers(VARIANTS, size=len(begins))
        data, size = flat.tobytes(), flat.itemsize
        keys = [
            (data[begin:end], choice)
            for begin, end, choice in zip(
                (size * begins).tolist(), (size * ends).tolist(), choices.tolist(), strict=True
            )
        ]
        words = [self.cache.get(key) or self.variant(key) for key in keys]
        of_sentence = np.append(np.searchsorted(begins, firsts), len(words)).tolist()
        return [np.fromiter(chain.from_iterable(words[first:stop]), np.int32) for first, stop in pairwise(of_sentence)]

    def variant(self, key: tuple[bytes, int]) -> list[int]:
        word, choice = key
        if len(self.cache) >= _MOST_WORDS:
            self.cache.clear()
        ids = np.frombuffer(word, np.int32)
        cut = self.cut_unigram if self.unigram else self.cut_bpe
        random = Random(int.from_bytes(word + choice.to_bytes(8, "little"), "little"))
        found = cut(ids.tolist(), random) if self.plain[ids].all() else ids.tolist()
        self.cache[key] = found
        return found

    def cut_bpe(self, word: list[int], random: Random) -> list[int]:
        """Merge characters again, each possible merge left out with probability `rate` at each turn."""
        parts = list("".join(self.processor.id_to_piece(i) for i in word))
        scores, rate, draw = self.scores, self.rate, random.random
        while True:
            merges = [
                (scores[joined], -place)
                for place, joined in enumerate(map(add, parts, parts[1:]))
                if joined in scores and draw() >= rate
            ]
            if not merges:
                break
            place = -max(merges)[1]
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        # A character that is no piece of its own, as may be with vocab.coverage below 1: leave the word alone.
        return [self.ids[part] for part in parts] if all(part in self.ids for part in parts) else word

    def cut_unigram(self, word: list[int], random: Random) -> list[int]:
        """One of the likeliest segmentations, with probability proportional to p^rate."""
        found, weights = self.likeliest(tuple(word))
        return random.choices(found, weights)[0]

    def likeliest(self, word: tuple[int, ...]) -> tuple[list[list[int]], list[float]]:
        """Segmentations, and the weights to choose among them by."""
        known = self.segmentations.get(word)
        if known is None:
            text = "".join(self.processor.id_to_piece(i) for i in word)
            found = self.processor.nbest_encode(text.removeprefix(_SPACE), nbest_size=VARIANTS)
            if not text.startswith(_SPACE) or not found or not found[0]:
                found = [list(word)]
            scores = np.array([sum(self.processor.get_score(i) for i in ids) for ids in found])
            known = (found, np.exp(self.rate * (scores - scores.max())).tolist())
            if len(self.segmentations) >= _MOST_WORDS // VARIANTS:
                self.segmentations.clear()
            self.segmentations[word] = known
        return known
