"""The rules on lengths that drop training pairs."""

from __future__ import annotations

import pytest

from nmt_cli.data.blocks import length_rule
from nmt_cli.recipe.schema import Clean


@pytest.mark.parametrize(
    ("source", "target", "rule"),
    [
        (250, 250, None),
        (251, 10, "max_tokens"),
        (10, 35, None),
        (10, 36, "max_ratio"),
        (36, 10, "max_ratio"),
        (0, 5, None),
    ],
)
def test_length_rules(source, target, rule):
    assert length_rule(source, target, Clean()) == rule
