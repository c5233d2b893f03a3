"""Updates by several processes, without a command around them. One start of three processes serves all tests."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.toy_runs import assert_same_weights
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from nmt_cli.data.batches import Batch, make_batch
from nmt_cli.model.build import build_model
from nmt_cli.model.device import Compute
from nmt_cli.recipe.schema import DecoderOnly, Model, Train, Transformer
from nmt_cli.store.checkpoint import State
from nmt_cli.training.distributed import World, gather, share_gradients, with_workers
from nmt_cli.training.loss import TrainingLoss
from nmt_cli.training.shard import on_leader, shard
from nmt_cli.training.step import Updater

ALONE, PIECES = World(), 40
TINY = {"dim": 32, "heads": 2, "ff": 64, "encoder_layers": 1, "decoder_layers": 1}
EXPERTS = Transformer(**TINY, experts=24, experts_top=1, dropout=0.2)
PLAIN = Transformer(**TINY, dropout=0.0)
DECODER = DecoderOnly(dim=32, heads=2, ff=64, layers=2, dropout=0.2)
# The numbers of the four micro-batches of an update that each process computes, update by update.
SHARES = [([0, 1, 2], [3], []), ([], [0], [1, 2, 3]), ([2, 0], [3], [1]), ([1], [0, 2, 3], [])]


def micro_batch(update: int, number: int) -> tuple[Batch, int]:
    """And its seed. No two micro-batches have the same number of cells."""
    random = np.random.default_rng([update, number])
    sides = [[random.integers(4, PIECES, n + number) for n in lengths] for lengths in ((1, 3, 2), (2, 2, 4))]
    return make_batch(*sides), 10 * update + number


class AsOnGpu(Updater):
    """Decides on the device whether an update is skipped."""

    late = True


class Fp32(Compute):
    """Computes in fp32, but with the loss scale of fp16 if that is the precision."""

    def autocast(self):
        return nullcontext()


class Session:
    """A model and its updates, in one of the processes of `world`."""

    def __init__(self, config: Model, world: World, largest: int = 100, sharded: bool = False, **options) -> None:
        """Memory runs out if a micro-batch has more cells than `largest`."""
        torch.manual_seed(1)
        self.model, self.world, self.notes = build_model(config, PIECES, PIECES), world, list[str]()
        self.sharded = sharded
        # Adam would turn a gradient that is 0 up to rounding into a full step. The large epsilon prevents that.
        settings = Train(ema=0.9, clip=1.0, epsilon=1e-6, **{"precision": "fp32", **options})
        objective = TrainingLoss(self.model, settings).train()
        if largest < 100:
            objective.register_forward_pre_hook(lambda module, batch: run_out_of_memory(batch, largest))
        compute = Fp32(torch.device("cpu"), settings.precision, "")
        if sharded:
            shard(objective, compute.device, world)
        loss = objective if sharded else share_gradients(objective, world)
        kind = AsOnGpu if settings.precision == "fp16" else Updater
        self.updater = kind(self.model, loss, settings, compute, State(), self.notes.append, world)

    def update(self, number: int) -> tuple[float, float]:
        """Make this update, counted from 0. Returns its loss and the norm of its gradient."""
        numbers = SHARES[number][self.world.rank] if self.world.size > 1 else range(4)
        tokens = sum(micro_batch(number, each)[0].tokens for each in range(4))
        batches = [micro_batch(number, each) for each in numbers]
        if self.sharded:  # all processes have equally many micro-batches, but some are empty
            batches += [(make_batch([], []), 0)] * (3 - len(batches))
        update = self.updater.read(self.updater.update(batches, tokens, rate=1e-3))
        return update.loss, update.gradient_norm

    def weights(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def share_of_memory(self) -> float:
        """The share of the weights, moments and averages that this process keeps."""
        moments = [tensor for state in self.updater.optimizers[0].state.values() for tensor in state.values()]
        tensors = [*self.model.parameters(), *moments, *self.updater.moving_average.values()]
        parts = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
        return sum(part.numel() for part in parts) / sum(tensor.numel() for tensor in tensors)

    def resumed(self, config: Transformer) -> Session:
        """Another session that continues from here."""
        other = Session(config, self.world)
        other.model.load_state_dict(self.weights())
        for ours, theirs in zip(self.updater.optimizers, other.updater.optimizers, strict=True):
            theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
        return other


SHARDED: dict[str, tuple[Model, dict]] = {
    "experts": (Transformer(**TINY, experts=6, experts_top=1, dropout=0.2), {"consistency": "rdrop"}),
    "decoder": (DECODER, {"source_loss": 0.5, "checkpoint_activations": True}),
    "as on a GPU": (PLAIN, {"precision": "fp16"}),
}


SHARDED_UPDATES = (0, 1)  # in each, one of the processes has no micro-batch


def run_out_of_memory(batch: tuple[Tensor, ...], largest: int) -> None:
    if batch[0].numel() + batch[2].numel() > largest:
        raise torch.OutOfMemoryError("CUDA out of memory")


class Products(nn.Module):
    """Parameters times numbers. `unused` has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))

    def forward(self, factor: Tensor) -> tuple[Tensor, Tensor]:
        return (self.used * factor * torch.arange(3.0)).sum(), factor


