"""Batches for `nmt train`: sentences of similar length together, up to a budget of tokens.

The order of the batches is a pure function of (seed, epoch), for any number of processes, so a resumed run continues
exactly at its position.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli.data.augment import Augmenter
from nmt_cli.data.sampling import SubwordSampler
from nmt_cli.data.shards import open_shards
from nmt_cli.errors import NmtError
from nmt_cli.text.vocab import BOS, EOS, PAD, Vocab

Sentences = Sequence[Any]  # each sentence is a list or array of ids

# Number of pairs that are sorted together. A larger corpus is split into several pools.
POOL = 1 << 19
# Augmentation and subword sampling change the lengths, so a whole pool is changed before its first batch. A small pool
# is quick.
CHANGED_POOL = 1 << 15


@dataclass(frozen=True)
class Batch:
    """Padded ids: the source (B,S), and the target (B,T) twice: tgt_in begins with BOS, tgt_out ends with EOS."""

    src: np.ndarray
    tgt_in: np.ndarray
    tgt_out: np.ndarray

    @property
    def tokens(self) -> int:
        """Number of target tokens, including end marks but no padding."""
        return int((self.tgt_out != PAD).sum())

    @property
    def source_tokens(self) -> int:
        return int((self.src != PAD).sum())

    @property
    def cells(self) -> int:
        """Number of ids on both sides, including padding."""
        return self.src.size + self.tgt_out.size

    def parts(self, count: int) -> Iterator[Batch]:
        """Yield the same sentences in `count` smaller batches, or fewer if there are fewer sentences."""
        rows = max(1, -(-len(self.src) // count))
        for first in range(0, len(self.src), rows):
            part = slice(first, first + rows)
            yield Batch(self.src[part], self.tgt_in[part], self.tgt_out[part])


@dataclass(frozen=True)
class Position:
    """The next micro-batch that training reads."""

    epoch: int = 0
    pool: int = 0
    index: int = 0  # number of the micro-batch in the pool


class ParallelData:
    """A prepared corpus as pairs of id arrays."""

    def __init__(
        self,
        folder: Path,
        split: str,
        vocab: Vocab,
        max_length: int = 0,
        sampling: float = 0.0,
        augmenter: Augmenter | None = None,
        pad_to: int = 1,
    ) -> None:
        """Leave out pairs with more than max_length pieces on a side. `sampling` is the rate of subword sampling."""
        self.source, self.target = open_shards(folder, split, vocab.sizes)
        self.max_length, self.augmenter, self.pad_to = max_length, augmenter, pad_to
        self.samplers = [
            SubwordSampler(side, sampling, vocab.type == "unigram", vocab.symbols)
            for side in (vocab.source, vocab.target)
            if sampling
        ]
        # EOS adds one to each length.
        self.lengths = np.stack([self.source.lengths, self.target.lengths], 1).astype(np.int32) + 1
        longer = self.lengths.max(1, initial=0)
        used = np.flatnonzero(longer <= max_length + 1) if max_length else np.arange(len(self.source))
        self.used = used.astype(np.uint32)  # 4 bytes per pair; the order of an epoch needs 4 more
        if not len(self.used):
            raise NmtError(f"every training pair has more than {max_length} pieces on a side", "raise train.max_length")

    @property
    def changes(self) -> bool:
        """Whether training sees other pieces than the stored ones."""
        return bool(self.augmenter or self.samplers)


class Pool:
    """A part of an epoch: pairs that are sorted together. With augmentation or sampling, the pool holds new pieces."""

    def __init__(
        self, data: ParallelData, rows: np.ndarray, seed: int, epoch: int, random: np.random.Generator
    ) -> None:
        self.data, self.rows = data, rows
        self.lengths = data.lengths[rows]
        self.changed: list[list[np.ndarray]] = []  # source and target
        if not data.changes:
            return
        sides = [data.source.rows(rows), data.target.rows(rows)]
        if data.augmenter:
            sides = data.augmenter.change(sides, rows, seed, epoch)
        for number, sampler in enumerate(data.samplers):
            old, new = sides[number], sampler.sample(sides[number], random)
            if data.max_length:  # a sentence that would exceed max_length keeps its pieces
                new = [a if len(b) > data.max_length else b for a, b in zip(old, new, strict=True)]
            sides[number] = new
        self.changed = sides
        self.lengths = np.array([list(map(len, side)) for side in sides], np.int32).T + 1

    def batch(self, numbers: np.ndarray) -> Batch:
        if self.changed:
            sources, targets = ([side[number] for number in numbers] for side in self.changed)
        else:
            sources, targets = (side.rows(self.rows[numbers]) for side in (self.data.source, self.data.target))
        return make_batch(sources, targets, self.data.pad_to, self.data.max_length)


@dataclass(frozen=True)
class MicroBatch:
    """Some pairs of a pool, by number. They are not read yet, because another process may compute them."""

    pool: Pool
    numbers: np.ndarray

    def read(self) -> Batch:
        return self.pool.batch(self.numbers)


def make_batch(sources: Sentences, targets: Sentences, pad_to: int = 1, most: int = 0) -> Batch:
    """Make a batch of sentences without BOS and EOS; the batch has both. `pad_to` and `most` are those of `pad`."""
    ends = pad(targets, pad_to, most)
    starts = np.empty_like(ends)
    starts[:, 0], starts[:, 1:] = BOS, ends[:, :-1]
    starts[starts == EOS] = PAD  # the end mark of a shorter target is not an input
    return Batch(src=pad(sources, pad_to, most), tgt_in=starts, tgt_out=ends)


def pad(sentences: Sentences, pad_to: int = 1, most: int = 0) -> np.ndarray:
    """(B,T): one padded row per sentence, with EOS at the end of the sentence. T is a multiple of pad_to. If `most` is
    set, T is at most `most` + 1, because the model may have no more positions."""
    width = -(-(max(map(len, sentences), default=0) + 1) // pad_to) * pad_to
    padded = np.full((len(sentences), min(width, most + 1) if most else width), PAD, np.int64)
    for row, ids in zip(padded, sentences, strict=True):
        row[: len(ids)] = ids
        row[len(ids)] = EOS
    return padded


def lay_out(lengths: np.ndarray, budget: int, random: np.random.Generator) -> list[np.ndarray]:
    """The micro-batches of a pool, as arrays of row numbers. `lengths` (N,2) include EOS.

    Rows times longest side stays within the budget. A row longer than the budget is a batch of its own.
    """
    orders = [_sorted(lengths, width) for width in (1, 2, 3)]
    cuts = [_cut(lengths[order].max(1), budget) for order in orders]
    order, cut = min(zip(orders, cuts, strict=True), key=lambda tried: _cells(lengths[tried[0]], tried[1]))
    batches = np.split(order, cut)
    return [batches[index] for index in random.permutation(len(batches))]


def _sorted(lengths: np.ndarray, width: int) -> np.ndarray:
    """Sort by classes of target lengths, `width` lengths to a class, and within a class by source length.

    A wider class has more padding on the target side and, if it fills many batches, less on the source side. Source
    lengths go up in one class and down in the next, so that a batch across the border has similar source lengths.
    """
    source, classes = lengths[:, 0], lengths[:, 1] // width
    return np.lexsort((np.where(classes % 2, source, -source), classes))


def _cut(longest: np.ndarray, budget: int) -> list[int]:
    """The row numbers at which to cut a sorted pool, so that rows times longest side stays within the budget."""
    cuts, first, width = [], 0, 0
    for index, length in enumerate(longest.tolist()):
        width = max(width, length)
        if index > first and (index - first + 1) * width > budget:
            cuts.append(index)
            first, width = index, length
    return cuts


def _cells(lengths: np.ndarray, cuts: list[int]) -> int:
    """Number of ids in all batches, including padding."""
    firsts = np.array([0, *cuts])
    rows = np.diff(np.append(firsts, len(lengths)))
    return int((np.maximum.reduceat(lengths, firsts).sum(1) * rows).sum())


class BatchStream:
    """Micro-batches from a position on, epoch after epoch, without end."""

    def __init__(self, data: ParallelData, budget: int, seed: int, position: Position) -> None:
        self.data, self.budget, self.seed = data, budget, seed
        size = max(CHANGED_POOL, 16 * budget) if data.changes else POOL  # a pool must fill many batches
        self._pools = math.ceil(len(data.used) / size)
        self._order_epoch = -1  # the epoch of self._order
        self._enter(position)

    def _enter(self, position: Position) -> None:
        """Lay out the pool of this position. Each pool has its own random generator, independent of earlier pools."""
        self.position = position
        if self._order_epoch != position.epoch:
            self._order_epoch = position.epoch
            self._order = np.random.default_rng([self.seed, position.epoch]).permutation(self.data.used)
        random = np.random.default_rng([self.seed, position.epoch, 1 + position.pool])
        # All pools have the same size: a small pool would have much padding.
        self._first, last = (len(self._order) * number // self._pools for number in (position.pool, position.pool + 1))
        self._pool = Pool(self.data, self._order[self._first : last], self.seed, position.epoch, random)
        self._batches = lay_out(self._pool.lengths, self.budget, random)

    @property
    def epochs(self) -> float:
        """Number of passes over the data so far."""
        inside = len(self._pool.rows) * self.position.index / len(self._batches)
        return self.position.epoch + (self._first + inside) / len(self.data.used)

    def take(self, count: int) -> list[MicroBatch]:
        taken: list[MicroBatch] = []
        while len(taken) < count:
            epoch, pool, index = self.position.epoch, self.position.pool, self.position.index
            if index == len(self._batches):
                is_last_pool = pool + 1 == self._pools
                self._enter(Position(epoch + 1) if is_last_pool else Position(epoch, pool + 1))
                continue
            taken.append(MicroBatch(self._pool, self._batches[index]))
            self.position = Position(epoch, pool, index + 1)
        return taken


def share(micro_batches: list[MicroBatch], rank: int, processes: int) -> list[MicroBatch]:
    """The part of an update for this process: whole micro-batches if they divide evenly, else a part of each."""
    if len(micro_batches) % processes == 0:
        return micro_batches[rank::processes]
    return [MicroBatch(batch.pool, batch.numbers[rank::processes]) for batch in micro_batches]
