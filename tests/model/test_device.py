"""The choice of the device."""

from __future__ import annotations

import pytest
import torch

from nmt_cli.errors import NmtError
from nmt_cli.model.device import choose_device

CPU = torch.device("cpu")


def test_missing_device_is_an_error_that_names_the_usable_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(NmtError, match="no device cuda") as error:
        choose_device("cuda")
    assert error.value.hint == "choose one of: auto, cpu"
    assert choose_device("auto") == CPU
