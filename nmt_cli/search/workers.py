"""Run an engine on several cores: batches go in, results come out in the same order.

CTranslate2 runs one replica of the model on each core, outside of Python, and a thread pool keeps them busy. The torch
engine spends half of its time in Python, so it needs processes. On Linux they are forked, so they share the weights and
start at once. A worker process ignores SIGINT, because the parent handles Ctrl-C; it ends when the parent dies.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from multiprocessing.process import BaseProcess
from typing import Any

from nmt_cli.errors import NmtError
from nmt_cli.parallel import set_up_worker, sigint_blocked, spawn_context
from nmt_cli.search.contract import Engine, Hypothesis, Pair, Request, SearchOptions


class Workers:
    """`translate` and `score` call the engine for each batch. Several threads may call them at the same time."""

    def __init__(self, engine: Engine, count: int, processes: bool) -> None:
        self.engine = engine
        self.name = f"{engine.name}, {count} worker" + "s" * (count > 1)
        self.processes = processes and count > 1
        self.children: list[BaseProcess] = []
        self.is_closed = False
        self.pool: Executor
        if self.processes:
            forks = sys.platform.startswith("linux")
            context = multiprocessing.get_context("fork") if forks else spawn_context()
            self.pool = ProcessPoolExecutor(count, context, _start_process, (engine,))
            children_before = multiprocessing.active_children()
            # The first job starts the processes. Start them before the threads that read and translate windows: a lock
            # that another thread holds during a fork stays locked in the child.
            with sigint_blocked(), self._explained():
                self.pool.submit(int).result()
            self.children = [child for child in multiprocessing.active_children() if child not in children_before]
        else:
            # Two threads for each replica: one converts its results to Python objects while the other's batch is
            # translated.
            self.pool = ThreadPoolExecutor(1 if processes else 2 * count)

    def translate(self, batches: Sequence[Sequence[Request]], options: SearchOptions) -> list[list[list[Hypothesis]]]:
        return self._map("translate", batches, options)

    def score(self, batches: Sequence[Sequence[Pair]], options: SearchOptions) -> list[list[Hypothesis]]:
        return self._map("score", batches, options)

    def _map(self, method: str, batches: Sequence[Any], options: SearchOptions) -> list[Any]:
        with self._explained():
            if self.processes:
                return list(self.pool.map(_call_engine, repeat(method), batches, repeat(options)))
            return list(self.pool.map(getattr(self.engine, method), batches, repeat(options)))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the errors of a pool whose processes died, or that was closed, into NmtErrors."""
        try:
            yield
        except (RuntimeError, CancelledError) as error:  # BrokenExecutor is a RuntimeError
            if self.is_closed:
                hint = "read all results before you close it, inside of the with block"
                raise NmtError("the translator is closed", hint) from None
            if not isinstance(error, BrokenExecutor):
                raise
            raise NmtError("a worker process died; the machine may have run out of memory", "use --workers 1") from None

    def close(self) -> None:
        """Stop the workers at once. Batches that are not finished are dropped."""
        self.is_closed = True
        self.pool.shutdown(wait=False, cancel_futures=True)
        for child in self.children:
            child.kill()  # SIGTERM would call the parent's handler in a child that has not reached set_up_worker
        for child in self.children:
            # getrusage counts the memory of a child only after the join. A thread of the pool joins the child too.
            # Until that thread has noted the exit code, join returns early and the child still counts as alive.
            while child.is_alive():
                child.join(1)


_engine: Engine | None = None  # the engine of this worker process


def _start_process(engine: Engine) -> None:
    from nmt_cli.search.torch_engine import use_one_thread  # only the torch engine has worker processes

    global _engine
    _engine = engine
    set_up_worker()
    use_one_thread()


def _call_engine(method: str, batch: object, options: SearchOptions) -> Any:
    return getattr(_engine, method)(batch, options)
