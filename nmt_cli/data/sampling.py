"""Subword sampling: BPE-dropout (Provilkov et al. 2020), and sampling from a unigram model (Kudo 2018).

SentencePiece's own sampling has a seed that depends on the process: a resumed run would see other data. So this module
samples by itself. A piece never spans two words, so words are segmented one by one. A word has `VARIANTS`
segmentations, each drawn by a random generator of its own, and each occurrence of the word picks one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from operator import add
from random import Random

import numpy as np
from sentencepiece import SentencePieceProcessor

from nmt_cli.text.alignment import SPACE
from nmt_cli.text.vocab import pieces_of

VARIANTS = 64  # segmentations of a word; with 64 the result is close to a new draw each time
_MOST_WORDS = 200_000  # size of the cache, some hundred megabytes


class SubwordSampler:
    """`rate` is the share of merges that are dropped; for a unigram model it is the exponent of the probabilities."""

    def __init__(self, processor: SentencePieceProcessor, rate: float, unigram: bool, symbols: tuple[str, ...]) -> None:
        size = processor.get_piece_size()
        pieces = pieces_of(processor)
        special = (processor.is_control, processor.is_unknown, processor.is_byte)
        usable = [i for i in range(size) if pieces[i] not in symbols and not any(test(i) for test in special)]
        self.processor, self.rate, self.unigram = processor, rate, unigram
        self.ids = {pieces[i]: i for i in usable}
        self.scores = {pieces[i]: processor.get_score(i) for i in usable}
        self.starts = np.array([piece.startswith(SPACE) for piece in pieces])
        # A word with any other piece (unknown character, byte, symbol of the user) is never segmented anew.
        self.plain = np.zeros(size, bool)
        self.plain[usable] = True
        self.cache: dict[tuple[bytes, int], list[int]] = {}
        self.segmentations: dict[tuple[int, ...], tuple[list[list[int]], list[float]]] = {}  # for a unigram model

    def sample(self, sentences: Sequence[np.ndarray], seed: int | np.random.Generator) -> list[np.ndarray]:
        """Sample new ids for the same text."""
        lengths = np.array([len(ids) for ids in sentences], np.int64)
        firsts = np.cumsum(lengths) - lengths
        # Handle all words of all sentences at once. The bytes of a word's ids identify the word.
        flat = np.concatenate([*sentences, np.empty(0, np.int32)]).astype(np.int32)
        starts = self.starts[flat]
        starts[firsts[lengths > 0]] = True
        begins = np.flatnonzero(starts)
        ends = np.append(begins, len(flat))[1:]
        choices = np.random.default_rng(seed).integers(VARIANTS, size=len(begins))
        data, size = flat.tobytes(), flat.itemsize
        spans = zip((size * begins).tolist(), (size * ends).tolist(), choices.tolist(), strict=True)
        keys = [(data[begin:end], choice) for begin, end, choice in spans]
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
        pieces = cut(ids.tolist(), random) if self.plain[ids].all() else ids.tolist()
        self.cache[key] = pieces
        return pieces

    def cut_bpe(self, word: list[int], random: Random) -> list[int]:
        """Merge characters by BPE. Each time, each possible merge is skipped with probability `rate`."""
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
        # With vocab.coverage below 1, a character may have no piece. Then the word keeps its pieces.
        return [self.ids[part] for part in parts] if all(part in self.ids for part in parts) else word

    def cut_unigram(self, word: list[int], random: Random) -> list[int]:
        """Draw one of the most probable segmentations, with probability proportional to p^rate."""
        known = self.segmentations.get(tuple(word))
        if known is None:
            text = "".join(self.processor.id_to_piece(i) for i in word)
            nbest = self.processor.nbest_encode(text.removeprefix(SPACE), nbest_size=VARIANTS)
            if not text.startswith(SPACE) or not nbest or not nbest[0]:
                nbest = [word]
            scores = np.array([sum(self.processor.get_score(i) for i in ids) for ids in nbest])
            known = (nbest, np.exp(self.rate * (scores - scores.max())).tolist())
            if len(self.segmentations) >= _MOST_WORDS // VARIANTS:
                self.segmentations.clear()
            self.segmentations[tuple(word)] = known
        segmentations, weights = known
        return random.choices(segmentations, weights)[0]
