"""An engine on several cores: batches go in, results come out in the same order.

CTranslate2 has replicas of its own, which want a thread each. The torch engine wants processes: its search spends half
its time in Python. They are forked, so they share the weights and start at once; where there is no fork, each gets a
copy.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from nmt_cli.engine import Engine
from nmt_cli.errors import NmtError


@dataclass(frozen=True)
class Job:
    """A call of engine.translate or engine.score."""

    method: str
    batch: Sequence[Any]
    option: Any


class Workers:
    def __init__(self, engine: Engine, count: int, processes: bool) -> None:
        self.engine, self.count, self.processes = engine, count, processes
        self.name = f"{engine.name}, {count} worker" + "s" * (count > 1)
        self.pool: Executor | None = None

    def run(self, jobs: Sequence[Job]) -> list[Any]:
        """Results of all jobs. A pool is made only when there is work for two."""
        if self.count < 2 or len(jobs) < 2:
            return [_do(self.engine, job) for job in jobs]
        if self.pool is None:
            self.pool = self._start()
        try:
            if self.processes:
                return list(self.pool.map(_in_process, jobs))
            return list(self.pool.map(lambda job: _do(self.engine, job), jobs))
        except BrokenExecutor:
            raise NmtError("a worker died, perhaps for lack of memory", "try --workers 1") from None

    def _start(self) -> Executor:
        if not self.processes:
            return ThreadPoolExecutor(self.count)
        context = multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")
        return ProcessPoolExecutor(self.count, context, _adopt, (self.engine,))

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)


_engine: Engine | None = None


def _adopt(engine: Engine) -> None:
    global _engine
    _engine = engine
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent


def _in_process(job: Job) -> Any:
    assert _engine is not None
    return _do(_engine, job)


def _do(engine: Engine, job: Job) -> Any:
    return getattr(engine, job.method)(job.batch, job.option)
