"""The only file that knows ranks. One process is a world of size 1, and every call below is then free.

`torchrun --nproc-per-node 2 -m nmt_cli train RECIPE` sets the environment that `join` reads; gloo on CPUs, NCCL on
GPUs. Without torchrun, `with_helpers` starts processes on the cores of this machine. Gradients are summed after the
last micro-batch, in buckets, rather than by DistributedDataParallel: processes may then have different numbers of
micro-batches, and the sum is weighted by tokens without further thought.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from nmt_cli.errors import NmtError
from nmt_cli.parallel import die_with_parent

T = TypeVar("T")
_BUCKET = 1 << 24  # bytes summed in one call


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    store: dist.Store | None = field(default=None, compare=False)  # torchrun's, which outlives the processes

    @property
    def leader(self) -> bool:
        """The one that writes files and speaks."""
        return self.rank == 0


def join(cuda: bool) -> World:
    """Join the processes that torchrun started, if it did."""
    size = int(os.environ["WORLD_SIZE"]) if {"WORLD_SIZE", "RANK", "LOCAL_RANK"} <= os.environ.keys() else 1
    if size == 1:
        return World()
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if cuda:
        torch.cuda.set_device(local_rank)
    store, _, _ = next(iter(dist.rendezvous("env://", rank=rank, world_size=size)))
    world = World(rank, size, local_rank, store)
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        # torchrun keeps its store when it restarts dead workers, and gloo would connect to the addresses of the dead.
        # Only on one node do all workers count restarts alike; on several, a restart may need a second one.
        store = dist.PrefixStore("attempt-" + os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    dist.init_process_group("nccl" if cuda else "gloo", store=store, rank=world.rank, world_size=size)
    return world


def is_marked(name: str, world: World) -> bool:
    """Was this marked, perhaps by processes in whose place torchrun has started these?"""
    return world.store is not None and world.store.check([name])


def mark(name: str, world: World) -> None:
    if world.store is not None:
        world.store.set(name, "1")


def leave(world: World) -> None:
    if world.size > 1 and dist.is_initialized():
        dist.destroy_process_group()


def can_help() -> bool:
    """Not every build of PyTorch can."""
    return dist.is_available() and dist.is_gloo_available()


def with_helpers(size: int, lead: Callable[[World], T], help: Callable[[World], object]) -> T:
    """lead(world) here and help(world), which is pickled, in size - 1 other processes of this machine.

    A helper says nothing and writes nothing, so that it may be killed at any time. When one fails, what it would have
    said is this process's error.
    """
    context = multiprocessing.get_context("spawn")
    loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)  # whatever the machine's name resolves to
    with ExitStack() as stack:
        store = stack.enter_context(tempfile.TemporaryDirectory()) + "/store"
        helpers: list[_Helper] = []
        resource_tracker.ensure_running()  # else the first helper starts it, which would end the deafness
        with _deaf():
            for rank in range(1, size):
                listener, speaker = context.Pipe(duplex=False)
                job = (help, World(rank, size, rank), store, speaker)
                helpers.append(_Helper(context.Process(target=_help, args=job, daemon=True), listener))
                helpers[-1].process.start()
                stack.callback(helpers[-1].end)
        world = World(0, size)
        stack.callback(leave, world)
        # Nobody goes to the meeting, where a signal would not be heard, before all are ready for it.
        if not all(helper.is_ready() for helper in helpers):
            raise _gone(helpers)
        try:
            _meet(world, store)
            return lead(world)
        except RuntimeError as error:
            if "gloo" not in str(error):
                raise
            raise _gone(helpers) from None


@contextmanager
def _deaf() -> Iterator[None]:
    """Ctrl-C waits until the end of this, and never reaches processes that are started in it: it is for the leader."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class _Helper:
    process: SpawnProcess
    listener: Connection  # it says "" when it is ready, and why if it fails

    def is_ready(self) -> bool:
        wait([self.listener, self.process.sentinel])
        return self.listener.poll() and not self.listener.recv()

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def _gone(helpers: list[_Helper]) -> NmtError:
    """Why the others cannot go on: the one that was killed, or had an error that was not about the others."""
    wait([helper.process.sentinel for helper in helpers], timeout=5)
    said = []
    for helper in helpers:
        helper.process.join(0.5)
        with suppress(EOFError, OSError):
            while helper.listener.poll():
                said.append(helper.listener.recv())
    causes = [why for why in said if why and "gloo" not in why]
    why = causes[0] if causes else "it was killed, perhaps for lack of memory"
    hint = "the last checkpoint stands, and the same command goes on; train.processes=1 does without helpers"
    return NmtError(f"a helping process is gone: {why}", hint)


def _help(job: Callable[[World], object], world: World, store: str, speaker: Connection) -> None:
    die_with_parent()
    try:
        speaker.send("")
        _meet(world, store)
        job(world)
        leave(world)
    except BaseException as error:
        with suppress(OSError):
            speaker.send(str(error) if isinstance(error, NmtError) else f"{type(error).__name__}: {error}")
        os._exit(1)


def _meet(world: World, store: str) -> None:
    # On one machine a death is noticed at once, and a run that was suspended for hours should go on.
    patience = timedelta(days=365)
    file = dist.FileStore(store, world.size)
    dist.init_process_group("gloo", store=file, rank=world.rank, world_size=world.size, timeout=patience)


def add_up(tensors: Iterable[Tensor], world: World) -> None:
    """Replace each tensor by its sum over all processes."""
    if world.size == 1:
        return
    bucket: list[Tensor] = []
    for tensor in tensors:
        bucket.append(tensor)
        if sum(part.nbytes for part in bucket) >= _BUCKET:
            _add_up_bucket(bucket)
            bucket = []
    if bucket:
        _add_up_bucket(bucket)


def _add_up_bucket(bucket: list[Tensor]) -> None:
    flat = torch.cat([tensor.flatten() for tensor in bucket])
    dist.all_reduce(flat)
    for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
        tensor.copy_(part.view_as(tensor))


def gather(value: T, world: World) -> list[T]:
    """The values of all processes, for the leader; an empty list for the others."""
    if world.size == 1:
        return [value]
    box: list[T | None] | None = [None] * world.size if world.leader else None
    dist.gather_object(value, box)
    return box or []  # type: ignore[return-value]


def from_leader(value: T, world: World) -> T:
    """The leader's value, in every process. Small things only: numbers, strings, tuples of them."""
    if world.size == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
