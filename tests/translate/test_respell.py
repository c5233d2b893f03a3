"""Lines with typos."""

from __future__ import annotations

import json
import shutil

import pytest
from support.records import write_again
from support.small_language import SENTENCES

import nmt_cli
from nmt_cli.text.spelling import Words
from nmt_cli.translate.protect import verbatim
from nmt_cli.translate.respell import respell
from nmt_cli.translate.results import Correction

WORDS = Words(
    dict.fromkeys(["the", "The", "man", "sees", "a", "cream", "dog", "big", "s", "and"], 5),
    frozenset({"dream"}),
)
# Typos in words of the small language, one of each kind.
TYPED = {"horse": "hosre", "teacher": "techer", "doctor": "docctor", "small": "smakl", "follows": "folllows"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The mna sees a dgo.", "The man sees a dog."),
        ("Teh mna, sees... (teh) dgo!", "The man, sees... (the) dog!"),
        ("<b>mna</b> sees the dog", "<b>man</b> sees the dog"),
        ("The mna's dog", "The man's dog"),
        ("The man sees a dream.", None),
        ("The man sees `teh` and teh_dog and {teh} and http://teh.org.", None),
        ("The man sees Teh.", None),
        ("The man sees the dog.", None),
        ("Teh xylophon zwitschert.", None),  # most words are of another language
        ("Teh man sees the big xylophon.", "The man sees the big xylophon."),
        ("我喜欢teh绿色的猫", None),
        ("t", None),
        ("", None),
    ],
)
def test_corrected_text(text, expected):
    found = respell(text, verbatim, WORDS)
    assert (found.text if found else None) == expected


def test_corrections_are_in_the_order_of_the_text():
    found = respell("Teh dgo sees teh mna.", verbatim, WORDS)
    pairs = [("Teh", "The"), ("dgo", "dog"), ("teh", "the"), ("mna", "man")]
    assert found.corrections == tuple(Correction(*pair) for pair in pairs)


def mistyped(line: str) -> tuple[str, tuple[Correction, ...]]:
    """The line with the typos of TYPED, and their corrections."""
    corrections = []
    words = line.split(" ")
    for number, word in enumerate(words):
        if (right := word.strip(".,")) in TYPED:
            words[number] = word.replace(right, TYPED[right])
            corrections.append(Correction(TYPED[right], right))
    return " ".join(words), tuple(corrections)


@pytest.fixture(scope="module")
def lines():
    """Lines as they should be, the same lines with typos, and the corrections."""
    found = [(line, *mistyped(line)) for line in SENTENCES]
    found = [each for each in found if each[2]]
    assert len(found) > 20 and {each.typed for _, _, all in found for each in all} == set(TYPED.values())
    return list(zip(*found, strict=True))


def test_lines_with_typos_are_translated_like_right_lines(translators, lines):
    right, typed, corrections = map(list, lines)
    for translator in translators.values():
        options = {"n_best": 2, "align": True}
        expected, found = (translator.translate(text, **options) for text in (right, typed))
        # Also the n best, the scores and the alignments, which count the words of the typed line.
        assert [each.n_best for each in found] == [each.n_best for each in expected]
        assert [each.source for each in found] == typed
        assert all("respelled" in each.flags for each in found) and not any(each.respelled for each in expected)
        assert [each.respelled for each in found] == corrections


def test_capitals_and_paragraphs_with_typos(translators):
    translator = translators["ctranslate2"]
    right, typed = "This boy sees my small dog.", "This boy sees my smakl dog."
    expected = translator.translate(right)
    upper, both = translator.translate([typed.upper(), f"{typed} {right} {typed}"])
    assert upper.text == expected.text.upper() and upper.flags == ("recased", "respelled")
    assert both.text == " ".join([expected.text] * 3) and both.flags == ("respelled", "split")
    assert both.respelled == (Correction("smakl", "small"),) * 2 and len(both.parts) == 3


def test_typos_stay_if_the_option_is_off_and_in_scores(translators):
    translator = translators["ctranslate2"]
    off = translator.translate("This boy sees my smakl dog.", respell=False)
    assert "respelled" not in off.flags and not off.respelled
    typed, right = translator.score(["My smakl dog.", "My small dog."], ["Mon petit chien.", "Mon petit chien."])
    assert typed.score < right.score and not typed.respelled


def test_prefix_and_glossary_go_with_typos(translators):
    translator = translators["ctranslate2"]
    found = translator.translate("This boy sees my smakl dog.", prefix="Ce garçon")
    assert found.text.startswith("Ce garçon") and found.respelled == (Correction("smakl", "small"),)
    # A term of the glossary is no typo, and a corrected word may be a term.
    glossary = {"smakl": "énorme", "horse": "ami"}
    found = translator.translate("This boy sees my smakl hosre.", glossary=glossary)
    assert "énorme" in found.text and "ami" in found.text and found.respelled == (Correction("hosre", "horse"),)


def test_command_shows_corrected_words(nmt, model):
    line = b"This boy sees my smakl dog.\n"
    result = nmt("translate", model, "--format", "jsonl", stdin=line)
    entry = json.loads(result.out)
    assert entry["source"] == line.decode().strip() and entry["flags"] == ["respelled"]
    assert entry["respelled"] == [{"typed": "smakl", "read_as": "small"}]
    assert 'line 1: read "smakl" as "small"' in result.err
    off = nmt("translate", model, "--format", "jsonl", "--no-respell", stdin=line)
    assert "respelled" not in off.out.decode() and "read" not in off.err


def test_model_without_words_corrects_nothing(model, tmp_path):
    shutil.copytree(model / "model", tmp_path / "model", ignore=shutil.ignore_patterns("ctranslate2"))
    (tmp_path / "model/vocab/words.tsv").unlink()
    write_again(tmp_path / "model/about.json")
    with nmt_cli.load(tmp_path / "model", engine="torch", workers=1) as translator:
        assert "respelled" not in translator.translate("This boy sees my smakl dog.").flags
