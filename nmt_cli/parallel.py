"""A function over a stream of blocks, on all cores, in order, with bounded memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from multiprocessing.connection import wait
from typing import TypeVar

Block = TypeVar("Block")
Result = TypeVar("Result")

# Starting processes takes as long as a few blocks do.
_WORTH_IT = 4


def cores() -> int:
    """Cores this process may use, which a container or taskset may have made fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def die_with_parent() -> None:
    """In a child that multiprocessing started: no longer than its parent, however that ends.

    A forked child holds both ends of the pipe that it is given work by, so it would wait for ever.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def ordered_map(job: Callable[[Block], Result], blocks: Iterable[Block], processes: int) -> Iterator[Result]:
    """job(block) for each block, in order. `job` is pickled once per process, so it may carry large tables."""
    stream = iter(blocks)
    first = list(islice(stream, _WORTH_IT))
    if processes < 2 or len(first) < _WORTH_IT:
        yield from map(job, chain(first, stream))
        return
    # spawn: safe with threads about, and the same on every platform. The pool's workers end when this process dies.
    with multiprocessing.get_context("spawn").Pool(processes, _start, (job,)) as pool:
        waiting: deque = deque()
        for block in chain(first, stream):
            waiting.append(pool.apply_async(_run, (block,)))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().get()
        while waiting:
            yield waiting.popleft().get()


_job: Callable | None = None


def _start(job: Callable) -> None:
    global _job
    _job = job
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends the pool


def _run(block: object) -> object:
    assert _job is not None
    return _job(block)
