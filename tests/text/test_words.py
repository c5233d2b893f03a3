"""Words are counted in every script."""

from __future__ import annotations

import pytest

from nmt_cli.text.languages import count_words


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("Ein Haus, am See!", 4),
        ("我喜欢。", 3),
        ("나는 공원을", 2),
        ("हिन्दी भाषा", 2),
        ("don't", 2),
        ("¿Qué?", 1),
    ],
)
def test_count_words(text, count):
    assert count_words(text) == count
