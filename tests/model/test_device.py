"""The choice of device and precision."""

from __future__ import annotations

import pytest
import torch

from nmt_cli.errors import NmtError
from nmt_cli.model.device import _trial, choose_device, choose_precision

CPU = torch.device("cpu")


def test_auto_precision_on_this_machine_is_chosen_without_a_crash():
    precision, reason = choose_precision("auto", CPU)
    assert precision in ("fp32", "bf16") and reason
    assert choose_precision("fp32", CPU)[0] == "fp32"


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
    monkeypatch.setattr("nmt_cli.model.device._claimed_precision", lambda device: claimed)
    monkeypatch.setattr("nmt_cli.model.device._trial", lambda device, precision: outcome)
    precision, reason = choose_precision("auto", CPU)
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
    monkeypatch.setattr("nmt_cli.model.device.sys.executable", str(python))
    assert _trial(CPU, "bf16") == outcome


def test_requested_precision_that_fails_its_trial_is_an_error(monkeypatch):
    monkeypatch.setattr("nmt_cli.model.device.sys.executable", "/bin/false")
    with pytest.raises(NmtError, match=r"train\.precision = bf16 does not work on this cpu"):
        choose_precision("bf16", CPU)


def test_missing_device_is_an_error_that_names_the_usable_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(NmtError, match="no device cuda") as error:
        choose_device("cuda")
    assert error.value.hint == "choose one of: auto, cpu"
    assert choose_device("auto") == CPU
