"""Updates, validation and search on an accelerator, without one: devices, waits of the host, masks of attention.

tests/support/pretend.py describes the pretended accelerator.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from threading import current_thread
from time import perf_counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.pretend import address, pretend
from support.toy_corpus import corpus
from support.toy_runs import RECIPE, losses, steps_saved, weights_hash
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from nmt_cli.data.batches import Batch, Position, lay_out, make_batch, pad
from nmt_cli.data.prepare import prepare
from nmt_cli.demo import demo_corpus
from nmt_cli.model.build import build_model
from nmt_cli.model.device import TYPES, Compute, as_accelerator
from nmt_cli.recipe.load import load_recipe
from nmt_cli.recipe.schema import ByteNet, Conv, DecoderOnly, Model, Recipe, Rnn, Train, Transformer
from nmt_cli.search.beam import search
from nmt_cli.search.contract import SearchOptions
from nmt_cli.search.torch_engine import score
from nmt_cli.store.checkpoint import State
from nmt_cli.store.log import read_log
from nmt_cli.training import distributed, trainer
from nmt_cli.training.ahead import WorkAhead
from nmt_cli.training.loss import TrainingLoss
from nmt_cli.training.session import train
from nmt_cli.training.step import Updater
from nmt_cli.training.validation import Validation

PIECES = 40
CPU = torch.device("cpu")
WIDTHS = {"dim": 16, "heads": 2, "ff": 32}
LAYERS = {"encoder_layers": 1, "decoder_layers": 1}
MODELS: dict[str, Model] = {
    "transformer": Transformer(**WIDTHS, **LAYERS, attention_dropout=0.1, ff_dropout=0.1),
    "learned positions": Transformer(**WIDTHS, **LAYERS, positions="learned", norm="post", tie="none"),
    "lstm": Rnn(dim=16, encoder_layers=2, projections=True, heads=2, attention="scaled_dot"),
    "no attention": Rnn(dim=16, cell="rnn", attention="none", context="every"),
    "before": Rnn(dim=16, cell="gru", order="before", context="mean", attention="mlp"),
    "input feeding": Rnn(dim=16, input_feeding=True, span="predictive", hard=True, directions="forward"),
    "monotonic": Rnn(dim=16, span="monotonic", attention="location"),
    "deep": Rnn(dim=16, encoder_layers=2, directions="interleaved", skip="fast_forward"),
    "bytenet": ByteNet(dim=16, **LAYERS),
    "conv": Conv(dim=16, **LAYERS),
    "decoder": DecoderOnly(**WIDTHS, layers=2, positions_join="concat"),
}
SETTINGS = {
    "adam": Train(clip=1.0, ema=0.9),
    "muon and R-Drop": Train(optimizer="muon", weight_decay=0.1, clip=1.0, ema=0.9, consistency="rdrop"),
    "SimCut": Train(optimizer="adamw", consistency="simcut"),
}


LENGTHS, SHORT = ((5, 3), (2, 4)), ((2, 1), (1, 2))  # of the sources and of the targets


def batches(count: int, pad_to: int = 8, lengths: tuple[tuple[int, int], ...] = LENGTHS) -> list[tuple[Batch, int]]:
    random = np.random.default_rng(3)
    made = []
    for seed in range(count):
        sides = [[random.integers(4, PIECES, length).tolist() for length in side] for side in lengths]
        made.append((make_batch(*sides, pad_to), seed))
    return made


def on(device: torch.device, make, *args):
    with device:
        return make(*args)


def updater(model: Model, settings: Train, device: torch.device) -> Updater:
    """An updater whose precision is that of the settings, or fp32 if the settings leave the choice."""
    torch.manual_seed(1)
    built = on(device, build_model, model, PIECES, PIECES)
    objective = TrainingLoss(built, settings).train()
    precision = "fp32" if settings.precision == "auto" else settings.precision
    return Updater(built, objective, settings, Compute(device, precision, ""), State(), print)


def spoil(loss, factor, *batch):
    return tuple(part * factor for part in loss(*batch))


# What is updated: each model in bf16, some of them in the other precisions, and other settings.
UPDATES = {
    **{f"{name}, bf16": (model, replace(SETTINGS["adam"], precision="bf16")) for name, model in MODELS.items()},
    **{f"{name}, fp32": (MODELS[name], SETTINGS["adam"]) for name in ("transformer", "lstm", "before", "conv")},
    **{f"{name}, fp16": (MODELS[name], replace(SETTINGS["adam"], precision="fp16")) for name in ("decoder", "lstm")},
    **{name: (MODELS["learned positions"], SETTINGS[name]) for name in ("muon and R-Drop", "SimCut")},
}


def waits_of_updates() -> dict[str, tuple[dict[str, int], set[torch.dtype]]]:
    """The operations that the host waits for in each of UPDATES, and the types of the matrices that it multiplies.

    The models with a table of positions copy the table in their first update, and some settings are for several
    micro-batches. These make a second update, which has two micro-batches, and only the second update counts.
    """
    twice = ("transformer", "decoder", "muon", "SimCut")
    found = {}
    with pretend() as waits:
        for name, (model, settings) in UPDATES.items():
            trained = updater(model, settings, waits.device)
            one, two = batches(1, 1, SHORT), batches(2, 1, SHORT)
            for batch, _ in (*one, *two):
                waits.pinned |= {address(array) for array in (batch.src, batch.tgt_in, batch.tgt_out)}
            waits.counts.clear()
            first = trained.update(one, 20, 1e-3)
            if name.startswith(twice):
                waits.counts.clear()
                waits.types.clear()
                trained.update(two, 40, 1e-3)
            trained.read(first)
            found[name] = (dict(+waits.counts), set(waits.types))
            waits.types.clear()
    return found


def test_the_host_waits_once_in_an_update(in_a_fork):
    """Nothing of an update is left on the CPU, and only the figures of the update before are waited for.

    Autocast sees all products of matrices.
    """
    found = in_a_fork(waits_of_updates)
    assert all(counts == {"synchronize": 1} for counts, _ in found.values()), found
    types = {name: {TYPES.get(settings.precision, torch.float32)} for name, (_, settings) in UPDATES.items()}
    assert {name: seen for name, (_, seen) in found.items()} == types


def waits_of_the_trainer() -> list[dict[str, int]]:
    """The operations that the host waits for in an update of one process, and in an update of one of two processes.

    Nothing is sent to the other process.
    """
    for name, lines, first in (("a", 200, 1000), ("v", 20, 5000)):
        for side, text in zip(("en", "de"), corpus(lines, first), strict=True):
            Path(f"{name}.{side}").write_text(text)
    Path("x.toml").write_text(RECIPE.replace("../", ""))
    recipe = load_recipe(Path("x.toml"))
    prepare(recipe)
    distributed.from_leader = lambda value, world: value
    distributed.share_gradients = lambda loss, world: loss
    torch.distributed.all_reduce = lambda tensor: None
    torch.nn.Module.to = lambda self, device: self  # tensors without values cannot be moved
    found = []
    with pretend() as waits:
        trainer.build_model = lambda *sizes: on(waits.device, build_model, *sizes)
        for size in (1, 2):
            world = distributed.World(0, size)
            session = trainer.Trainer(recipe, world, waits.device, None, None, None, perf_counter())
            with session.ahead:
                session.update()
                waits.counts.clear()
                session.update()
            found.append(dict(+waits.counts))
    return found


def test_the_trainer_waits_once_in_an_update(in_a_fork):
    """Several processes agree about numbers on the CPU, which takes no wait."""
    assert in_a_fork(waits_of_the_trainer) == [{"synchronize": 1}] * 2


def test_a_thread_pins_the_next_batches_for_the_device_of_the_process(monkeypatch):
    used = []

    def pin_memory(x):
        used.append(current_thread().name)
        return x.clone()

    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    monkeypatch.setattr(torch.accelerator, "set_device_index", used.append)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    ((batch, _),) = batches(1)
    stream = SimpleNamespace(take=lambda count: [SimpleNamespace(read=lambda: batch)], position=Position(), epochs=0.0)
    with WorkAhead(stream, 1, 0, 1, pins=True) as ahead:
        ((number, pinned),) = ahead.take().batches
    assert number == 0 and used[:4] == [3, *["batches_0"] * 3]
    for before, after in zip(vars(batch).values(), vars(pinned).values(), strict=True):
        assert (after == before).all() and not np.shares_memory(after, before)


def waits_of_mistakes() -> dict[str, int]:
    """How often the host waits in each of these operations."""
    array = np.zeros(3)
    with pretend() as waits:
        on_device, on_cpu = torch.zeros(3, device=waits.device), torch.zeros(3)
        mistakes = {
            "a tensor of a list": lambda: torch.tensor([1.0, 2.0], device=waits.device),
            "a tensor of a number": lambda: torch.tensor(1.0, device=waits.device),
            "a number to the device": lambda: on_device[0].copy_(on_cpu[0]),
            "a number from the device": lambda: on_cpu[0].copy_(on_device[0]),
            "a vector to the device": lambda: on_device.copy_(on_cpu),
            "a blocking copy": lambda: on_device.to("cpu"),
            "memory that is not pinned": lambda: torch.from_numpy(array).to(waits.device, non_blocking=True),
            "the accelerator": torch.accelerator.synchronize,
            "a value": lambda: float(on_device.sum()),
            "values": lambda: on_device[:1].tolist(),
            "a condition": lambda: bool(on_device[0] > 0),
            "a mask": lambda: on_device[on_device > 0],
        }
        found = {}
        for name, mistake in mistakes.items():
            waits.counts.clear()
            with suppress(DynamicOutputShapeException):  # the shape of a masked tensor depends on values
                mistake()
            found[name] = waits.counts.total()
    return found


def test_the_counter_sees_every_wait(in_a_fork):
    waits = in_a_fork(waits_of_mistakes)
    assert len(waits) == 12 and set(waits.values()) == {1}, waits


@pytest.mark.parametrize("name", ["adam", "muon and R-Drop"])
def test_the_device_skips_updates_that_are_not_finite_as_the_host_does(name, monkeypatch):
    """An accelerator decides alone. The same decision on the CPU gives the same weights, moments and average."""
    results = []
    for late in (False, True):
        monkeypatch.setattr(Updater, "late", late)
        trained = updater(MODELS["transformer"], replace(SETTINGS[name], clip=0.5), CPU)
        plain, figures = trained.loss, []
        for number in range(6):
            spoiled = float("nan") if number in (2, 3) else 1.0
            trained.loss = partial(spoil, plain, spoiled)
            figures.append(trained.update(batches(2), 40, 1e-2))
        applied = [trained.read(each).applied for each in figures]
        assert applied == [True, True, False, False, True, True] and trained.state.skipped == 2
        state = [trained.model.state_dict(), trained.moving_average]
        moments = [tensor for each in trained.optimizers for state in each.state.values() for tensor in state.values()]
        results.append([*(tensor for part in state for tensor in part.values()), *moments])
    torch.testing.assert_close(results[1], results[0], atol=1e-6, rtol=1e-5)


def test_figures_that_are_read_late_change_neither_the_weights_nor_the_log(train_toy, tmp_path, monkeypatch):
    def spoiled(self, *batch):
        loss, nll, tokens = plain(self, *batch)
        return loss * (float("nan") if self.training and next(calls) in (4, 5, 10, 23) else 1.0), nll, tokens

    plain, calls, logs = TrainingLoss.forward, count(), []
    monkeypatch.setattr(TrainingLoss, "forward", spoiled)
    for late in (False, True):
        monkeypatch.setattr(Updater, "late", late)
        calls = count(1)
        run = train_toy("train.steps=23", f"train.out={tmp_path}/{late}", "train.clip=1.0")[0].run
        kept = {"loss", "ppl", "lr", "gradient_norm", "tokens", "padding", "text", "bleu", "reason"}
        logs.append([(e.kind, {k: v for k, v in vars(e).items() if k in kept}) for e in read_log(run)])
        logs.append(weights_hash(run))
    assert logs[:2] == logs[2:] and steps_saved(run) == [11, 20, 24]


@pytest.mark.parametrize("name", MODELS)
def test_the_way_of_accelerators_gives_the_loss_and_the_gradient_of_the_way_of_cpus(name):
    model = replace(MODELS[name], dropout=0.0)
    model = replace(model, attention_dropout=0.0, ff_dropout=0.0) if hasattr(model, "attention_dropout") else model
    for settings in (Train(), Train(consistency="rdrop"), Train(batch_tokens=10**7)):
        results = []
        for way in (nullcontext, as_accelerator):
            trained = updater(model, settings, CPU)
            with way():
                sums = trained.gradients(batches(2), 40)
            results.append([sums, *(parameter.grad.to_dense() for parameter in trained.parameters)])
        torch.testing.assert_close(results[1], results[0], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if not isinstance(model, Rnn)])
def test_checkpointed_activations_give_the_same_gradient(name):
    """The backward pass draws the same dropout again, in the way of CPUs and in that of accelerators."""
    for way in (nullcontext, as_accelerator):
        results = []
        for checkpointed in (False, True):
            trained = updater(MODELS[name], Train(checkpoint_activations=checkpointed), CPU)
            with way():
                sums = trained.gradients(batches(2), 40)
            results.append([sums, *(parameter.grad.to_dense() for parameter in trained.parameters)])
        torch.testing.assert_close(results[1], results[0], atol=0, rtol=0)


def search_and_validate() -> dict[str, int]:
    """The number of hypotheses that a search on the accelerator finds, by model. Values are 0 at first, then 1."""
    found = {}
    with pretend() as waits:
        device = waits.device
        for name, model in MODELS.items():
            with device:
                built = build_model(model, PIECES, PIECES).eval()
            sources = [[5, 6, 7], [8]]
            if name in ("transformer", "lstm"):  # the passes of the other models are those of `score`
                valid = Validation(None, [0, 1], sources, sources, ["", ""])  # type: ignore[arg-type]
                valid.loss(built, Recipe(model=model), Compute(device, "fp32", ""))
            waits.zeros = 12  # the search makes three steps
            src = torch.from_numpy(pad(sources)).to(device)
            options = SearchOptions(beam=2, n_best=2)
            found[name] = sum(map(len, search([built], src, options)))
            score([built], list(zip(sources, sources, strict=True)), options, device)
    return found


def test_search_and_validation_leave_no_tensor_on_the_cpu(in_a_fork):
    assert in_a_fork(search_and_validate) == dict.fromkeys(MODELS, 4)


@pytest.mark.parametrize("name", ["transformer", "decoder"])
def test_every_mask_suits_a_fused_kernel_of_attention(name, monkeypatch):
    """The CPU's own choice is the flash kernel (1). A build without CUDA answers no question about CUDA's kernels, so
    the rules that we know are repeated: masks are boolean and broadcast; causal attention is square, without a mask."""
    calls, plain = [], torch.nn.functional.scaled_dot_product_attention

    def attend(query, key, value, mask, dropout_rate, causal):
        calls.append((mask is not None, causal))
        assert torch._fused_sdp_choice(query, key, value, mask, 0.0, causal) == 1
        assert mask is None or (mask.dtype is torch.bool and not causal and not mask.requires_grad)
        assert mask is None or torch.broadcast_shapes(mask.shape, (*query.shape[:3], key.size(2)))[2:] == (
            query.size(2),
            key.size(2),
        )
        assert not causal or query.size(2) == key.size(2)
        assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1 and query.size(-1) % 8 == 0
        return plain(query, key, value, mask, 0.0, causal)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    trained = updater(MODELS[name], Train(), CPU)
    with as_accelerator():
        trained.gradients(batches(1), 40)
        search([trained.model.eval()], torch.from_numpy(batches(1)[0][0].src), SearchOptions(beam=2, max_length=6))
    assert {(False, True), (True, False)} <= set(calls)  # causal without a mask, and padding


def test_torch_compile_makes_few_graphs_for_many_lengths():
    """200 batches with the lengths of sentences in the demo corpus, and no operation outside of the graphs.

    A shape that comes again makes no graph, so each shape comes once. The second batch differs from the first in all
    sizes: torch then makes one graph for all sizes, and not one graph for each size that it finds to vary.
    """
    rows = [(len(source.split()), len(target.split())) for source, target in demo_corpus("train")[:4000]]
    lengths, random = np.array(rows, np.int32) + 1, np.random.default_rng(2)
    trained = updater(MODELS["learned positions"], Train(), CPU)
    torch._dynamo.reset()
    counters.clear()
    trained.loss = torch.compile(trained.loss, backend="eager")
    cuts = lay_out(lengths, 96, random)[:200]
    assert len(cuts) == 200
    made = {}
    for numbers in cuts:
        sides = [[random.integers(4, PIECES, n - 1) for n in lengths[numbers, side]] for side in (0, 1)]
        batch = make_batch(*sides, 8)
        made[(*batch.src.shape, batch.tgt_in.shape[1])] = batch
    first, *others = made
    others.sort(key=lambda shape: sum(a == b for a, b in zip(shape, first, strict=True)))
    assert len(made) > 20
    for shape in (first, *others):
        trained.update([(made[shape], 1)], made[shape].tokens, 1e-4)
    # torch makes 8 graphs at most. With a graph for each number of sentences or each length, it would make all 8.
    assert counters["stats"]["unique_graphs"] < 8 and not counters["graph_break"]


def test_a_compiled_training_has_the_losses_of_the_same_training(monkeypatch, toy, tmp_path):
    """Without dropout, whose numbers differ. The backend "eager" needs no compiler of C++."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    seen = []
    for compiled in (False, True):
        settings = {"train.compile": compiled, "train.steps": 6, "train.processes": 1, "model.dropout": 0.0}
        run = tmp_path / f"compiled-{compiled}"
        train(load_recipe(toy, {**settings, "train.log_every": 1, "train.out": str(run)}))
        seen.append([loss for _, loss in losses(run, "train")])
    assert len(seen[0]) == 6 and seen[1] == pytest.approx(seen[0], abs=1e-4)


@pytest.mark.parametrize("key", ["checkpoint_activations", "compile"])
def test_recurrent_models_refuse_checkpointed_activations_and_compilation(key):
    recipe = Recipe(model=Rnn(), train=Train(**{key: True}))
    assert [key for key, _ in recipe.problems()] == [f"train.{key}"]


@pytest.mark.parametrize(("pad_to", "most", "width"), [(1, 0, 6), (8, 0, 8), (8, 100, 8), (8, 5, 6), (4, 6, 7)])
def test_lengths_are_padded_to_multiples_up_to_the_positions_of_the_model(pad_to, most, width):
    batch = make_batch([[4, 5, 6, 7, 8], [4]], [[4], [5, 6, 7, 8, 9]], pad_to, most)
    assert batch.src.shape == batch.tgt_in.shape == batch.tgt_out.shape == (2, width)
    assert batch.tokens == batch.source_tokens == 8
