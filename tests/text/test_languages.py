"""The codes and scripts of languages."""

from __future__ import annotations

import pytest

from nmt_cli.text.languages import in_wrong_script, language_code, puts_spaces_between_sentences, scripts_of


@pytest.mark.parametrize(
    ("language", "code", "has_spaces"),
    [
        ("de-AT", "de", True),
        ("zh_Hans", "zh", False),
        ("eng_Latn", "en", True),  # FLORES
        ("zho_Hans", "zh", False),
        ("cmn", "zh", False),
        ("jpn", "ja", False),
        ("tha_Thai", "th", False),
        ("KOR", "ko", True),
        ("fil", "fil", True),  # there is no code of two letters
        ("", "", True),
    ],
)
def test_code_of_a_language_has_two_letters_if_there_is_such_a_code(language, code, has_spaces):
    assert (language_code(language), puts_spaces_between_sentences(language)) == (code, has_spaces)


@pytest.mark.parametrize(
    ("language", "text", "wrong"),
    [
        ("en", "plain", False),
        ("en", "naïve Ἄλφα", False),  # half of the letters, not more
        ("fr", "Ελλάδα", True),
        ("ru", "Привет", False),
        ("ru-RU", "Hello", True),
        ("zh_Hans", "你好", False),
        ("zho_Hans", "Hello", True),
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