class Deep(nn.Module):
    """Three layers of about one megabyte each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(600, 600, bias=False) for _ in range(3)))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.layers(x).sum(),)


def means_of_different_numbers_of_passes(world: World) -> list[np.ndarray]:
    """Two updates. Process n makes n passes with the factors 1 and 10. Only the pass with 10 sends the gradients."""
    products, means = Products(), []
    shared = share_gradients(products, world)
    for update in (1.0, 2.0):
        products.zero_grad()
        for factor in (1.0, 10.0)[: world.rank]:
            if factor == 1.0:
                with shared.no_sync():
                    shared(torch.tensor(update * factor))[0].backward()
            else:
                shared(torch.tensor(update * factor))[0].backward()
        if world.rank < 2:
            shared()[0].backward()
        means += [products.used.grad.numpy().copy(), products.unused.grad.numpy().copy()]
    return means


def events_of_a_backward_pass(world: World) -> list[str]:
    """In which order layers are computed and gradients are sent."""
    deep, events = Deep(), list[str]()
    shared = share_gradients(deep, world)

    def send(state, bucket):
        events.append("sent")
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda sums: sums.value()[0])

    shared.register_comm_hook(None, send)
    for number, layer in enumerate(deep.layers):
        layer.weight.register_hook(lambda gradient, number=number: events.append(f"layer {number}"))
    for accumulates in (True, False):
        with shared.no_sync() if accumulates else torch.enable_grad():
            shared(torch.ones(1, 600))[0].backward()
    return events


def facts(world: World) -> list[dict]:
    """What each process has found, in the leader."""
    session = Session(EXPERTS, world)
    figures = [session.update(number) for number in (0, 1)]
    resumed = session.resumed(EXPERTS)
    figures += [session.update(number) for number in (2, 3)]
    for number in (2, 3):
        resumed.update(number)
    splitting = Session(PLAIN, world, largest=30 if world.rank == 1 else 100)
    for number in range(4):
        splitting.update(number)
    found = {
        "means": means_of_different_numbers_of_passes(world),
        "events": events_of_a_backward_pass(world),
        "figures": figures,
        "weights": session.weights(),
        "resumed": resumed.weights(),
        "split": splitting.weights(),
        "notes": splitting.notes,
    }
    for name, (config, options) in SHARDED.items():
        session = Session(config, world, sharded=True, **options)
        figures = [session.update(number) for number in SHARDED_UPDATES]
        weights, averages = (on_leader(each, world) for each in (session.weights(), session.updater.moving_average))
        found[name] = figures, weights, averages, session.share_of_memory()
    return gather(found, world)


def facts_of_three_processes() -> list[dict]:
    return with_workers(3, facts, facts)


@pytest.fixture(scope="module")
def processes(in_a_fork) -> list[dict]:
    """What each of three processes has found."""
    return in_a_fork(facts_of_three_processes)


def test_processes_share_gradients_of_different_numbers_of_passes_and_of_unused_parameters(processes):
    for found in processes:
        for update, (used, unused) in enumerate(zip(found["means"][::2], found["means"][1::2], strict=True), 1):
            # Process 1 has one pass, process 2 has two: 1 + 1 + 10.
            assert np.allclose(used, update * np.arange(3.0) * 12 / 3) and not unused.any()


def test_gradients_are_sent_while_the_backward_pass_runs(processes):
    for found in processes:
        accumulated, sent = found["events"][:3], found["events"][3:]
        assert accumulated == ["layer 2", "layer 1", "layer 0"]
        assert sent[0] == "layer 2" and "sent" in sent[: sent.index("layer 0")] and sent[-1] == "sent"


def trained_alone(
    config: Model, updates: Iterable[int] = range(4), **options
) -> tuple[Session, list[tuple[float, float]]]:
    """The updates in one process, and their figures."""
    session = Session(config, ALONE, **options)
    return session, [session.update(number) for number in updates]


def test_updates_of_three_processes_are_those_of_one(processes):
    """With experts, some without tokens, processes without a micro-batch, clipping, dropout."""
    session, figures = trained_alone(EXPERTS)
    idle = [name for name, weight in session.model.named_parameters() if "experts" in name and not weight.grad.any()]
    assert idle
    for found in processes:
        assert np.allclose(found["figures"], figures, rtol=1e-5)
        assert_same_weights(found["weights"], session.weights(), 1e-6)
        assert all(torch.equal(tensor, processes[0]["weights"][name]) for name, tensor in found["weights"].items())


def test_updates_of_three_processes_are_resumed_bit_for_bit(processes):
    for found in processes:
        assert all(torch.equal(tensor, found["weights"][name]) for name, tensor in found["resumed"].items())


def test_a_process_that_runs_out_of_memory_tries_again_alone(processes):
    assert [bool(found["notes"]) for found in processes] == [False, True, False]
    session, _ = trained_alone(PLAIN)
    for found in processes:
        assert_same_weights(found["split"], session.weights(), 1e-6)


@pytest.mark.parametrize("name", SHARDED)
def test_updates_of_a_sharded_model_are_those_of_one_process(processes, name):
    """Three processes, whose parts have different sizes. Some make a pass without a sentence."""
    config, options = SHARDED[name]
    session, figures = trained_alone(config, SHARDED_UPDATES, **options)
    _, weights, averages, _ = processes[0][name]
    assert_same_weights(weights, session.weights(), 1e-6)
    assert_same_weights(averages, session.updater.moving_average, 1e-6)
    for found in processes:
        assert np.allclose(found[name][0], figures, rtol=1e-5) and found[name][3] < 0.4
