"""Pieces merged to words."""

from __future__ import annotations

from nmt_cli.text.alignment import words_of


def test_apostrophes_and_hyphens_stay_inside_words():
    pieces = ["▁J", "'", "aime", "▁le", "▁", "猫", "▁(", "vis", "-", "à", "-", "vis", ")", "."]
    assert [word.text for word in words_of(pieces, punctuation=True)] == [
        "J'aime",
        "le",
        "猫",
        "(",
        "vis-à-vis",
        ")",
        ".",
    ]
    assert [word.text for word in words_of(pieces)] == ["J'aime", "le", "猫", "(vis-à-vis)."]
