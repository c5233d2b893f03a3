"""Run a function over a stream of blocks on all cores, in order, with bounded memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from itertools import chain, islice
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext
from typing import TypeVar

from nmt_cli.errors import NmtError

Block = TypeVar("Block")
Result = TypeVar("Result")

_FEWEST_BLOCKS = 4  # fewer blocks are done before worker processes have started


def cores() -> int:
    """The number of cores that this process may use. A container or taskset may allow fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_memory_mb(children: bool = False) -> float:
    """The peak memory of this process, or of its largest ended child, in MiB; 0 where the system does not tell."""
    try:
        import resource  # Windows lacks this module
    except ImportError:
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 2**20


def die_with_parent() -> None:
    """End this worker process when its parent process ends, even by SIGKILL.

    Without this a worker waits forever: it holds both ends of the pipe from which it reads its work.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def set_up_worker() -> None:
    """In a worker process: leave Ctrl-C to the parent process, end on SIGTERM, and end with the parent process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()


def ordered_map(job: Callable[[Block], Result], blocks: Iterable[Block], processes: int) -> Iterator[Result]:
    """Yield job(block) for each block, in order. `job` is pickled once per process, so it may hold large tables."""
    stream = iter(blocks)
    first = list(islice(stream, _FEWEST_BLOCKS))
    if processes < 2 or len(first) < _FEWEST_BLOCKS:
        yield from map(job, chain(first, stream))
        return
    context = spawn_context()
    pool = ProcessPoolExecutor(processes, context, initializer=_start_worker, initargs=(job,))
    try:
        waiting: deque[Future[Result]] = deque()
        for block in chain(first, stream):
            with sigint_blocked():
                waiting.append(pool.submit(_run, block))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise NmtError("a worker process died", "it may have run out of memory: close other programs") from None
    finally:
        pool.shutdown(cancel_futures=True)


@cache
def spawn_context() -> SpawnContext:
    """The context that starts worker processes. Raise an error if they cannot start.

    spawn, not fork: a fork may copy a lock that another thread holds. A spawned process imports the script of its
    parent. If the script starts workers while it is imported, the process ends at once, and the parent could wait
    forever for room in the pipe to it. So one process is started first, which gets nothing through the pipe.
    """
    context = multiprocessing.get_context("spawn")
    context.Lock()  # starts the resource tracker of multiprocessing, whose start unblocks SIGINT
    probe = context.Process(target=_nothing)
    with sigint_blocked():
        probe.start()
    probe.join()
    if probe.exitcode:
        hint = 'call nmt below if __name__ == "__main__", because worker processes import the script'
        raise NmtError("worker processes cannot start", hint)
    return context


def _nothing() -> None:
    pass


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Block SIGINT while worker processes start. They inherit the block, so Ctrl-C reaches only the parent process."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_job: Callable | None = None


def _start_worker(job: Callable) -> None:
    global _job
    _job = job
    set_up_worker()


def _run(block: Block) -> Result:  # type: ignore[type-var]
    assert _job is not None
    return _job(block)
