"""Lines that are too long for the model."""

from __future__ import annotations

import json
import re

import pytest
from support.engines import Echo
from support.small_language import SENTENCES, text_of

from nmt_cli.search.contract import SearchOptions
from nmt_cli.search.workers import Workers
from nmt_cli.translate.options import Settings
from nmt_cli.translate.protect import Span
from nmt_cli.translate.rows import Row
from nmt_cli.translate.split import split_long
from nmt_cli.translate.translator import WindowTranslator


def test_long_line_is_split_and_a_warning_names_it(nmt, model):
    long = " ".join(SENTENCES[:40])
    result = nmt("translate", model, stdin=text_of(["the cat.", long]))
    assert result.code == 0 and "warning: line 2 is too long for the model: translated in " in result.err
    lines = result.text.splitlines()
    assert len(lines) == 2 and len(lines[1].split()) > 60


def test_long_line_with_restored_text_is_not_aligned(nmt, model):
    long = "The cat sees {x} and {y} {z}. " + " ".join(SENTENCES[:30])
    (line,) = nmt("translate", model, "--align", "--format", "jsonl", stdin=text_of([long])).text.splitlines()
    entry = json.loads(line)
    assert {"split", "restored"} <= set(entry["flags"])
    assert entry["n_best"][0]["alignment"] == ""  # the whole line or nothing is aligned
    (line,) = nmt("translate", model, "--align", "--format", "jsonl", stdin=text_of([long[30:]])).text.splitlines()
    entry = json.loads(line)
    assert set(entry["flags"]) == {"split"}
    pairs = [tuple(map(int, pair.split("-"))) for pair in entry["n_best"][0]["alignment"].split()]
    assert max(source for source, _ in pairs) < len(entry["source"].split())
    assert sorted(target for _, target in pairs) == list(range(len(entry["translation"].split())))


def test_line_with_a_cut_word_is_not_aligned(nmt, model):
    options = ("--align", "--format", "jsonl", "--no-protect")
    entry = json.loads(nmt("translate", model, *options, stdin=b"a" * 3000).text)
    assert "split" in entry["flags"] and entry["n_best"][0]["alignment"] == ""


def test_n_best_of_a_split_line_is_sorted_and_complete(nmt, model):
    """The line has 4 translations, although one part is copied. Split lines have no token_logprobs."""
    line = " ".join([*SENTENCES[:20], "https://example.org/" + "a" * 600 + ".", *SENTENCES[20:30]])
    options = ("--format", "jsonl", "--tokens", "--n-best", 4)
    entry = json.loads(nmt("translate", model, *options, stdin=text_of([line])).text)
    scores = [best["score"] for best in entry["n_best"]]
    assert {"split", "copied"} <= set(entry["flags"]) and len(scores) == 4 and scores == sorted(scores, reverse=True)
    assert all(not best["token_logprobs"] for best in entry["n_best"])


def test_parts_of_a_long_line_are_joined(trained):
    """With an engine that writes the source, the translation is the line."""
    settings = Settings(SearchOptions(), 4000, longest_source=30, align=True)
    translator = WindowTranslator(Workers(Echo(), 1, False), trained.vocab, settings)
    line = " ".join(SENTENCES[:10])
    (found,) = translator.translate([Row(1, line)])
    assert found.text == line and found.parts > 4 and found.flags == ("split",)
    assert list(found.n_best[0].alignment) == [(n, n) for n in range(len(line.split()))]


@pytest.mark.parametrize(
    "line", [b"x" * 100_000, b"the cat sees the dog, and " * 40_000], ids=["word", "million letters"]
)
def test_line_of_a_million_characters_is_translated(nmt, model, line):
    result = nmt("translate", model, "--beam", 1, "--max-ratio", 0.1, stdin=line + b"\nthe cat.\n")
    assert result.code == 0 and len(result.text.splitlines()) == 2 and "line 1" in result.err


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a b c", ["a b c"]),
        ("a b c. d e f.", ["a b c.", "d e f."]),
        ("a b. c d. e f.", ["a b. c d.", "e f."]),
        ("a b c, d e f", ["a b c,", "d e f"]),
        ("a b c d e f", ["a b c d", "e f"]),
        ('"a b c!" d e? f', ['"a b c!"', "d e? f"]),
    ],
)
def test_split_long_cuts_at_the_best_places(text, parts):
    assert split_long(text, 4, words) == parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a b <a b c d e> f g", ["a b", "<a b c d e>", "f g"]),
        ("<aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa>", ["<aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa>"]),
        ("bbbbbb<aaaaaaaaaaaaa>bbbbbb", ["bbbbbb", "<aaaaaaaaaaaaa>", "bbbbbb"]),
        ("<aaaaaaaaaaaaaaaaaa>bbbbbbbbb", ["<aaaaaaaaaaaaaaaaaa>", "bbbbbbbbb"]),
    ],
)
def test_split_long_keeps_uncut_spans_whole(text, parts):
    def whole(part: str) -> list[Span]:
        return [Span(match.start(), match.end(), match[0]) for match in re.finditer("<[^>]*>", part)]

    assert split_long(text, 9, len, whole) == parts


def test_address_longer_than_the_limit_is_copied(nmt, model):
    address = "https://example.org/" + "/".join(f"seite{n}" for n in range(400))
    result = nmt("translate", model, stdin=text_of([f"the cat sees {address} and the dog.", address]))
    assert result.code == 0, result.err
    assert address in result.text.split("\n")[0] and result.text.split("\n")[1] == address


def test_split_long_cuts_inside_a_long_word():
    parts = split_long("x" * 1001, 10, len)
    assert "".join(parts) == "x" * 1001 and max(map(len, parts)) <= 10
    assert split_long("。".join(["一二三"] * 9), 8, len)[0] == "一二三。一二三。"
