"""When training stops and validates: limits, patience, schedules that end with the budget, minutes."""

from __future__ import annotations

from itertools import count
from time import perf_counter

import pytest
import torch
from safetensors.torch import load_file
from support.checks import assert_user_error
from support.toy_runs import sets

from nmt_cli.recipe.schema import Train
from nmt_cli.store.checkpoint import State
from nmt_cli.store.log import End, Valid, read_log
from nmt_cli.store.log import Train as TrainEntry
from nmt_cli.training.budget import Budget
from nmt_cli.training.trainer import AlreadyFinished

STOPS = [
    ("train.steps=7", "7 steps", lambda last: last.step == 7),
    ("train.epochs=2", "2 epochs", lambda last: last.epoch == 2),
    ("train.tokens=3000", "3,000 tokens", lambda last: 3000 <= last.tokens < 3200),
    ("train.flops=3e8", "3e+08 FLOPs", lambda last: 3e8 <= last.flops < 4e8),
    ("train.minutes=0.02", "0.02 minutes", lambda last: last.budget_used >= 1),
]


@pytest.mark.parametrize(("limit", "reason", "check"), STOPS)
def test_training_stops_at_each_limit_and_is_then_finished(train_toy, limit, reason, check):
    settings = ("train.steps=0", "train.valid_every=1000", "train.log_every=1", "train.patience=5", limit)
    result, events = train_toy(*settings)
    assert (result.reason, result.signal) == (reason, 0) and events[-1] == End(events[-1].step, reason, 0)
    log = read_log(result.run)
    assert check([entry for entry in log if isinstance(entry, TrainEntry)][-1])
    assert (result.run / "model/model.safetensors").exists()
    assert result.best == [entry for entry in log if isinstance(entry, Valid) and entry.best][-1]
    again, events = train_toy(*settings)
    assert events[-1] == AlreadyFinished(reason) and again == result
    assert read_log(result.run) == log


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "constant", "cosine", "linear", "wsd"])
def test_patience_stops_with_every_schedule(train_toy, schedule):
    """With a rate of nearly 0 the first validation stays the best."""
    slow = ("train.lr=1e-12", "train.valid_every=2", "train.patience=3", "train.metric=loss", "train.steps=1000")
    result, events = train_toy(*slow, f"train.schedule={schedule}")
    assert result.reason == "no better in 3 validations" and events[-1].step < 40


@pytest.fixture
def slow_clock(monkeypatch):
    """slow_clock(seconds): the clock of training advances by this much whenever it is read."""

    def patch(seconds: float) -> None:
        ticks = count(0.0, seconds)
        for module in ("budget", "session"):
            monkeypatch.setattr(f"nmt_cli.training.{module}.perf_counter", lambda: next(ticks))

    return patch


@pytest.mark.parametrize("limit", ["steps=8", "epochs=0.5", "tokens=2000", "minutes=2"])
def test_the_schedule_ends_with_the_budget(train_toy, slow_clock, limit):
    slow_clock(0.5)  # a minute is over after 120 readings of the clock
    options = ("train.schedule=linear", "train.warmup=1", "train.lr=1e-3", "train.log_every=1", "train.steps=0")
    result, events = train_toy(*options, "train.valid_every=1000", f"train.{limit}")
    rates = [event.lr for event in events if isinstance(event, TrainEntry)]
    assert len(rates) > 5 and rates == sorted(rates, reverse=True)
    assert rates[0] > 0.7e-3 and rates[-1] < 0.2e-3
    assert result.reason.split()[1] == limit.split("=")[0]


def test_the_last_update_of_a_schedule_has_a_rate_above_0(train_toy):
    options = ("train.schedule=linear", "train.steps=10", "train.warmup=0", "train.lr=1e-3", "train.log_every=1")
    _, events = train_toy(*options)
    rates = [event.lr for event in events if isinstance(event, TrainEntry)]
    assert rates == pytest.approx([1e-3 * (1 - step / 10) for step in range(10)])


