"""Batches for `nmt train`: sentences of like length together, under a budget of tokens, in an order that is a pure
function of (seed, epoch), the same however many processes share it. A position in it is three numbers, so resuming
is exact and costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli.data.sampling import SubwordSampler
from nmt_cli.data.shards import Shard
from nmt_cli.errors import NmtError
from nmt_cli.text.vocab import BOS, EOS, PAD, Vocab

Sentences = Sequence[Any]  # of ids: lists or arrays

# Pairs that are sorted together; a longer corpus is shuffled between pools, not within one sorted whole.
POOL = 1 << 19
# Where pieces are sampled, lengths are known only after that: a pool of them takes seconds before its first batch.
SAMPLED_POOL = 1 << 15


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
    pool: int = 0
    index: int = 0  # in the pool


class ParallelData:
    """A prepared corpus, as pairs of id arrays."""

    def __init__(self, folder: Path, split: str, vocab: Vocab, max_length: int = 0, sampling: float = 0.0) -> None:
        """Pairs with more than max_length pieces a side are left out, and sampling gives none more than that."""
        sizes = vocab.sizes
        self.source = Shard(folder, f"{split}.source", sizes[0])
        self.target = Shard(folder, f"{split}.target", sizes[1])
        if len(self.source) != len(self.target):
            raise NmtError(f"{folder}: the sides of {split} differ in length: damaged", "prepare the data again")
        self.samplers = None
        self.max_length = max_length
        if sampling:
            sides = (vocab.source, vocab.target)
            self.samplers = [SubwordSampler(side, sampling, vocab.type == "unigram", vocab.symbols) for side in sides]
        # EOS is one more on each side
        self.lengths = np.stack([self.source.lengths, self.target.lengths], 1).astype(np.int32) + 1
        longer = self.lengths.max(1, initial=0)
        used = np.flatnonzero(longer <= max_length + 1) if max_length else np.arange(len(self.source))
        self.used = used.astype(np.uint32)  # 4 bytes a pair, and 4 for the order of an epoch
        if not len(self.used):
            raise NmtError(f"no training pair has at most {max_length} pieces a side", "raise train.max_length")

    def sampled(self, rows: np.ndarray, random: np.random.Generator) -> list[list[np.ndarray]]:
        """Both sides of these pairs, in other pieces."""
        assert self.samplers is not None
        sides = []
        for shard, sampler in zip((self.source, self.target), self.samplers, strict=True):
            given = [shard[row] for row in rows]
            found = sampler.sample(given, random)
            if self.max_length:
                found = [old if len(new) > self.max_length else new for old, new in zip(given, found, strict=True)]
            sides.append(found)
        return sides


class Pool:
    """Part of an epoch: pairs that are sorted together, in the pieces that they have this time."""

    def __init__(self, data: ParallelData, rows: np.ndarray, random: np.random.Generator) -> None:
        self.data, self.rows = data, rows
        self.sampled = None if data.samplers is None else data.sampled(rows, random)
        if self.sampled is None:
            self.lengths = data.lengths[rows]
        else:
            self.lengths = np.array([list(map(len, side)) for side in self.sampled], np.int32).T + 1

    def batch(self, numbers: np.ndarray) -> Batch:
        if self.sampled is None:
            rows = self.rows[numbers]
            return make_batch([self.data.source[row] for row in rows], [self.data.target[row] for row in rows])
        sources, targets = self.sampled
        return make_batch([sources[n] for n in numbers], [targets[n] for n in numbers])


@dataclass(frozen=True)
class MicroBatch:
    """Some pairs of a pool, by their numbers in it; not read yet, for another process may have to."""

    pool: Pool
    numbers: np.ndarray

    def part(self, rank: int, processes: int) -> MicroBatch:
        return MicroBatch(self.pool, self.numbers[rank::processes])

    def read(self) -> Batch:
        return self.pool.batch(self.numbers)


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


def lay_out(lengths: np.ndarray, budget: int, random: np.random.Generator) -> list[np.ndarray]:
    """The micro-batches of a pool, as arrays of row numbers. `lengths` (N,2) count EOS.

    A batch holds as many rows as fit when each is as long as its longest side; a row longer than the budget is alone.
    """
    orders = [_sorted(lengths, width) for width in (1, 2, 3)]
    cuts = [_cut(lengths[order].max(1), budget) for order in orders]
    order, cut = min(zip(orders, cuts, strict=True), key=lambda tried: _cells(lengths[tried[0]], tried[1]))
    batches = np.split(order, cut)
    return [batches[index] for index in random.permutation(len(batches))]


def _sorted(lengths: np.ndarray, width: int) -> np.ndarray:
    """By target length, `width` of them in a class, and within a class by source length.

    A wider class has more padding on the target side and, where it fills many batches, less on the source side.
    Sources go up, and in the next class down again, so that a batch across the border finds like ones on both sides
    of it. Rows of equal lengths stay in their order.
    """
    source, classes = lengths[:, 0], lengths[:, 1] // width
    return np.lexsort((np.where(classes % 2, source, -source), classes))


def _cut(longest: np.ndarray, budget: int) -> list[int]:
    """Where to cut a pool, so that rows x longest stays within the budget."""
    cuts, first, width = [], 0, 0
    for index, length in enumerate(longest.tolist()):
        width = max(width, length)
        if index > first and (index - first + 1) * width > budget:
            cuts.append(index)
            first, width = index, length
    return cuts


def _cells(lengths: np.ndarray, cuts: list[int]) -> int:
    """Of all batches, padding included."""
    firsts = np.array([0, *cuts])
    rows = np.diff(np.append(firsts, len(lengths)))
    return int((np.maximum.reduceat(lengths, firsts).sum(1) * rows).sum())


class BatchStream:
    """Micro-batches from a position on, epoch after epoch without end."""

    def __init__(self, data: ParallelData, budget: int, seed: int, position: Position) -> None:
        self.data, self.budget, self.seed = data, budget, seed
        size = POOL if data.samplers is None else max(SAMPLED_POOL, 16 * budget)  # a pool should fill many batches
        self._pools = math.ceil(len(data.used) / size)
        self._shuffled = -1  # the epoch that _order is of
        self._enter(position)

    def _enter(self, position: Position) -> None:
        """Lay out the pool of this position. Its generators are its own: what came before does not matter."""
        self.position = position
        if self._shuffled != position.epoch:
            self._shuffled = position.epoch
            self._order = np.random.default_rng([self.seed, position.epoch]).permutation(self.data.used)
        random = np.random.default_rng([self.seed, position.epoch, 1 + position.pool])
        # Pools of equal size: a small one would have much padding.
        self._first, last = (len(self._order) * number // self._pools for number in (position.pool, position.pool + 1))
        self._pool = Pool(self.data, self._order[self._first : last], random)
        self._batches = lay_out(self._pool.lengths, self.budget, random)

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        inside = len(self._pool.rows) * self.position.index / len(self._batches)
        return self.position.epoch + (self._first + inside) / len(self.data.used)

    def take(self, count: int) -> list[MicroBatch]:
        """The next `count` micro-batches."""
        taken: list[MicroBatch] = []
        while len(taken) < count:
            here = self.position
            if here.index == len(self._batches):
                last = here.pool + 1 == self._pools
                self._enter(Position(here.epoch + 1) if last else Position(here.epoch, here.pool + 1))
                continue
            taken.append(MicroBatch(self._pool, self._batches[here.index]))
            self.position = Position(here.epoch, here.pool, here.index + 1)
        return taken


def share(micro_batches: list[MicroBatch], rank: int, processes: int) -> list[MicroBatch]:
    """What this process computes of an update: whole micro-batches if they come out even, else a part of each."""
    if len(micro_batches) % processes == 0:
        return micro_batches[rank::processes]
    return [batch.part(rank, processes) for batch in micro_batches]
