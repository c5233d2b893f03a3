"""The scripts of languages."""

from __future__ import annotations

import pytest

from nmt_cli.text.languages import in_wrong_script, scripts_of


@pytest.mark.parametrize(
    ("language", "text", "wrong"),
    [
        ("en", "plain", False),
        ("en", "naïve Ἄλφα", False),  # half of the letters, not more
        ("fr", "Ελλάδα", True),
        ("ru", "Привет", False),
        ("ru-RU", "Hello", True),
        ("zh_Hans", "你好", False),
        ("ja", "カタカナとひらがな漢字", False),
        ("ko", "안녕하세요", False),
        ("ar", "مرحبا", False),
        ("he", "שלום hi", False),
        ("el", "123 !?", False),  # a text without letters is never wrong
        ("tlh", "Привет", False),  # an unknown language has no scripts
    ],
)
def test_text_in_the_wrong_script_is_found(language, text, wrong):
    assert in_wrong_script(text, scripts_of(language)) is wrong
