"""Warnings and errors about the texts and options of `nmt score`."""

from __future__ import annotations

import pytest
from support.checks import assert_user_error
from support.score_texts import tsv_rows

from nmt_cli.errors import NmtError
from nmt_cli.scoring.texts import Texts, find_warnings, read_texts


def texts_of(systems: dict[str, list[str]], *references: list[str], source: list[str] | None = None) -> Texts:
    return Texts(systems, {f"ref{n}": lines for n, lines in enumerate(references)}, source)


@pytest.mark.parametrize(
    ("lines", "warning"),
    [
        (["ein Haus", "ein Hund."], None),
        (["ein Ha@@ us", "ein Hund."], "a, line 1: not joined from pieces"),
        (["ein Haus", "ein Hu@@"], "a, line 2: not joined from pieces"),
        (["▁ein ▁Haus", "▁ein Hund ."], "a, line 1 and 1 more: not joined from pieces"),
        (["me@@here", "ein Hund."], None),
        (["ein Haus", "\u200b "], "a, line 2: blank"),
        (["ein Haus .", "ein Hund ."], "a looks tokenized: 2 of 2 lines"),
        (["das Haus", "der Hund."], "a is the same text as ref0"),
        (["the house", "ein Hund."], "a, line 1: the source itself, not translated"),
    ],
)
def test_warnings_of_likely_mistakes(lines, warning):
    warnings = find_warnings(
        texts_of({"a": lines}, ["das Haus", "der Hund."], source=["the house", "the dog."]), ("bleu",), "13a"
    )
    assert [message.startswith(warning or "?") for message in warnings] == ([True] if warning else [])


@pytest.mark.parametrize(
    ("reference", "tokenizer", "count"),
    [
        ("我喜欢公园。", "13a", 1),
        ("私は公園が好きです。", "13a", 1),
        ("나는 공원을 좋아합니다.", "13a", 1),
        ("ฉันชอบสวนสาธารณะ", "intl", 1),
        ("我喜欢公园。", "zh", 0),
        ("私は公園が好きです。", "char", 0),
        ("Ich mag 公园.", "13a", 0),
    ],
)
def test_warning_when_the_tokenizer_does_not_fit_the_script(reference, tokenizer, count):
    assert len(find_warnings(texts_of({"a": ["x"]}, [reference]), ("bleu",), tokenizer)) == count
    assert not find_warnings(texts_of({"a": ["x"]}, [reference]), ("chrf",), tokenizer)


def test_warnings_of_equal_systems_and_of_a_blank_reference():
    warnings = find_warnings(texts_of({"a": ["x", "y"], "b": ["x", "y"]}, ["z", ""]), ("bleu",), "13a")
    assert warnings == ["ref0, line 2: blank: is the file of references complete?", "b is the same text as a"]


def test_bom_and_crlf_are_removed_and_only_lf_ends_a_line(nmt, write):
    """A BOM took BLEU from 100 to 89; CR, NEL and U+2028 inside a line do not end it."""
    write("ref.de", "Ein Haus am grünen\u2028See.\nEin\u0085Hund läuft nach Hause.")
    write("a.de", b"\xef\xbb\xbf" + "Ein Haus am grünen\u2028See.\r\nEin\u0085Hund läuft nach Hause.\r\n".encode())
    result = nmt("score", "a.de", "--ref", "ref.de", "--format", "tsv", env={"LC_ALL": "C"})
    assert [float(row["score"]) for row in tsv_rows(result)] == [100, 100]
    assert "warning: a.de: a byte order mark at its beginning was removed" in result.err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["short.de", "--ref", "ref.de"], ["short.de has 2 lines, but ref.de has 60 lines"]),
        (["a.de", "short.de", "--ref", "ref.de", "-s", "one.de"], ["one.de has 1 line, short.de has 2 lines"]),
        (["a.de", "--ref", "ref.de", "--ref", "short.de"], ["short.de has 2 lines, but ref.de has 60"]),
        (["empty", "--ref", "empty2"], ["empty2 is empty: there is nothing to score"]),
        (["-", "--ref", "-"], ["standard input (-) is named twice"]),
        (["-", "--ref", "ref.de", "--source", "-"], ["standard input (-) is named twice"]),
        (["a.de", "a.de", "--ref", "ref.de"], ["a.de is named twice"]),
        (["latin.de", "--ref", "ref.de"], ["latin.de, line 2, byte 4: not UTF-8 (0xe9)"]),
        (["none.de", "--ref", "ref.de"], ["there is no file none.de"]),
        (["a.de"], ["--ref"]),
        (["--ref", "ref.de"], ["HYP"]),
        (["a.de", "--ref", "ref.de", "-m", "bleu,blue"], ["there is no metric 'blue'", "chrf++"]),
        (["a.de", "--ref", "ref.de", "-m", ""], ["there is no metric ''"]),
        (["a.de", "--ref", "ref.de", "--lang", "chinese"], ["'chinese' is not a language code"]),
        (["a.de", "--ref", "ref.de", "--tokenize", "14a"], ["there is no tokenizer '14a'", "13a"]),
        (["a.de", "--ref", "ref.de", "--format", "xml"], ["--format", "xml"]),
        (["a.de", "--ref", "ref.de", "--paired", "bs"], ["--paired compares systems, but only one is given"]),
        (["a.de", "--ref", "ref.de", "--samples", "9"], ["--samples has no effect", "add --confidence"]),
        (["a.de", "--ref", "ref.de", "--tokenize", "zh", "-m", "chrf"], ["--tokenize has no effect without BLEU"]),
        (["a.de", "--ref", "ref.de", "--comet-model", "x"], ["--comet-model has no effect without COMET"]),
        (
            ["a.de", "--ref", "ref.de", "--source", "ref.de", "-m", "comet", "--confidence"],
            ["COMET is not resampled", "--confidence"],
        ),
        (["a.de", "--ref", "ref.de", "--seed", "x"], ["--seed"]),
        (["a.de", "--ref", "ref.de", "-f", "tsv", "--worst", "1", "--by-length"], ["a TSV holds one table"]),
        (["a.de", "--ref", "ref.de", "-m", "comet"], ["COMET needs the source", "--source"]),
    ],
)
def test_wrong_options_and_files_are_user_errors(nmt, files, write, arguments, parts):
    write("short.de", "ein Haus\nein Hund\n")
    write("one.de", "a house\n")
    write("empty", "")
    write("empty2", "")
    write("latin.de", b"ok\ncaf\xe9\n")
    assert_user_error(nmt("score", *arguments), *parts)


def test_missing_last_newline_does_not_change_the_line_count(write):
    texts, _ = read_texts([write("a", "x\ny")], [write("b", "x\ny\n")], None)
    assert texts.lines == 2
    with pytest.raises(NmtError, match="c has 3 lines"):
        read_texts([write("c", "x\ny\n\n")], [write("b", "x\ny\n")], None)
