"""Lines in capitals and in title case."""

from __future__ import annotations

import shutil

import pytest
from support.records import write_again
from support.small_language import SENTENCES

import nmt_cli
from nmt_cli.translate.protect import verbatim
from nmt_cli.translate.recase import sentence_case

KNOWN = {
    "the",
    "man",
    "sees",
    "a",
    "dog",
    "Berlin",
    "NATO",
    "in",
    "of",
    "lord",
    "rings",
    "I",
    "i",
    "am",
    "{name}",
    "it",
    "is",
}


def count_pieces(text: str) -> int:
    """One piece for a known word, one for each letter of other words."""
    words = text.replace(".", " ").replace("!", " ").replace(",", " ").split()
    return sum(1 if word in KNOWN or word[0] + word[1:].lower() in ("The", "A", "I") else len(word) for word in words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("THE MAN SEES A DOG.", "The man sees a dog."),
        ("THE MAN SEES NATO IN BERLIN!", "The man sees NATO in Berlin!"),
        ("THE MAN SEES {name}.", "The man sees {name}."),
        ("IT IS THE MAN I AM.", "It is the man I am."),
        ("The Man Sees A Dog In Berlin", "The man sees a dog in Berlin"),
        ("The Lord Of The Rings", "The lord of the rings"),
        ("The man sees a dog.", None),
        ("New York City Council", None),
        ("NATO", None),
        ("The Dog", None),
        ("12 345 %", None),
        ("我喜欢绿色的猫", None),
        ("", None),
    ],
)
def test_sentence_case_of_text(text, expected):
    found = sentence_case(text, verbatim, count_pieces, "en")
    assert (found.text if found else None) == expected


def test_case_is_put_back_around_fixed_text():
    capitals = sentence_case("THE MAN SEES {name} AND <b>A DOG</b>.", verbatim, count_pieces, "en")
    assert (
        capitals.put_back("Der Mann sieht {name} und <b>einen Hund</b>.")
        == "DER MANN SIEHT {name} UND <b>EINEN HUND</b>."
    )
    title = sentence_case("The Man Sees {name} And A Dog.", verbatim, count_pieces, "en")
    assert title.put_back("Der Mann sieht {name} und einen Hund.") == "Der Mann Sieht {name} Und Einen Hund."


def test_lines_in_capitals_and_title_case_are_translated_like_plain_lines(translators):
    """The small language has one capital in a sentence, so the plain line is the line in sentence case."""
    plain = [line[0].upper() + line[1:] for line in SENTENCES[:30]]
    for translator in translators.values():
        expected = [translation.text for translation in translator.translate(plain)]
        upper = translator.translate([line.upper() for line in plain])
        assert [translation.text for translation in upper] == [text.upper() for text in expected]
        assert all("recased" in translation.flags for translation in upper)
        longer = [number for number, line in enumerate(plain) if len(line.split()) > 3]
        title = translator.translate([plain[number].title() for number in longer])
        assert [one.text.lower() for one in title] == [expected[number].lower() for number in longer]


@pytest.mark.parametrize("known", ["capitals", "title_case"])
def test_case_that_the_model_was_trained_for_stays(model, tmp_path, known):
    shutil.copytree(model / "model", tmp_path / "model")
    recipe = tmp_path / "model/recipe.toml"
    text = recipe.read_text()
    assert f"{known} = 0.0" in text
    recipe.write_text(text.replace(f"{known} = 0.0", f"{known} = 0.1"))
    write_again(tmp_path / "model/about.json")
    line = "This Boy Sees My Small Dog."
    with nmt_cli.load(tmp_path / "model") as translator:
        flags = [found.flags for found in translator.translate([line.upper(), line])]
    assert [("recased" in each) for each in flags] == [known != "capitals", known != "title_case"]
