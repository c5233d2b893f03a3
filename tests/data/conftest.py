"""A small corpus and the command that prepares it."""

from __future__ import annotations

import pytest
from support.toy_corpus import corpus


@pytest.fixture
def small(write):
    """a.en and a.de with 400 pairs, v.en and v.de with 20 others; the options that prepare them into out/."""
    for name, lines, first in (("a", 400, 1000), ("v", 20, 5000)):
        english, german = corpus(lines, first)
        write(f"{name}.en", english)
        write(f"{name}.de", german)
    return (
        *("prepare", "--source", "a.en", "--target", "a.de", "--valid-source", "v.en", "--valid-target", "v.de"),
        *("--out", "out", "--vocab-size", "60"),
    )
