"""Group rows into windows, and translate two windows at a time.

Slow input (a person, a pipe) is answered row by row. Fast input (a file) comes in large windows, which can be sorted by
length and batched. Memory is bounded: reading stops while enough rows wait.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

Row = TypeVar("Row")
Result = TypeVar("Result")

MAX_WAIT = 0.02  # seconds that a row waits for more rows
MIN_ROWS, MAX_ROWS = 64, 4096  # of a window: it grows while the input is fast, and shrinks when the input is slow
MAX_WEIGHT = 1 << 19  # characters of a window, for input with a whole document on each line
READ_AHEAD = 8  # blocks that are read before they are needed
BLOCK_ROWS, BLOCK_WEIGHT = 256, MAX_WEIGHT // READ_AHEAD


def windows(blocks: Iterable[list[Row]], weigh: Callable[[Row], int]) -> Iterator[list[Row]]:
    """The rows of all blocks, in order. A thread reads the blocks, and its error is raised after the rows before it."""
    reader = ThreadPoolExecutor(1)
    source = (part for block in blocks for part in _cut(block, BLOCK_ROWS, BLOCK_WEIGHT, weigh))
    try:
        coming: deque[Future] = deque(reader.submit(next, source, None) for _ in range(READ_AHEAD))
        rows: list[Row] = []
        weight, size = 0, MIN_ROWS
        while coming or rows:
            deadline = time.monotonic() + MAX_WAIT if rows else math.inf
            while coming and len(rows) < size and weight < MAX_WEIGHT:
                wait([coming[0]], max(0.0, deadline - time.monotonic()) if rows else None)
                if not coming[0].done():
                    break
                try:
                    block = coming.popleft().result()
                except BaseException:
                    if rows:
                        yield rows
                    raise
                if block is None:
                    coming.clear()
                    break
                coming.append(reader.submit(next, source, None))
                rows += block
                weight += sum(map(weigh, block))
                deadline = min(deadline, time.monotonic() + MAX_WAIT)
            if rows:
                is_full = len(rows) >= size or weight >= MAX_WEIGHT
                window = next(_cut(rows, size, MAX_WEIGHT, weigh))
                rows, weight = rows[len(window) :], weight - sum(map(weigh, window))
                size = min(2 * size, MAX_ROWS) if is_full else max(MIN_ROWS, size // 2)
                yield window
    finally:
        reader.shutdown(wait=False, cancel_futures=True)


def _cut(rows: list[Row], most: int, heaviest: int, weigh: Callable[[Row], int]) -> Iterator[list[Row]]:
    """Parts of at most `most` rows and `heaviest` characters. A single row may be heavier."""
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
    """job(window) for each window, in order, two at a time: one window is searched while the other is decoded.

    A result is yielded as soon as it is there, even if the next window is not.
    """
    pool = ThreadPoolExecutor(3)  # two jobs, and one thread that waits for the next window
    jobs: deque[Future] = deque()
    coming: Future | None = pool.submit(next, windows, None)
    try:
        while coming or jobs:
            wanted = [coming] if coming and len(jobs) < 2 else []
            wait([*wanted, *list(jobs)[:1]], return_when=FIRST_COMPLETED)
            if coming and coming in wanted and coming.done():
                last, coming = coming, None
                if last.exception() is None and last.result() is not None:
                    jobs.append(pool.submit(job, last.result()))
                    coming = pool.submit(next, windows, None)
            elif jobs and jobs[0].done():
                yield jobs.popleft().result()
        last.result()  # raises the error of the reader, if there was one
    finally:  # after Ctrl-C, nothing waits for the threads: cli.py ends the process
        pool.shutdown(wait=False, cancel_futures=True)
