"""The dropout of nmt: its statistics, its random numbers and its gradient."""

import math

import pytest
import torch
from support.models import assert_close

from nmt_cli.model.dropout import dropout


@pytest.mark.parametrize("p", [0.05, 0.1, 0.3, 0.5, 0.9])
def test_dropout_statistics(p):
    """The probability of dropping differs from p by at most 1/512. The expectation of the mean is exact."""
    torch.manual_seed(4)
    x = torch.ones(1000, 1003)  # the number of elements is not a multiple of 8
    y = dropout(x, p)
    kept = (y != 0).double()
    assert len(y.unique()) == 2
    rounded = round(p * 256) / 256
    n = x.numel()
    assert abs(rounded - p) <= 1 / 512
    error = 4.5 * math.sqrt(rounded * (1 - rounded) / n)
    assert kept.mean().item() == pytest.approx(1 - rounded, abs=error)
    assert y.double().mean().item() == pytest.approx(1, abs=error / (1 - rounded))
    for dim in (0, 1):  # rows and columns are alike, neighbors are independent
        assert (kept.mean(dim) - (1 - rounded)).abs().max() < 6 * math.sqrt(rounded * (1 - rounded) / 1000)
        together = (kept.narrow(dim, 1, 999) * kept.narrow(dim, 0, 999)).mean().item()
        assert together == pytest.approx((1 - rounded) ** 2, abs=2 * error)


def test_dropout_repeats_with_the_state_of_the_generator():
    x = torch.randn(7, 11)
    state = torch.get_rng_state()
    first, second = dropout(x, 0.3), dropout(x, 0.3)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x, 0.3), first)
    assert torch.equal(dropout(x, 0.3), second)
    assert dropout(x, 0.0) is x


@pytest.mark.parametrize("with_residual", [False, True])
def test_dropout_gradient(with_residual):
    x = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
    residual = torch.randn(5, 9, dtype=torch.float64, requires_grad=True) if with_residual else None
    torch.manual_seed(5)
    y = dropout(x, 0.4, residual)
    y.square().sum().backward()
    noise = (y - (residual if with_residual else 0)) / x
    assert_close(x.grad, 2 * y * noise)
    if with_residual:
        assert_close(residual.grad, 2 * y)
