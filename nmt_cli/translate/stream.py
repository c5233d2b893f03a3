"""Rows from a slow pipe or a fast file, in windows: what has come is answered soon, what comes fast is sorted."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Row = TypeVar("Row")
Result = TypeVar("Result")

COMPANY = 0.02  # seconds that a row waits for others
FIRST, MOST = 64, 4096  # rows of a window, which grows while input is fast and shrinks when it is not
HEAVIEST = 1 << 19  # ... and its characters: whole documents on a line fill it sooner
BLOCK = 256
AHEAD = 8  # blocks read while a window is at work: memory is bounded whatever the input


def windows(blocks: Iterable[list[Row]], weigh: Callable[[Row], int]) -> Iterator[list[Row]]:
    """The rows of all blocks, in order; `weigh` counts a row's characters. A thread of its own reads them, so nobody
    waits for the end of input."""
    ready: queue.Queue[list[Row] | BaseException | None] = queue.Queue(AHEAD)
    threading.Thread(target=_read, args=(blocks, ready, weigh), daemon=True).start()
    held: list[Row] = []
    weight = 0  # of what is held
    size, over = FIRST, False
    while not over or held:
        deadline = time.monotonic() + COMPANY if held else math.inf
        while not over and len(held) < size and weight < HEAVIEST:
            try:
                block = ready.get(timeout=max(0.0, deadline - time.monotonic()) if held else None)
            except queue.Empty:
                break
            if block is None:
                over = True
            elif isinstance(block, BaseException):
                if held:  # what came before the trouble is answered first
                    yield held
                raise block
            else:
                held += block
                weight += sum(map(weigh, block))
                deadline = min(deadline, time.monotonic() + COMPANY)
        if held:
            full = len(held) >= size or weight >= HEAVIEST
            window = next(_parts(held, size, HEAVIEST, weigh))
            held, weight = held[len(window) :], weight - sum(map(weigh, window))
            size = min(2 * size, MOST) if full else max(FIRST, size // 2)
            yield window


def _parts(rows: list[Row], most: int, heaviest: int, weigh: Callable[[Row], int]) -> Iterator[list[Row]]:
    """Of so many rows and no more weight; one row, however heavy."""
    part: list[Row] = []
    total = 0
    for row in rows:
        weight = weigh(row)
        if part and (len(part) == most or total + weight > heaviest):
            yield part
            part, total = [], 0
        part.append(row)
        total += weight
    if part:
        yield part


def overlapped(job: Callable[[list[Row]], Result], windows: Iterator[list[Row]]) -> Iterator[Result]:
    """job(window) for each, in order, two at a time: while one is read, encoded and decoded, the other is searched.

    A result is passed on as soon as it is there, whether or not there is more input.
    """
    waiting: queue.Queue[queue.Queue | None] = queue.Queue(1)

    def work(window: list[Row], slot: queue.Queue) -> None:
        try:
            slot.put((job(window), None))
        except BaseException as error:
            slot.put((None, error))

    def feed() -> None:
        try:
            for window in windows:
                slot: queue.Queue = queue.Queue(1)
                waiting.put(slot)  # waits here while two are at work
                threading.Thread(target=work, args=(window, slot), daemon=True).start()
            waiting.put(None)
        except BaseException as error:
            slot = queue.Queue(1)
            slot.put((None, error))
            waiting.put(slot)

    # Daemons all: after Ctrl-C nobody waits for them.
    threading.Thread(target=feed, daemon=True).start()
    while (slot := waiting.get()) is not None:
        result, error = slot.get()
        if error is not None:
            raise error
        yield result


def _read(blocks: Iterable[list[Row]], ready: queue.Queue, weigh: Callable[[Row], int]) -> None:
    try:
        for block in blocks:
            for part in _parts(block, BLOCK, HEAVIEST // AHEAD, weigh):
                ready.put(part)
        ready.put(None)
    except BaseException as error:  # whatever it is, the reader of the queue should know
        ready.put(error)
