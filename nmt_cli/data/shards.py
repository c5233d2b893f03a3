"""Shards: one file has the ids of all sentences end to end, another file has the offset of each sentence.

Training maps a shard into memory: opening is instant, and processes share the pages. The files are NAME.ids (uint16, or
uint32 above 65,536 pieces) and NAME.offsets (uint64, one more than there are sentences), little-endian.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from nmt_cli.errors import NmtError
from nmt_cli.files import check_regular
from nmt_cli.text.vocab import UNK

_LONGEST_COUNTED = 1000  # the histogram counts longer sentences as sentences of this length


def ids_type(vocab_size: int) -> np.dtype:
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class ShardWriter:
    """Appends blocks of encoded sentences, and counts sentences, tokens, unknown tokens and lengths for the report."""

    def __init__(self, folder: Path, name: str, vocab_size: int) -> None:
        self._type = ids_type(vocab_size)
        self._ids = (folder / f"{name}.ids").open("wb")
        self._offsets = (folder / f"{name}.offsets").open("wb")
        self.sentences = self.tokens = self.unknown = 0
        self._counts = np.zeros(_LONGEST_COUNTED + 1, np.int64)
        self._offsets.write(np.zeros(1, "<u8").tobytes())

    def write(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        self._ids.write(ids.astype(self._type, copy=False).tobytes())
        self._offsets.write((self.tokens + np.cumsum(lengths, dtype="<u8")).astype("<u8", copy=False).tobytes())
        self.sentences += len(lengths)
        self.tokens += len(ids)
        self.unknown += int((ids == UNK).sum())
        self._counts += np.bincount(np.minimum(lengths, _LONGEST_COUNTED), minlength=len(self._counts))

    def histogram(self) -> list[int]:
        """The number of sentences of each length, up to the longest."""
        return np.trim_zeros(self._counts, "b").tolist()

    def close(self) -> None:
        self._ids.close()
        self._offsets.close()


class Shard:
    """One side of a prepared corpus, as a sequence of id arrays."""

    def __init__(self, folder: Path, name: str, vocab_size: int) -> None:
        self.path, self.vocab_size = folder / f"{name}.ids", vocab_size
        try:
            self.offsets = _map(folder / f"{name}.offsets", np.dtype("<u8"))
            self.ids = _map(folder / f"{name}.ids", ids_type(vocab_size))
        except FileNotFoundError as error:
            raise NmtError(f"there is no file {error.filename}", "prepare the data again with --force") from None
        if not len(self.offsets) or self.offsets[0] or self.offsets[-1] != len(self.ids):
            message = f"{folder / name}.ids and .offsets do not match: the files are damaged"
            raise NmtError(message, "prepare the data again with --force")
        if (self.offsets[1:] < self.offsets[:-1]).any():
            message = f"{folder / name}.offsets is damaged: a sentence ends before it begins"
            raise NmtError(message, "prepare the data again with --force")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def rows(self, numbers: Iterable[int]) -> list[np.ndarray]:
        """Some sentences. An id without a piece is an error, as torch would not name the file."""
        rows = [self[number] for number in numbers]
        largest = np.concatenate(rows).max(initial=0) if rows else 0
        if largest >= self.vocab_size:
            message = (
                f"{self.path} is damaged: it has the id {largest}, but the vocabulary has {self.vocab_size} pieces"
            )
            raise NmtError(message, "prepare the data again with --force")
        return rows

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets).astype(np.int64)


def open_shards(folder: Path, split: str, vocab_sizes: tuple[int, int]) -> tuple[Shard, Shard]:
    """The source and the target of a prepared corpus. Both must have the same number of sentences."""
    source = Shard(folder, f"{split}.source", vocab_sizes[0])
    target = Shard(folder, f"{split}.target", vocab_sizes[1])
    if len(source) != len(target):
        message = f"{folder}: source and target of {split} have different lengths: the files are damaged"
        raise NmtError(message, "prepare the data again with --force")
    return source, target


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    check_regular(path)
    size = path.stat().st_size
    if size % dtype.itemsize:
        message = f"{path} is damaged: {size:,} bytes are not a whole number of {dtype.itemsize}-byte numbers"
        raise NmtError(message, "prepare the data again with --force")
    if size == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r")
