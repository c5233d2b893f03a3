"""The only file that knows ranks. One process is a world of size 1, and every call below is then free.

`torchrun --nproc-per-node 2 -m nmt_cli train RECIPE` sets the environment that `join` reads; gloo on CPUs, NCCL on
GPUs. Without torchrun, `with_helpers` starts processes on the cores of this machine. Gradients are summed after the
last micro-batch, in buckets, rather than by DistributedDataParallel: processes may then have different numbers of
micro-batches, and the sum is weighted by tokens without further thought.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from nmt_cli.errors import NmtError

T = TypeVar("T")
_BUCKET = 1 << 24  # bytes summed in one call


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def leader(self) -> bool:
        """The one that writes files and speaks."""
        return self.rank == 0


def join(cuda: bool) -> World:
    """Join the processes that torchrun started, if it did."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World()
    world = World(int(os.environ["RANK"]), size, int(os.environ["LOCAL_RANK"]))
    if cuda:
        torch.cuda.set_device(world.local_rank)
    store, _, _ = next(iter(dist.rendezvous("env://", rank=world.rank, world_size=size)))
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        # torchrun keeps its store when it restarts dead workers, and gloo would connect to the addresses of the dead.
        # Only on one node do all workers count restarts alike; on several, a restart may need a second one.
        store = dist.PrefixStore("attempt-" + os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    dist.init_process_group("nccl" if cuda else "gloo", store=store, rank=world.rank, world_size=size)
    return world


def leave(world: World) -> None:
    if world.size > 1 and dist.is_initialized():
        dist.destroy_process_group()


def can_help() -> bool:
    """Not every build of PyTorch can."""
    return dist.is_available() and dist.is_gloo_available()


def with_helpers(size: int, lead: Callable[[World], None], help: Callable[[World], None]) -> None:
    """lead(world) here and help(world), which is pickled, in size - 1 other processes of this machine.

    A helper says nothing and writes nothing. When one fails, what it would have said is this process's error.
    """
    context = multiprocessing.get_context("spawn")
    loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)  # whatever the machine's name resolves to
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        store = f"{folder}/store"
        last_words, speaker = context.Pipe(duplex=False)
        helpers = []
        for rank in range(1, size):
            helper = context.Process(target=_help, args=(help, World(rank, size, rank), store, speaker), daemon=True)
            helper.start()
            stack.callback(helper.terminate)
            helpers.append(helper)
        world = World(0, size)
        stack.callback(leave, world)
        try:
            _meet(world, store)
            lead(world)
        except RuntimeError:  # what gloo says when a peer is gone
            if last_words.poll(1):
                why = last_words.recv()
            elif not all(helper.is_alive() for helper in helpers):
                why = "it was killed, perhaps for lack of memory"
            else:
                raise
            hint = "the last checkpoint stands, and the same command goes on; train.processes=1 does without helpers"
            raise NmtError(f"a helping process is gone: {why}", hint) from None


def _help(job: Callable[[World], None], world: World, store: str, speaker: Connection) -> None:
    try:
        _meet(world, store)
        job(world)
        leave(world)
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt):
            with suppress(OSError):
                speaker.send(str(error) or type(error).__name__)
        os._exit(1)


def _meet(world: World, store: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, world.size), rank=world.rank, world_size=world.size)


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
