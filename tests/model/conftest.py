"""Fixtures of the tests of models."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """The tensors are tiny: several threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
