"""What `nmt prepare` says about corpora that look like a mistake, before the long work."""

from __future__ import annotations

import pytest
from support.checks import assert_user_error
from support.toy_corpus import corpus

from nmt_cli.demo import demo_corpus

RUSSIAN = "Это не все, что он знает, и если бы не его друг, то так было бы и сейчас. "
GREEK = "Αυτό δεν είναι όλα όσα ξέρει. "


@pytest.fixture
def prepare(nmt, write):
    """prepare(source_lines, target_lines, "--valid-tsv", ...) prepares a.en and a.fr. Returns all messages."""

    def run(source: list[str], target: list[str], *options: object) -> str:
        for name, lines in (("a.en", source), ("a.fr", target)):
            write(name, "".join(line + "\n" for line in lines))
        files = ("--source", "a.en", "--target", "a.fr", "--vocab-size", 300)
        result = nmt("prepare", *files, "--out", "out", *options)
        assert "Traceback" not in result.err, result.err
        return result.err

    return run


@pytest.fixture(scope="module")
def demo() -> tuple[list[str], list[str]]:
    english, french = zip(*demo_corpus("train")[:600], strict=True)
    return list(english), list(french)


def test_right_languages_give_no_warning(prepare, demo):
    assert prepare(*demo) == "\nwritten to out; next: nmt train out\n"


def test_languages_that_are_not_stated_are_named(nmt, write, demo):
    for name, lines in (("left.txt", demo[0]), ("right.txt", demo[1]), ("a.en", demo[0])):
        write(name, "".join(line + "\n" for line in lines))
    options = ("--vocab-size", 300, "--out", "out", "--force")
    result = nmt("prepare", "--source", "left.txt", "--target", "right.txt", *options)
    warning = "the language of the source and of the target is not known"
    assert result.err.startswith(f"warning: {warning}"), result.err
    assert "state it: --source-lang en --target-lang fr\n" in result.err
    result = nmt("prepare", "--source", "a.en", "--target", "right.txt", *options)
    assert "the language of the target is not known" in result.err
    assert "state it: --target-lang fr\n" in result.err


def test_swapped_languages_are_a_warning(prepare, demo):
    english, french = demo
    warning = "the source looks like fr and the target like en: swap the two sides, or set --source-lang fr"
    assert prepare(french, english).startswith(f"warning: the train corpus a.en + a.fr: {warning}")
    swapped = ("--force", "--source-lang", "fr", "--target-lang", "en")
    assert "warning" not in prepare(french, english, *swapped)


@pytest.mark.parametrize(
    ("other", "looks_like"), [("demo", "fr"), (RUSSIAN, "ru"), (GREEK, "Greek script")], ids=["words", "both", "script"]
)
def test_a_side_in_another_language_is_a_warning(prepare, demo, other, looks_like):
    french = demo[1]
    source = french if other == "demo" else [f"{other}{number}" for number in range(600)]
    target = [line.upper() for line in french]
    warning = f"the source looks like {looks_like}, but --source-lang (data.source_lang) is en\n"
    assert prepare(source, target).startswith(f"warning: the train corpus a.en + a.fr: {warning}")


def test_swapped_scripts_are_a_warning(prepare, demo):
    greek = [f"{GREEK}{number}" for number in range(600)]
    message = prepare(greek, demo[0], "--target-lang", "el")
    assert "the source looks like el and the target like en: swap the two sides" in message
    assert "all 600 training pairs were dropped: wrong_script 600" in message


def test_untranslated_lines_are_a_warning(prepare):
    """The samples of both sides have the same lines, although the blocks of the files have other limits."""
    english = [f"number {number} " + "x" * 2000 * (number % 5 > 2) for number in range(3000)]
    french = [line if number % 5 < 3 else f"{number}" for number, line in enumerate(english)]
    assert "a.en + a.fr: source and target are the same in 60% of the lines" in prepare(english, french)


def test_the_same_corpus_twice_is_a_warning(prepare, demo, write):
    english, french = demo
    write("b.en", "".join(line + "\n" for line in english))
    write("b.fr", "".join(line + "\n" for line in french))
    again = prepare(english, french, "--source", "b.en", "--target", "b.fr")
    assert "warning: the train corpus b.en + b.fr has the same content as the train corpus a.en + a.fr\n" in again
    valid = prepare(english, french, "--force", "--valid-source", "b.en", "--valid-target", "b.fr")
    assert "warning: the valid corpus b.en + b.fr has the same content as the train corpus a.en + a.fr\n" in valid


def test_validation_text_that_is_the_training_text_is_an_error_that_says_so(prepare, demo):
    messages = prepare(*demo, "--valid-source", "a.en", "--valid-target", "a.fr")
    assert "error: all 600 training pairs were dropped: overlap 600\n" in messages
    assert "hint: name other validation and test text than the training text" in messages


def test_the_same_file_as_source_and_target_is_an_error(nmt, write, tmp_path):
    write("a.en", corpus(300, 1000)[0])
    write("a.de", corpus(300, 1000)[0])
    files = ("--source", "a.en", "--target", "a.de", "--out", "out", "--vocab-size", 40)
    assert_user_error(nmt("prepare", *files), "a.en and a.de have the same content")
    assert not (tmp_path / "out").exists()
    result = nmt("prepare", *files, "--set", "data.clean.identical=false")
    assert result.code == 0, result.err
