"""The learning rate, a pure function."""

from __future__ import annotations

import math

import pytest

from nmt_cli.recipe.schema import Train
from nmt_cli.training.schedule import learning_rate


def test_inverse_sqrt_is_the_formula_of_the_paper():
    """Attention is all you need, section 5.3."""
    settings = Train(warmup=4000)
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        assert learning_rate(step, 0.3, settings, 512) == pytest.approx(
            512**-0.5 * min(step**-0.5, step * 4000**-1.5), rel=1e-12
        )
    assert learning_rate(500, 0.3, Train(warmup=500, lr=2e-3), 256) == pytest.approx(2e-3)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [  # share of the budget: rate, after the warm-up
        ("constant", {0.1: 1, 0.5: 1, 1: 1, 2: 1}),
        ("linear", {0.1: 0.9, 0.5: 0.5, 1: 0, 2: 0}),
        ("cosine", {0.25: (1 + math.cos(math.pi / 4)) / 2, 0.5: 0.5, 1: 0, 2: 0}),
        ("wsd", {0.1: 1, 0.8: 1, 0.9: 0.5, 1: 0, 2: 0}),  # the last fifth
    ],
)
def test_other_schedules_follow_the_budget(schedule, values):
    settings = Train(schedule=schedule, warmup=10, lr=1.0)
    for spent, value in values.items():
        assert learning_rate(10, spent, settings, 256) == pytest.approx(value, abs=1e-12)
        assert learning_rate(900, spent, settings, 256) == pytest.approx(value, abs=1e-12)
        assert learning_rate(5, spent, settings, 256) == pytest.approx(value / 2, abs=1e-12)
