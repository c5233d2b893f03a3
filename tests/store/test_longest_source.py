"""The longest source that a model takes: nmt translate splits longer lines."""

from pathlib import Path

from nmt_cli.recipe import schema as recipe
from nmt_cli.store.folders import ModelFolder


def longest_source(model: recipe.Model, max_tokens: int) -> int:
    data = recipe.Data(clean=recipe.Clean(max_tokens=max_tokens))
    return ModelFolder(Path(), recipe.Recipe(data=data, model=model), None, {}).longest_source


def test_longest_source_is_that_of_training_or_of_the_positions():
    assert longest_source(recipe.Rnn(), 250) == longest_source(recipe.Conv(), 250) == 250  # as in training
    assert longest_source(recipe.Rnn(), 0) > 10**6  # a recurrence has no limit
    assert longest_source(recipe.Conv(max_positions=100), 0) == 99  # one position is for EOS
