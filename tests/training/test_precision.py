"""The choice of the precision, by a trial in a child process."""

from __future__ import annotations

import pytest
import torch

from nmt_cli.errors import NmtError
from nmt_cli.recipe.load import find_recipe, load_recipe
from nmt_cli.training.precision import _trial, choose_precision

CPU = torch.device("cpu")
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
    ],
)
def test_auto_precision_follows_the_outcome_of_the_trial(monkeypatch, claimed, outcome, chosen, reason_part):
    monkeypatch.setattr("nmt_cli.training.precision._claimed_precision", lambda device: claimed)
    monkeypatch.setattr("nmt_cli.training.precision._trial", lambda *request: outcome)
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
