"""The choice of the precision, by a trial in a child process, and what a trial computes."""

from __future__ import annotations

import io
import json
import math
from dataclasses import asdict, replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from nmt_cli.errors import NmtError
from nmt_cli.recipe.load import find_recipe, load_recipe
from nmt_cli.recipe.schema import Transformer
from nmt_cli.training import precision as module
from nmt_cli.training.precision import _trial, choose_precision, likely_precision
from nmt_cli.training.session import train
from nmt_cli.training.trial import Trial

CPU, META = torch.device("cpu"), torch.device("meta")  # "meta" stands for an accelerator
RECIPE, SIZES = load_recipe(find_recipe("demo")), (300, 300)


def test_auto_precision_on_this_machine_is_chosen_without_a_crash():
    precision, reason = choose_precision(RECIPE, "auto", SIZES, CPU)
    assert precision in ("fp32", "bf16") and reason
    assert choose_precision(RECIPE, "fp32", SIZES, CPU)[0] == "fp32"


@pytest.mark.parametrize(
    ("claimed", "outcome", "chosen", "reason_part"),
    [
        (None, 9.0, "fp32", "no faster precision"),
        ("bf16", "the trial process was killed by SIGILL", "fp32", "SIGILL"),
        ("bf16", 1.14, "fp32", "1.14x"),
        ("bf16", 1.16, "bf16", "1.16x"),
        ("fp16", 2.0, "fp16", "2.00x"),
        ("bf16", math.nan, "bf16", "memory ran out in the trial"),
    ],
)
def test_auto_precision_follows_the_outcome_of_the_trial(monkeypatch, claimed, outcome, chosen, reason_part):
    monkeypatch.setattr("nmt_cli.training.precision._claimed_precision", lambda device: claimed)
    monkeypatch.setattr("nmt_cli.training.precision._trial", lambda *request, compares: outcome)
    precision, reason = choose_precision(RECIPE, "auto", SIZES, CPU)
    assert precision == chosen and reason_part in reason


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("kill -4 $$", "the trial process was killed by SIGILL"),
        ("echo 1.5", 1.5),
        ("echo broken >&2; exit 1", "broken"),
        ("exit 1", "the trial process gave no reason"),
    ],
)
def test_trial_returns_the_speed_or_the_reason_of_a_failure(monkeypatch, write, script, outcome):
    python = write("python", f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr("nmt_cli.training.precision.sys.executable", str(python))
    assert _trial(RECIPE, SIZES, CPU, "bf16") == outcome


def test_requested_precision_that_fails_its_trial_is_an_error(monkeypatch):
    monkeypatch.setattr("nmt_cli.training.precision.sys.executable", "/bin/false")
    with pytest.raises(NmtError, match=r"train\.precision = bf16 does not work on this cpu"):
        choose_precision(RECIPE, "bf16", SIZES, CPU)


@pytest.mark.parametrize(
    ("wanted", "claimed", "likely"), [("auto", "bf16", "bf16"), ("auto", None, "fp32"), ("fp32", "bf16", "fp32")]
)
def test_an_accelerator_is_timed_in_the_precision_that_it_claims(monkeypatch, wanted, claimed, likely):
    monkeypatch.setattr(module, "_claimed_precision", lambda device: claimed)
    assert likely_precision(wanted, META) == likely
    assert likely_precision(wanted, CPU) == "fp32"  # another precision may crash a CPU


@pytest.mark.parametrize(
    ("device", "length", "positions", "rows", "width"),
    [(CPU, 20, 30, 48, 21), (CPU, 20, 12, 85, 12), (META, 20, 30, 190, 24), (META, 22, 23, 173, 23)],
)
def test_a_trial_on_an_accelerator_has_the_batch_of_the_training(device, length, positions, rows, width):
    """4,000 tokens in sentences that are padded to a multiple of 8, but not beyond the positions of the model."""
    model = Transformer(dim=16, heads=2, ff=16, encoder_layers=1, decoder_layers=1, positions="learned")
    model, settings = replace(model, max_positions=positions), replace(RECIPE.train, batch_tokens=4000)
    trial = Trial(model, settings, SIZES, (length, 5), device)
    assert trial.batch.src.shape == (rows, width)
    assert all(tensor.device.type == device.type for tensor in (*trial.tensors, *trial.model.parameters()))


def test_a_trial_whose_memory_runs_out_computes_the_batch_in_parts():
    trial, tried = Trial(RECIPE.model, RECIPE.train, SIZES, (9, 9), CPU), []
    trial.loss.eval()  # without dropout
    trial.loss(*trial.tensors)[0].backward()
    expected = next(trial.model.parameters()).grad / trial.batch.tokens
    trial.model.zero_grad()
    loss = trial.loss

    def limited(*tensors):
        tried.append(len(tensors[0]))
        if len(tensors[0]) > 30:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss(*tensors)

    trial.loss = limited
    assert trial.passes() > 0
    assert tried == [102, 51, *[26, 26, 26, 24] * 3]
    torch.testing.assert_close(next(trial.model.parameters()).grad, 3 * expected, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize(
    ("error", "tries"), [(torch.OutOfMemoryError("CUDA out of memory"), 8), (RuntimeError("a bug"), 1)]
)
def test_a_trial_gives_up_when_one_sentence_is_too_large_or_another_error_comes(error, tries):
    trial, calls = Trial(RECIPE.model, RECIPE.train, SIZES, (9, 9), CPU), count()

    def fail(*tensors):
        next(calls)
        raise error

    trial.loss = fail
    with pytest.raises(type(error), match=str(error)):
        trial.passes()
    assert next(calls) == tries


@pytest.fixture(params=[True, False])
def tf32(request):
    """The value of train.tf32. Before the test, torch has the other value."""
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = is_allowed()
    for backend in backends:
        backend.allow_tf32 = not request.param
    yield request.param
    for backend, value in zip(backends, before, strict=True):
        backend.allow_tf32 = value


def is_allowed() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def compare(monkeypatch, settings, device, compares=True) -> float:
    """The work of the child process, in this process."""
    request = ["transformer", asdict(RECIPE.model), asdict(settings), SIZES, device, "fp32", compares]
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request, default=str)))
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    return module._compare()