def test_a_validation_is_due_after_valid_minutes(train_toy, slow_clock):
    slow_clock(20.0)
    _, events = train_toy("train.valid_every=1000", "train.valid_minutes=2", "train.steps=20")
    validated = [event.step for event in events if isinstance(event, Valid)]
    assert 3 <= len(validated) < 20 and validated[-1] == 20


def test_minutes_count_over_all_sessions(monkeypatch):
    ticks = iter([100.0, 130.0])
    monkeypatch.setattr("nmt_cli.training.budget.perf_counter", lambda: next(ticks))
    budget = Budget(Train(minutes=2), State(seconds=60.0), torch.nn.Linear(1, 1), began=100.0)
    shares = [budget.share_of_minutes, budget.share_of_minutes_now()]
    assert shares == pytest.approx([60 / 118.8, 90 / 118.8])  # 1 % of the 120 seconds is for the export


def test_minutes_include_the_last_validation_the_calibration_and_the_export(monkeypatch):
    """One and a half times the validation before, 3 % and 1 % of the minutes."""
    monkeypatch.setattr("nmt_cli.training.budget.perf_counter", lambda: 100.0)
    state = State(validation_duration=10.0)
    budget = Budget(Train(minutes=2), state, torch.nn.Linear(1, 1), began=0.0, calibrates=True)
    assert budget.share_of_minutes == pytest.approx(100 / (120 - 15 - 3.6 - 1.2))


@pytest.mark.parametrize(
    ("minutes", "trained", "seconds"), [(2, 100, 20), (2, 119, 3.6), (0, 100, 60), (0, 10_000, 300)]
)
def test_calibration_has_a_limit_of_time(monkeypatch, minutes, trained, seconds):
    """The rest of the minutes, or 3 %. Without minutes: a minute, or 3 % of a long training."""
    monkeypatch.setattr("nmt_cli.training.budget.perf_counter", lambda: trained)
    budget = Budget(Train(minutes=minutes), State(), torch.nn.Linear(1, 1), began=0.0, calibrates=True)
    assert budget.seconds_for_calibration() == pytest.approx(seconds)


def test_minutes_begin_when_the_caller_began(train_toy):
    """The command begins before it imports torch."""
    result, _ = train_toy("train.steps=0", "train.minutes=1", began=perf_counter() - 120)
    assert result.reason == "1 minute"
    assert [entry.step for entry in read_log(result.run) if isinstance(entry, TrainEntry)] == [1]


def test_without_validation_lines_the_last_weights_are_kept(nmt, toy, tmp_path, prepared):
    """Or the average of the last checkpoints. Patience alone would never end such a training."""
    files = ("--source", prepared / "a.en", "--target", prepared / "a.de", "--vocab-size", "60", "--out", "bare")
    assert nmt("prepare", *files, *sets("data.hold_out=0")).code == 0
    small = sets("model.dim=32", "model.ff=64", "train.batch_tokens=128", "train.precision=fp32")
    small += sets("model.encoder_layers=1", "model.decoder_layers=1", "train.auto=false")
    endless = nmt("train", "bare", *small, *sets("train.steps=0", "train.patience=3"))
    assert_user_error(endless, "nothing would ever stop the training", "validation lines")
    options = (*small, *sets("train.valid_every=10", "train.average=2"))
    assert nmt("train", "bare", *options, *sets("train.steps=20")).code == 0
    run = tmp_path / "runs/bare"
    parts = [load_file(run / f"checkpoints/step-{step}/model.safetensors") for step in (10, 20)]
    for name, tensor in load_file(run / "model/model.safetensors").items():
        torch.testing.assert_close(tensor, (parts[0][name] + parts[1][name]) / 2)
    assert [entry.bleu for entry in read_log(run) if isinstance(entry, Valid)] == [None] * 3
    longer = nmt("train", "bare", *options, *sets("train.steps=30"))
    assert longer.code == 0 and "best 20" not in longer.err
