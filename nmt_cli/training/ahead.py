"""The micro-batches of the next update, read in a thread while the device works on the current update."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from nmt_cli.data.batches import Batch, BatchStream, Position, share


@dataclass(frozen=True)
class Work:
    """One process's share of the micro-batches of an update."""

    batches: list[tuple[int, Batch]]  # each with its number in this share; a batch may be empty
    position: Position  # of the micro-batch after this update
    epochs: float  # passes over the data after this update


class WorkAhead:
    """One update ahead: training takes the work of an update, and the thread begins with the next."""

    def __init__(self, stream: BatchStream, accumulate: int, rank: int, processes: int) -> None:
        self._stream, self._accumulate, self._rank, self._processes = stream, accumulate, rank, processes
        self._next: Future[Work] | None = None

    def __enter__(self) -> WorkAhead:
        self._thread = ThreadPoolExecutor(1, "batches")
        self._next = self._thread.submit(self._read)
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def take(self) -> Work:
        assert self._next is not None
        work = self._next.result()
        self._next = self._thread.submit(self._read)
        return work

    def _read(self) -> Work:
        parts = share(self._stream.take(self._accumulate), self._rank, self._processes)
        return Work(
            [(number, part.read()) for number, part in enumerate(parts)], self._stream.position, self._stream.epochs
        )
