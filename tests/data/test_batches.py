"""Batches: their order, their padding, and a position that can be resumed from."""

from __future__ import annotations

import numpy as np
import pytest

from nmt_cli.data import batches
from nmt_cli.data.batches import BatchStream, MicroBatch, ParallelData, Position, lay_out, make_batch, share
from nmt_cli.text.vocab import BOS, EOS, PAD, load_vocab

LENGTHS = np.stack([np.random.default_rng(0).integers(2, 40, 5000), np.random.default_rng(1).integers(2, 40, 5000)], 1)


def test_every_pair_is_in_an_epoch_once_and_within_the_budget():
    batches = lay_out(LENGTHS, 512, np.random.default_rng(1))
    assert sorted(np.concatenate(batches)) == list(range(5000))
    assert all(len(rows) * LENGTHS[rows].max() <= 512 for rows in batches)


def test_a_row_longer_than_the_budget_is_a_batch_of_its_own():
    lengths = np.array([[5, 5], [900, 3], [4, 4]])
    batches = lay_out(lengths, 100, np.random.default_rng(1))
    assert [1] in [rows.tolist() for rows in batches] and sorted(np.concatenate(batches)) == [0, 1, 2]


def numbers(micro_batches) -> list[list[int]]:
    """The rows of the corpus in each micro-batch."""
    return [batch.pool.rows[batch.numbers].tolist() for batch in micro_batches]


def test_order_is_a_function_of_seed_and_epoch(toy_data):
    def order(seed, epoch):
        return numbers(BatchStream(toy_data(), 512, seed, Position(epoch)).take(10))

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1) and order(1, 0) != order(2, 0)


def test_padding_is_below_five_percent():
    """The lengths are like those of Multi30k: around 14, and similar but not equal on both sides."""
    random = np.random.default_rng(0)
    source = np.clip(random.gamma(12, 1.2, 29_000), 3, 60).astype(int)
    target = np.clip(source + random.normal(0.5, 2.5, 29_000), 3, 60).astype(int)
    lengths = np.stack([source, target], 1)
    for budget in (1024, 4096):
        batches = lay_out(lengths, budget, np.random.default_rng(1))
        cells = sum(len(rows) * lengths[rows].max(0).sum() for rows in batches)
        assert 1 - lengths.sum() / cells < 0.05


@pytest.fixture
def toy_data(prepared):
    """toy_data(0.1) is the toy corpus with BPE-dropout."""
    vocab = load_vocab(prepared / "data/vocab")
    return lambda sampling=0.0, longest=0: ParallelData(prepared / "data", "train", vocab, longest, sampling)


@pytest.mark.parametrize("sampling", [0.0, 0.1])
@pytest.mark.parametrize("pool", [1 << 15, 150])
def test_a_stream_continues_from_any_position(toy_data, monkeypatch, sampling, pool):
    """The position may be inside an epoch or a pool, or between two of them. Earlier batches do not matter."""
    monkeypatch.setattr(batches, "POOL", pool)
    monkeypatch.setattr(batches, "CHANGED_POOL", pool)
    stream, seen, epochs = BatchStream(toy_data(sampling), 128, 1, Position()), [], []
    while stream.position.epoch < 2:
        epochs.append(stream.epochs)
        seen.append((stream.position, *stream.take(1)))
    assert epochs == sorted(epochs) and epochs[0] == 0 and 1.9 < epochs[-1] <= 2
    rows = [row for _, batch in seen for row in numbers([batch])[0]]
    assert sorted(rows[:400]) == list(range(400)) and rows[400:800] != rows[:400]  # an epoch has each pair once
    for position, batch in seen[::7]:
        (again,) = BatchStream(toy_data(sampling), 128, 1, position).take(1)
        assert again.read().src.tolist() == batch.read().src.tolist()
        assert again.read().tgt_out.tolist() == batch.read().tgt_out.tolist()


def test_sampled_pieces_are_drawn_before_batches_are_made(toy_data, prepared):
    """So the batches stay within the budget, have little padding, and are the same in every process."""
    data = toy_data(0.3)
    micro = BatchStream(data, 128, 1, Position()).take(40)
    read = [batch.read() for batch in micro]
    assert all(max(batch.src.size, batch.tgt_out.size) <= 128 for batch in read)
    filled, cells = (sum(map(count, read)) for count in (lambda b: b.tokens + b.source_tokens, lambda b: b.cells))
    assert 1 - filled / cells < 0.05
    assert filled > 1.05 * sum(data.lengths[rows].sum() for rows in numbers(micro))  # sampling makes more pieces
    text = (prepared / "a.en").read_text().splitlines()
    processor = load_vocab(prepared / "data/vocab").source
    for batch, rows in zip(read[:3], numbers(micro), strict=False):
        for ids, row in zip(batch.src.tolist(), rows, strict=True):
            assert processor.decode(ids[: ids.index(EOS)]) == text[row]
    for part in range(3):
        assert share(micro[:1], part, 3)[0].read().src.tolist() == [
            row[: share(micro[:1], part, 3)[0].read().src.shape[1]] for row in read[0].src[part::3].tolist()
        ]


def test_sampling_never_exceeds_max_length(toy_data):
    """A sentence that would become too long keeps its pieces. A model may have no more positions."""

    def longest(data) -> int:
        return max(batch.read().src.shape[1] for batch in BatchStream(data, 128, 1, Position()).take(40))

    assert longest(toy_data(1.0, 15)) <= 16 < longest(toy_data(1.0))


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_pair_goes_to_exactly_one_process(processes, count):
    micro = [MicroBatch(None, np.arange(10) + 10 * n) for n in range(count)]
    rows = [row for rank in range(processes) for part in share(micro, rank, processes) for row in part.numbers.tolist()]
    assert sorted(rows) == list(range(10 * count))


def test_batches_are_shifted_and_padded():
    batch = make_batch([[7, 8], [9]], [[5], [6, 7, 8]])
    assert batch.src.tolist() == [[7, 8, EOS], [9, EOS, PAD]]
    assert batch.tgt_in.tolist() == [[BOS, 5, PAD, PAD], [BOS, 6, 7, 8]]
    assert batch.tgt_out.tolist() == [[5, EOS, PAD, PAD], [6, 7, 8, EOS]]
    assert (batch.tokens, batch.source_tokens, batch.cells) == (6, 5, 14)
    assert make_batch([[]], [[]]).tgt_out.tolist() == [[EOS]]
