"""The micro-batches of the next update, read and pinned in a thread while the device works on the current update."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from nmt_cli.data.batches import Batch, BatchStream, Position, share


@dataclass(frozen=True)
class Work:
    """One process's share of the micro-batches of an update."""

    batches: list[tuple[int, Batch]]  # each with its number in this share; a batch may be empty
    position: Position  # of the micro-batch after this update
    epochs: float  # passes over the data after this update


class WorkAhead:
    """One update ahead: training takes the work of an update, and the thread begins with the next."""

    def __init__(self, stream: BatchStream, accumulate: int, rank: int, processes: int, pins: bool = False) -> None:
        """`pins`: the batches will be copied to an accelerator."""
        self._accelerator = torch.accelerator.current_device_index() if pins else None
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
        batches = [part.read() for part in parts]
        if self._accelerator is not None:
            torch.accelerator.set_device_index(self._accelerator)  # in a new thread it is the first of the machine
            batches = [pinned(batch) for batch in batches]
        return Work(list(enumerate(batches)), self._stream.position, self._stream.epochs)


def pinned(batch: Batch) -> Batch:
    """The same ids in pinned memory. Copying them to an accelerator does not wait for its running kernels."""
    arrays = (batch.src, batch.tgt_in, batch.tgt_out)
    return Batch(*(torch.from_numpy(array).pin_memory().numpy() for array in arrays))
