"""Slips of the keyboard, and words.tsv."""

from __future__ import annotations

from itertools import product

import pytest

from nmt_cli.errors import NmtError
from nmt_cli.text.spelling import KEYBOARD, Words, general_words, intended, read_words, slips, write_words

LETTERS = "asqé"  # a, s and q are neighbors, except s and q; é has no key


def test_keys_touch_each_other_in_both_directions():
    assert set(KEYBOARD["s"]) == set("awedxz") and set(KEYBOARD["p"]) == set("ol")
    assert all(letter in KEYBOARD[near] for letter in KEYBOARD for near in KEYBOARD[letter])


def test_slips_of_a_word():
    found = set(slips("the"))
    assert {"hte", "teh", "he", "te", "th", "tthe", "thhe", "thee", "rhe", "tge", "thw", "thre", "thge"} <= found
    assert not {"eht", "thxe", "xhe", "t", "theab"} & found


def test_intended_words_are_the_words_that_a_slip_turns_into_the_typed_word():
    """Compared with a search through all words of up to five letters."""
    words = ["".join(word) for length in range(1, 6) for word in product(LETTERS, repeat=length)]
    made_from: dict[str, set[str]] = {}
    for word in words:
        for slip in slips(word):
            made_from.setdefault(slip, set()).add(word)
    for typed in words:
        if len(typed) < 5:
            found = {word for word in intended(typed, LETTERS) if set(word) <= set(LETTERS)}
            assert found == made_from[typed], typed


WORDS = Words(
    {"the": 50, "The": 20, "man": 9, "men": 4, "cream": 3, "can": 9, "shirt": 3, "Berlin": 7, "a" * 30: 3},
    frozenset({"dream", "tea", "mane"}),
)


@pytest.mark.parametrize(
    ("typed", "begins_sentence", "expected"),
    [
        ("teh", False, "the"),
        ("shrit", False, "shirt"),
        ("Teh", True, "The"),
        ("Shrit", True, "Shirt"),
        ("Teh", False, None),  # in the middle of a sentence a capital is the sign of a name
        ("TEH", True, None),
        ("tEh", True, None),
        ("mna", False, "man"),
        ("mn", False, "man"),  # and not "men", which is less frequent
        ("an", False, "can"),  # "can" and "man" are equally frequent
        ("dream", False, None),
        ("Dream", True, None),
        ("tea", False, None),
        ("the", False, None),
        ("THE", False, None),
        ("berlin", False, None),
        ("berlni", False, None),  # the training text has no such word in lower case
        ("Berlni", True, None),
        ("h", False, None),
        ("t3h", False, None),
        ("xyzzy", False, None),
        ("a" * 29, False, "a" * 30),
        ("a" * 31, False, None),  # longer words are not corrected, so that the work for a word is bounded
    ],
)
def test_correct_word(typed, begins_sentence, expected):
    assert WORDS.correct(typed, begins_sentence) == expected


def test_words_of_a_text_are_written_and_read(tmp_path):
    write_words(tmp_path, ["The cream, the cream", "the cream isn't Cream"] * 2 + ["crema the"], "en_US")
    rows = [line.split("\t") for line in (tmp_path / "words.tsv").read_text().splitlines()]
    trained = [(word, int(count)) for word, count in rows if count != "0"]
    # cream 6 times, the 5, and The, Cream, crema, isn and t twice or less
    assert trained == [("cream", 6), ("the", 5)]
    others = [word for word, count in rows if count == "0"]
    assert others == sorted(others) and {"dream", "thee", "he"} <= set(others)
    assert set(others) <= general_words("en")
    words = read_words(tmp_path)
    assert words == Words({"cream": 6, "the": 5}, frozenset(others))
    assert [words.correct(typed, False) for typed in ("crema", "dream", "teh", "thee")] == ["cream", None, "the", None]


def test_words_of_an_older_text_stay(tmp_path):
    write_words(tmp_path, ["the cat sleeps"] * 3, "en")
    write_words(tmp_path, ["the dog eats"] * 4, "en", read_words(tmp_path))
    assert read_words(tmp_path).counts == {"the": 7, "cat": 3, "sleeps": 3, "dog": 4, "eats": 4}


def test_parts_of_words_and_words_without_their_apostrophe_are_words():
    assert {"isn", "isnt", "dont", "ve", "dream"} <= general_words("en")


@pytest.mark.parametrize("language", ["cs", "zh", "", "x"])
def test_language_without_a_good_list_has_no_file(language, tmp_path):
    write_words(tmp_path, ["the cat sleeps"] * 3, language)
    assert not list(tmp_path.iterdir())
    assert read_words(tmp_path) is None


@pytest.mark.parametrize("content", [b"the\n", b"the\tmany\n", b"the\t3\t4\n", b"\xff\t3\n"])
def test_damaged_file_is_an_error(content, tmp_path):
    (tmp_path / "words.tsv").write_bytes(content)
    with pytest.raises(NmtError, match=r"words\.tsv is damaged"):
        read_words(tmp_path)