@pytest.mark.parametrize(("compares", "rounds"), [(True, [3, 3]), (False, [1])])
def test_a_precision_that_is_stated_is_not_compared(monkeypatch, compares, rounds):
    done = []
    monkeypatch.setattr(Trial, "passes", lambda self, precision="fp32", rounds=3: done.append(rounds) or 2.0)
    assert compare(monkeypatch, RECIPE.train, "cpu", compares) == pytest.approx(
        1.0 if compares else math.nan, nan_ok=True
    )
    assert done == rounds


def test_memory_that_runs_out_on_an_accelerator_says_nothing_about_the_precision(monkeypatch):
    """With train.shard, the model may fit on several devices."""

    def fail(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Trial, "passes", fail)
    assert math.isnan(compare(monkeypatch, RECIPE.train, "meta"))
    with pytest.raises(torch.OutOfMemoryError):
        compare(monkeypatch, RECIPE.train, "cpu")


def test_the_child_times_fp32_with_tf32_as_the_recipe_says(monkeypatch, tf32):
    class Seen(Exception):
        pass

    def see(*args):
        raise Seen(is_allowed())

    monkeypatch.setattr(module, "Trial", see)
    with pytest.raises(Seen) as seen:
        compare(monkeypatch, replace(RECIPE.train, tf32=tf32), "cpu")
    assert seen.value.args[0] == (tf32, tf32)


def test_tf32_is_as_the_recipe_says_before_a_training_times_anything(monkeypatch, toy, tf32):
    seen = []

    def choose(*args):
        seen.append(is_allowed())
        return "fp32", ""

    def speed(*args):
        seen.append(is_allowed())
        return 1000.0

    monkeypatch.setattr("nmt_cli.training.plan._speed", speed)
    monkeypatch.setattr("nmt_cli.training.trainer.choose_precision", choose)
    train(load_recipe(toy, {"train.steps": 1, "train.minutes": 1.0, "train.tf32": tf32}))
    assert seen == [(tf32, tf32)] * 2


@pytest.mark.parametrize("name", ["demo", "demo-rnn-attention", "demo-conv", "demo-decoder", "demo-bytenet"])
def test_a_trial_of_every_family(monkeypatch, name):
    """The child gets the model and the settings as JSON. 12 positions are fewer than its sentences have pieces."""
    recipe = load_recipe(find_recipe(name))
    small = {"dim": 16, "max_positions": 12} if name == "demo-conv" else {"dim": 16}
    recipe = replace(recipe, model=replace(recipe.model, **small))
    seen = []

    def run(command, *, input, **options):
        monkeypatch.setattr("sys.stdin", io.StringIO(input.decode()))
        monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
        seen.append(module._compare())
        return SimpleNamespace(returncode=0, stdout=str(seen[0]).encode(), stderr=b"")

    monkeypatch.setattr(module.subprocess, "run", run)
    assert _trial(recipe, SIZES, CPU, "fp32") == seen[0] > 0
