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
from multiprocessing.process import BaseProcess
from typing import Any

from nmt_cli.errors import NmtError
from nmt_cli.parallel import die_with_parent
from nmt_cli.search.contract import Engine


@dataclass(frozen=True)
class Job:
    """A call of engine.translate or engine.score."""

    method: str
    batch: Sequence[Any]
    option: Any


class Workers:
    def __init__(self, engine: Engine, count: int, processes: bool) -> None:
        self.engine = engine
        self.name = f"{engine.name}, {count} worker" + "s" * (count > 1)
        self.processes = processes and count > 1
        self.children: list[BaseProcess] = []
        self.pool: Executor
        if self.processes:
            context = multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")
            self.pool = ProcessPoolExecutor(count, context, _adopt, (engine,))
            others = multiprocessing.active_children()
            self.pool.submit(int).result()  # forked now, before there are threads
            self.children = [child for child in multiprocessing.active_children() if child not in others]
        else:
            # An engine with replicas has a queue too: while one batch becomes Python objects, the next is searched.
            self.pool = ThreadPoolExecutor(1 if processes else 2 * count)

    def run(self, jobs: Sequence[Job]) -> list[Any]:
        """Results of all jobs. Several threads may ask at once."""
        try:
            if self.processes:
                return list(self.pool.map(_in_process, jobs))
            return list(self.pool.map(lambda job: _do(self.engine, job), jobs))
        except BrokenExecutor:
            raise NmtError("a worker died, perhaps for lack of memory", "try --workers 1") from None

    def close(self) -> None:
        """Drop what is not done; nobody wants it any more."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        for child in self.children:
            child.terminate()
        for child in self.children:
            child.join(1)  # only then is its memory known


_engine: Engine | None = None


def _adopt(engine: Engine) -> None:
    global _engine
    _engine = engine
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's own word for it
    die_with_parent()


def _in_process(job: Job) -> Any:
    assert _engine is not None
    return _do(_engine, job)


def _do(engine: Engine, job: Job) -> Any:
    return getattr(engine, job.method)(job.batch, job.option)
