"""The only module that knows ranks. One process is a world of size 1; every call below then returns at once.

torchrun sets the environment that `join` reads. Without torchrun, `with_workers` starts processes on the cores of this
machine. `share_gradients` lets torch's DistributedDataParallel take the mean of all gradients.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nmt_cli.errors import NmtError
from nmt_cli.parallel import die_with_parent, sigint_blocked

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1
    store: dist.Store | None = field(default=None, compare=False)  # of torchrun; survives restarts of the processes

    @property
    def leader(self) -> bool:
        """The leader writes the files and the messages."""
        return self.rank == 0


def join(device: torch.device) -> World:
    """Join the processes that torchrun started, if torchrun started this one. `device` is the kind of device to use.

    Tensors of an accelerator travel by its own backend, such as NCCL. Those on the CPU travel by gloo, which waits for
    no accelerator.
    """
    size = int(os.environ["WORLD_SIZE"]) if {"WORLD_SIZE", "RANK", "LOCAL_RANK"} <= os.environ.keys() else 1
    if size == 1:
        return World()
    rank, backend = int(os.environ["RANK"]), "gloo"
    if device.type != "cpu":
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
        backend = f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
    store, _, _ = next(iter(dist.rendezvous("env://", rank=rank, world_size=size)))
    world = World(rank, size, store)
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        # torchrun keeps its store when it restarts workers, and gloo would connect to addresses of dead processes.
        # A prefix for each restart avoids that. On several nodes the workers may count restarts differently.
        store = dist.PrefixStore("attempt-" + os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    return world


def leave(world: World) -> None:
    if world.size > 1 and dist.is_initialized():
        dist.destroy_process_group()


def raise_if_peer_is_gone(error: RuntimeError) -> None:
    """Say in one sentence that another host died or cannot be reached. gloo says it in a long traceback."""
    if "gloo" not in str(error):
        return
    address = re.search(r"\[([0-9a-f.:]+)\]:\d+", str(error))
    raise NmtError(
        f"the connection to the process on {address[1]} is lost" if address else "another process does not answer",
        "the last checkpoint is intact; torchrun --max-restarts 3 continues from it, and so does the same command",
    ) from None


def is_available() -> bool:
    """Some builds of PyTorch have no gloo."""
    return dist.is_available() and dist.is_gloo_available()


def with_workers(size: int, lead: Callable[[World], T], work: Callable[[World], object]) -> T:
    """Run lead(world) in this process and work(world), which is pickled, in size - 1 worker processes.

    If a worker fails, its error becomes an error of this process. docs/concurrency.md says why the launchers of torch
    are not used.
    """
    context = multiprocessing.get_context("spawn")
    loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
    if loopback:  # gloo would otherwise use the interface of the machine's host name
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    with ExitStack() as stack:
        store = stack.enter_context(tempfile.TemporaryDirectory()) + "/store"
        workers: list[_Worker] = []
        resource_tracker.ensure_running()  # multiprocessing would start it with the first worker and unblock SIGINT
        with sigint_blocked():  # the workers never receive Ctrl-C: only the leader handles it
            for rank in range(1, size):
                receiver, sender = context.Pipe(duplex=False)
                arguments = (work, World(rank, size), store, sender)
                process = context.Process(target=_run_worker, args=arguments, daemon=True)
                workers.append(_Worker(process, receiver))
                process.start()
                stack.callback(process.join)
                stack.callback(process.kill)  # before the join: callbacks run in reverse order
        world = World(0, size)
        stack.callback(leave, world)
        # init_process_group blocks signals, so wait here until all workers are up: Ctrl-C still works meanwhile.
        if not all(worker.is_up() for worker in workers):
            raise _worker_died(workers)
        try:
            _init_process_group(world, store)
            return lead(world)
        except RuntimeError as error:
            if "gloo" not in str(error):
                raise
            raise _worker_died(workers) from None


class _Worker(NamedTuple):
    process: SpawnProcess
    receiver: Connection  # the worker sends "" when it is up, and a message if it fails

    def is_up(self) -> bool:
        wait([self.receiver, self.process.sentinel])
        return self.receiver.poll() and not self.receiver.recv()


def _worker_died(workers: list[_Worker]) -> NmtError:
    """The error of the worker that failed first, not the errors of the workers that lost their connection to it."""
    wait([worker.process.sentinel for worker in workers], timeout=5)
    messages = []
    for worker in workers:
        worker.process.join(0.5)
        with suppress(EOFError, OSError):
            while worker.receiver.poll():
                messages.append(worker.receiver.recv())
    causes = [message for message in messages if message and "gloo" not in message]
    cause = causes[0] if causes else "it was killed, perhaps because memory ran out"
    return NmtError(
        f"a worker process died: {cause}",
        "the last checkpoint is intact, and the same command continues from it; train.processes=1 needs no workers",
    )


def _run_worker(work: Callable[[World], object], world: World, store: str, sender: Connection) -> None:
    die_with_parent()
    try:
        sender.send("")
        _init_process_group(world, store)
        work(world)
        leave(world)
    except BaseException as error:
        with suppress(OSError):
            sender.send(str(error) if isinstance(error, NmtError) else f"{type(error).__name__}: {error}")
        os._exit(1)


def _init_process_group(world: World, store: str) -> None:
    # On one machine a closed connection tells at once that a process died. The timeout of 30 minutes would only end
    # runs that were suspended.
    timeout = timedelta(days=365)
    file = dist.FileStore(store, world.size)
    dist.init_process_group("gloo", store=file, rank=world.rank, world_size=world.size, timeout=timeout)


def share_gradients(loss: nn.Module, world: World) -> nn.Module:
    """The same loss. With several processes its backward pass leaves the mean of their gradients in every parameter.

    DistributedDataParallel sends gradients while the backward pass still runs. Backward passes inside `no_sync` only
    accumulate. In an update, each process makes exactly one outside; loss()[0] is a loss that serves only for this.
    """
    if world.size == 1:
        return loss
    shared = DistributedDataParallel(_ReachesAll(loss), gradient_as_bucket_view=True)
    # DistributedDataParallel sorts the parameters into buckets when its second pass begins, in the order in which its
    # first pass reached them. If there are gradients by then, it moves them into the buckets and divides them there
    # by the number of processes. It multiplies all other gradients by the inverse. With three processes the two differ
    # in the last bit, and a resumed run was not exact. So a first pass without a batch comes here, and leaves no
    # gradient. This also makes the buckets the same in every session.
    shared()[0].backward()
    loss.zero_grad()
    return shared


class _ReachesAll(nn.Module):
    """A loss whose backward pass reaches every parameter, because DistributedDataParallel waits for all of them.

    A process without a batch has no gradient, and a model may use some parameters in some passes only. With
    find_unused_parameters, DistributedDataParallel would search the graph of every update, let an accelerator wait, and
    warn if a model uses all its parameters.
    """

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss
        self.all = list(loss.parameters())

    def forward(self, *batch: Tensor) -> tuple[Tensor, ...]:
        if batch:
            loss, *figures = self.loss(*batch)
            return _Reached.apply(loss, *self.all), *figures
        loss = self.all[0].new_zeros((), requires_grad=True)
        for parameter in self.all:  # the backward pass reaches the last parameter first, as in most models
            loss = _Reached.apply(loss, parameter)
        return (loss,)


class _Reached(torch.autograd.Function):
    """Returns the loss. It gives the parameters no gradient: their gradients come from the rest of the graph."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *parameters: Tensor) -> Tensor:
        ctx.parameters = len(parameters)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, *[None] * ctx.parameters


def add_up(tensors: Iterable[Tensor], world: World) -> None:
    """Replace each tensor by its sum over all processes."""
    if world.size > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def gather(value: T, world: World) -> list[T]:
    """The values of all processes in the leader, an empty list in the others."""
    if world.size == 1:
        return [value]
    values: list[T | None] | None = [None] * world.size if world.leader else None
    dist.gather_object(value, values)
    return values or []  # type: ignore[return-value]


def from_leader(value: T, world: World) -> T:
    """The leader's value, in every process. It is pickled, so it should be small."""
    if world.size == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]
