"""Updates, validation and search on an accelerator, without one: devices, waits of the host, masks of attention.

tests/support/pretend.py describes the pretended accelerator.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count

import numpy as np
import pytest
import torch
from support.pretend import in_a_fork, pretend
from support.toy_runs import weights_hash

from nmt_cli.data.batches import Batch, make_batch
from nmt_cli.model.build import build_model
from nmt_cli.model.device import Compute, as_accelerator
from nmt_cli.recipe.schema import ByteNet, Conv, DecoderOnly, Model, Rnn, Train, Transformer
from nmt_cli.store.checkpoint import State
from nmt_cli.store.log import read_log
from nmt_cli.training.loss import TrainingLoss
from nmt_cli.training.step import Updater

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


def batches(count: int, pad_to: int = 8) -> list[tuple[Batch, int]]:
    random = np.random.default_rng(3)
    made = []
    for seed in range(count):
        sides = [[random.integers(4, PIECES, length).tolist() for length in lengths] for lengths in ((5, 3), (2, 4))]
        made.append((make_batch(*sides, pad_to), seed))
    return made


def updater(model: Model, settings: Train, device: torch.device) -> Updater:
    torch.manual_seed(1)
    with device:
        built = build_model(model, PIECES, PIECES)
    objective = TrainingLoss(built, settings).train()
    return Updater(built, objective, settings, Compute(device, "fp32", ""), State(), print)


def spoil(loss, factor, *batch):
    return tuple(part * factor for part in loss(*batch))


def waits_of_updates() -> dict[str, dict[str, int]]:
    """The operations that the host waits for in the second of two updates, which has two micro-batches."""
    cases = {name: (model, SETTINGS["adam"]) for name, model in MODELS.items()}
    cases |= {name: (MODELS["learned positions"], SETTINGS[name]) for name in list(SETTINGS)[1:]}
    found = {}
    with pretend() as waits:
        for name, (model, settings) in cases.items():
            trained = updater(model, settings, torch.device("pretend", 0))
            first = trained.update(batches(1), 20, 1e-3)
            waits.counts.clear()
            trained.update(batches(2), 40, 1e-3)
            trained.read(first)
            found[name] = dict(waits.counts)
    return found


def test_the_host_waits_once_in_an_update():
    """Nothing of an update is left on the CPU, and only the figures of the update before are waited for."""
    waits = in_a_fork(waits_of_updates)
    assert len(waits) == len(MODELS) + len(SETTINGS) - 1
    assert all(counts == {"synchronize": 1} for counts in waits.values()), waits


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
        return loss * (float("nan") if self.training and next(calls) in (4, 5, 21) else 1.0), nll, tokens

    plain, calls, logs = TrainingLoss.forward, count(), []
    monkeypatch.setattr(TrainingLoss, "forward", spoiled)
    for late in (False, True):
        monkeypatch.setattr(Updater, "late", late)
        calls = count(1)
        run = train_toy("train.steps=23", f"train.out={tmp_path}/{late}", "train.clip=1.0")[0].run
        kept = {"loss", "ppl", "lr", "gradient_norm", "tokens", "padding", "text", "bleu", "reason"}
        logs.append([(e.kind, {k: v for k, v in vars(e).items() if k in kept}) for e in read_log(run)])
        logs.append(weights_hash(run))
    assert logs[:2] == logs[2:]


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
