"""Batches for `nmt train`: sentences of like length together, under a budget of tokens, in an order that is a pure
function of (seed, epoch), the same however many processes share it. A position in it is two numbers, so resuming is
exact and costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli.errors import NmtError
from nmt_cli.sampling import SubwordSampler
from nmt_cli.shards import Shard
from nmt_cli.vocab import BOS, EOS, PAD, Vocab

Sentences = Sequence[Any]  # of ids: lists or arrays

POOL = 1 << 19  # sentences sorted together; a longer corpus is shuffled between pools, not within one sorted whole


@dataclass(frozen=True)
class Batch:
    """Ids, padded: source (B,S) and target (B,T), shifted against each other by one."""

    src: np.ndarray
    tgt_in: np.ndarray
    tgt_out: np.ndarray

    @property
    def tokens(self) -> int:
        """Of the target, end marks included, padding not."""
        return int((self.tgt_out != PAD).sum())

    @property
    def source_tokens(self) -> int:
        return int((self.src != PAD).sum())

    @property
    def cells(self) -> int:
        """Of both sides, padding included."""
        return self.src.size + self.tgt_out.size

    def parts(self, count: int) -> Iterator[Batch]:
        """The same sentences in so many batches."""
        rows = -(-len(self.src) // count)
        for first in range(0, len(self.src), rows):
            part = slice(first, first + rows)
            yield Batch(self.src[part], self.tgt_in[part], self.tgt_out[part])


@dataclass(frozen=True)
class Position:
    """How far training has come: the next micro-batch to read."""

    epoch: int = 0
    index: int = 0


class ParallelData:
    """A prepared corpus, as pairs of id arrays."""

    def __init__(self, folder: Path, split: str, vocab: Vocab, max_length: int = 0, sampling: float = 0.0) -> None:
        sizes = vocab.sizes
        self.source = Shard(folder, f"{split}.source", sizes[0])
        self.target = Shard(folder, f"{split}.target", sizes[1])
        if len(self.source) != len(self.target):
            raise NmtError(f"{folder}: the sides of {split} differ in length: damaged", "prepare the data again")
        self.samplers = None
        if sampling:
            sides = (vocab.source, vocab.target)
            self.samplers = [SubwordSampler(side, sampling, vocab.type == "unigram", vocab.symbols) for side in sides]
        # EOS is one more on each side
        self.lengths = np.stack([self.source.lengths, self.target.lengths], 1).astype(np.int32) + 1
        longest = self.lengths.max(1, initial=0)
        self.used = np.flatnonzero(longest <= max_length + 1) if max_length else np.arange(len(self.source))
        if not len(self.used):
            raise NmtError(f"no training pair has at most {max_length} pieces a side", "raise train.max_length")

    def batch(self, rows: np.ndarray, seed: int) -> Batch:
        """These pairs as one batch; the seed chooses their pieces, if those are sampled."""
        sources: Sentences = [self.source[row] for row in rows]
        targets: Sentences = [self.target[row] for row in rows]
        if self.samplers is not None:
            sources = self.samplers[0].sample(sources, seed)
            targets = self.samplers[1].sample(targets, seed)
        return make_batch(sources, targets)


def make_batch(sources: Sentences, targets: Sentences) -> Batch:
    """Sentences without marks, as ids; the batch has BOS and EOS where they belong."""
    ends = pad(targets)
    starts = np.empty_like(ends)
    starts[:, 0], starts[:, 1:] = BOS, ends[:, :-1]
    starts[starts == EOS] = PAD  # a shorter target's end is no input
    return Batch(src=pad(sources), tgt_in=starts, tgt_out=ends)


def pad(sentences: Sentences) -> np.ndarray:
    """(B,T), each row with EOS behind it."""
    padded = np.full((len(sentences), max(map(len, sentences), default=0) + 1), PAD, np.int64)
    for row, ids in zip(padded, sentences, strict=True):
        row[: len(ids)] = ids
        row[len(ids)] = EOS
    return padded


def lay_out(lengths: np.ndarray, budget: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
    """The micro-batches of an epoch, as arrays of row numbers. `lengths` (N,2) count EOS.

    A batch holds as many rows as fit when each is as long as its longest side; a row longer than the budget is alone.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    for start in range(0, len(order), POOL):
        pool = order[start : start + POOL]
        source, target = lengths[pool, 0], lengths[pool, 1]
        # By target length; within one, sources go up and in the next down again, so that a batch across the border
        # finds like ones on both sides of it. Rows of equal lengths stay in the order of the permutation.
        pool = pool[np.lexsort((np.where(target % 2, source, -source), target))]
        cuts = _cut(lengths[pool].max(1), budget)
        batches = np.split(pool, cuts)
        for index in random.permutation(len(batches)):
            yield batches[index]


def _cut(longest: np.ndarray, budget: int) -> list[int]:
    """Where to cut a pool, so that rows x longest stays within the budget."""
    cuts, first, width = [], 0, 0
    for index, length in enumerate(longest.tolist()):
        width = max(width, length)
        if index > first and (index - first + 1) * width > budget:
            cuts.append(index)
            first, width = index, length
    return cuts


class BatchStream:
    """Micro-batches from a position on, epoch after epoch without end."""

    def __init__(self, data: ParallelData, budget: int, seed: int, position: Position) -> None:
        self.data, self.budget, self.seed, self.position = data, budget, seed, position
        self._batches = self._lay_out()

    def _lay_out(self) -> list[np.ndarray]:
        lengths = self.data.lengths[self.data.used]
        return [self.data.used[rows] for rows in lay_out(lengths, self.budget, self.seed, self.position.epoch)]

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        return self.position.epoch + self.position.index / len(self._batches)

    def take(self, count: int) -> list[np.ndarray]:
        """The rows of the next `count` micro-batches."""
        taken: list[np.ndarray] = []
        while len(taken) < count:
            epoch, index = self.position.epoch, self.position.index
            if index == len(self._batches):
                self.position = Position(epoch + 1, 0)
                self._batches = self._lay_out()
                continue
            taken.append(self._batches[index])
            self.position = Position(epoch, index + 1)
        return taken


def share(micro_batches: list[np.ndarray], rank: int, processes: int) -> list[np.ndarray]:
    """What this process computes of an update: whole micro-batches if they come out even, else a part of each."""
    if len(micro_batches) % processes == 0:
        return micro_batches[rank::processes]
    return [rows[rank::processes] for rows in micro_batches]
