"""Training in the process of the test, for tests that need no command line."""

from __future__ import annotations

import pytest

from nmt_cli.recipe.load import load_recipe, parse_overrides
from nmt_cli.training.session import train


@pytest.fixture
def train_toy(toy):
    """train_toy("train.steps=5", force=True) trains on the toy corpus. Returns the result and the events."""

    def run(*overrides: str, **options):
        events: list = []
        result = train(load_recipe(toy, parse_overrides(overrides)), watch=events.append, **options)
        return result, events

    return run
