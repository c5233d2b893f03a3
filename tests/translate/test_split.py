"""Lines of several sentences, and lines that are too long for the model."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from support.engines import Echo
from support.records import write_again
from support.small_language import SENTENCES, text_of

import nmt_cli
from nmt_cli.search.contract import Hypothesis, SearchOptions
from nmt_cli.search.workers import Workers
from nmt_cli.text.vocab import Vocab
from nmt_cli.translate.options import Settings
from nmt_cli.translate.protect import Span, verbatim
from nmt_cli.translate.results import Translation
from nmt_cli.translate.rows import Row
from nmt_cli.translate.split import split_line
from nmt_cli.translate.translator import WindowTranslator


def test_long_line_is_split_and_a_warning_names_it(nmt, model):
    long = " ".join(SENTENCES[:40])
    result = nmt("translate", model, stdin=text_of(["the cat.", long]))
    assert result.code == 0 and "warning: line 2 is too long for the model: translated in parts" in result.err
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
    assert set(entry["flags"]) - {"omission"} == {"split", "long"}
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
    scores = [best["score"] for best in entry["n_best"][1:]]
    assert {"split", "copied"} <= set(entry["flags"]) and len(scores) == 3 and scores == sorted(scores, reverse=True)
    assert all(not best["token_logprobs"] for best in entry["n_best"])


class TwoBest:
    """Gives each of two sentences a good translation and a bad one. The joined bad ones have the higher score."""

    name = "two best"

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab

    def translate(self, requests, options):
        short, short_bad = self.vocab.target.encode(["oui", "non"])
        long, long_bad = self.vocab.target.encode(["le chat dort dans le jardin", "un chien mange dans la maison"])
        logp = [[(short, -1.0), (long_bad, -1.1)], [(long, -3.0), (short_bad, -3.1)]]  # of a piece
        return [[Hypothesis(tuple(ids), p, p * (len(ids) + 1), (), True) for ids, p in two] for two in logp]

    def score(self, pairs, options):
        raise NotImplementedError


def test_best_of_a_split_line_does_not_depend_on_the_number_of_the_others(trained):
    """Only the best of each part was checked for lost text."""
    settings = Settings(SearchOptions(n_best=2), 4000, longest_source=30)
    translator = WindowTranslator(Workers(TwoBest(trained.vocab), 1, False), trained.vocab, settings)
    (found,) = translator.translate([Row(1, "The cat sleeps. The dog runs.")])
    first, second = found.n_best
    assert second.score > first.score
    assert (first.text, second.text) == ("oui le chat dort dans le jardin", "un chien mange dans la maison non")
    assert [found.text[slice(*part.translation)] for part in found.parts] == ["oui", "le chat dort dans le jardin"]


def test_line_is_split_by_the_pieces_of_its_normalized_text(trained):
    """The vocabulary does not have wide letters, so it would count a wide word as one unknown piece."""
    vocab = dataclasses.replace(trained.vocab, normalization="nfkc")
    translator = WindowTranslator(Workers(Echo(), 1, False), vocab, Settings(SearchOptions(), 4000, longest_source=30))
    line = " ".join(10 * ["qualification"])
    wide = "".join(chr(ord(letter) + 0xFEE0) if letter > " " else " " for letter in line)
    assert len(vocab.source.encode(wide)) < 30 < len(vocab.source.encode(line))
    (found,) = translator.translate([Row(1, wide)])
    assert found.text == line and found.flags == ("long", "split")


def test_parts_of_a_long_line_are_joined(trained):
    """With an engine that writes the source, the translation is the line."""
    settings = Settings(SearchOptions(), 4000, longest_source=30, align=True)
    translator = WindowTranslator(Workers(Echo(), 1, False), trained.vocab, settings)
    line = " ".join(SENTENCES[:10])  # two of these begin with a small letter and belong to the sentence before
    (found,) = translator.translate([Row(1, line)])
    assert found.text == line and len(found.parts) == 8 and found.flags == ("long", "split")
    assert list(found.n_best[0].alignment) == [(n, n) for n in range(len(line.split()))]


@pytest.mark.parametrize(
    "line", [b"x" * 10_000, (b"the cat sees the dog, and" + b" " * 475) * 2_000], ids=["word", "million letters"]
)
def test_line_of_a_million_characters_is_translated(nmt, model, line):
    """Most of the million are spaces, which cost the model nothing. The next test has more letters and words."""
    result = nmt("translate", model, "--beam", 1, "--max-ratio", 0.1, stdin=line + b"\nthe cat.\n")
    assert result.code == 0 and len(result.text.splitlines()) == 2 and "line 1" in result.err


@pytest.mark.parametrize("line", ["x" * 100_000, "the cat sees the dog, and " * 10_000], ids=["word", "words"])
def test_very_long_line_is_split_into_parts_that_the_model_can_read(trained, line):
    """Without the engine, whose work for each part does not depend on the number of parts."""

    def count(text: str) -> int:
        return len(trained.vocab.source.encode(text))

    parts = split_line(line, "en", 250, count, verbatim)
    assert "".join(parts) == line and max(map(count, parts)) <= 250
    assert len(parts) < 4 * count(line) / 250


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize(
    ("text", "by_sentence", "as_few_as_possible"),
    [
        ("a b c", "a b c", "a b c"),
        ("Aa bb. Bb dd.", "Aa bb. |Bb dd.", "Aa bb. Bb dd."),
        ("Aa bb. Bb dd. Cc ff.", "Aa bb. |Bb dd. |Cc ff.", "Aa bb. Bb dd. |Cc ff."),
        ("a b c, d e f", "a b c, |d e f", "a b c, |d e f"),
        ("a b c d e f", "a b c d |e f", "a b c d |e f"),
        ("Aa b c d, e gg. Bb!", "Aa b c d, |e gg. |Bb!", "Aa b c d, |e gg. Bb!"),
    ],
)
def test_split_line_cuts_at_the_best_places(text, by_sentence, as_few_as_possible):
    assert split_line(text, "en", 4, words) == by_sentence.split("|")
    assert split_line(text, "en", 4, words, by_sentence=False) == as_few_as_possible.split("|")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a b <a b c d e> f g", ["a b ", "<a b c d e> ", "f g"]),
        ("Aa. <a. B. c> Dd.", ["Aa. ", "<a. B. c> ", "Dd."]),
        ("<aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa>", ["<aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa>"]),
        ("bbbbbb<aaaaaaaaaaaaa>bbbbbb", ["bbbbbb", "<aaaaaaaaaaaaa>", "bbbbbb"]),
        ("<aaaaaaaaaaaaaaaaaa>bbbbbbbbb", ["<aaaaaaaaaaaaaaaaaa>", "bbbbbbbbb"]),
    ],
)
def test_split_line_keeps_uncut_spans_whole(text, parts):
    def whole(part: str) -> list[Span]:
        return [Span(match.start(), match.end(), match[0]) for match in re.finditer("<[^>]*>", part)]

    assert split_line(text, "en", 11, len, whole) == parts


def test_address_longer_than_the_limit_is_copied(nmt, model):
    address = "https://example.org/" + "/".join(f"seite{n}" for n in range(400))
    result = nmt("translate", model, stdin=text_of([f"the cat sees {address} and the dog.", address]))
    assert result.code == 0, result.err
    assert address in result.text.split("\n")[0] and result.text.split("\n")[1] == address


def test_split_line_keeps_a_first_part_without_pieces():
    """SentencePiece makes no pieces of its own mark for a space."""
    parts = split_line("\u2581 a b c", "en", 2, lambda text: len(text.replace("\u2581", "").split()))
    assert "".join(parts) == "\u2581 a b c"


def test_split_line_cuts_inside_a_long_word():
    parts = split_line("x" * 1001, "en", 10, len)
    assert "".join(parts) == "x" * 1001 and max(map(len, parts)) <= 10
    assert split_line("。".join(["一二三"] * 9), "zh", 8, len, by_sentence=False)[0] == "一二三。一二三。"


@pytest.fixture
def echo(trained):
    """Translates with an engine that writes the source."""

    def translate(line: str, given: str = "", **settings: object) -> Translation:
        given_settings = Settings(SearchOptions(), 4000, longest_source=100, align=True, **settings)
        (found,) = WindowTranslator(Workers(Echo(), 1, False), trained.vocab, given_settings).translate(
            [Row(1, line, given)]
        )
        return found

    return translate


LINE = "The cat sees  the dog.  The king sleeps.\tA boy runs!   My lion eats."


def test_line_of_several_sentences_is_translated_sentence_by_sentence(echo):
    """The spaces between the sentences stay. The parts are where their sentences are."""
    found = echo(LINE)
    assert found.text == "The cat sees the dog.  The king sleeps. A boy runs!   My lion eats."
    assert found.flags == ("split",)
    sources = ["The cat sees  the dog.", "The king sleeps.", "A boy runs!", "My lion eats."]
    assert [LINE[slice(*part.source)] for part in found.parts] == sources
    assert [found.text[slice(*part.translation)] for part in found.parts] == [" ".join(one.split()) for one in sources]
    assert list(found.best.alignment) == [(n, n) for n in range(len(LINE.split()))]
    whole = echo(LINE, split=False)
    assert (whole.text, whole.flags, whole.parts) == (" ".join(LINE.split()), (), ())


def test_engines_translate_each_sentence_as_if_it_stood_alone(translators):
    for translator in translators.values():
        capitals = [line[0].upper() + line[1:] for line in SENTENCES[:12]]
        lines = [" ".join(capitals[first : first + 3]) for first in range(0, 12, 3)]
        alone = [translation.text for translation in translator.translate(capitals)]
        assert [one.text for one in translator.translate(lines)] == [
            " ".join(alone[first : first + 3]) for first in range(0, 12, 3)
        ]


def test_jsonl_has_the_boundaries_of_parts(nmt, model):
    line = "The cat sleeps. The dog runs."
    result = nmt("translate", model, "--format", "jsonl", stdin=text_of([line, "The cat sleeps."]))
    split, whole = map(json.loads, result.text.splitlines())
    assert split["flags"] == ["split"] and "parts" not in whole and "warning" not in result.err
    assert [line[slice(*part["source"])] for part in split["parts"]] == ["The cat sleeps.", "The dog runs."]
    texts = [split["translation"][slice(*part["translation"])] for part in split["parts"]]
    assert " ".join(texts) == split["translation"]
    unsplit = json.loads(nmt("translate", model, "--no-split", "--format", "jsonl", stdin=text_of([line])).text)
    assert "split" not in unsplit["flags"]


def test_n_best_of_sentences_is_sorted(translators):
    found = translators["ctranslate2"].translate("The cat sleeps. The dog runs.", n_best=3)
    scores = [output.score for output in found.n_best]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True) and found.flags == ("split",)


def test_score_of_a_split_line_is_the_score_of_its_translation(translators):
    line = "The cat sleeps. The dog runs."
    for translator in translators.values():
        found = translator.translate(line)
        scored = translator.score(line, found.text)
        assert scored.flags == ("split",) and scored.score == pytest.approx(found.score, abs=2e-4)
        assert scored.best.length == found.best.length
        assert "split" not in translator.score(line, "Le chat dort.").flags  # two sentences against one


def test_prefix_belongs_to_the_first_sentence(translators):
    found = translators["torch"].translate("The cat sleeps. The dog runs.", prefix="Mon")
    assert found.text.startswith("Mon") and len(found.parts) == 2
    found = translators["torch"].translate("The cat sleeps. The dog runs.", prefix="Mon chat dort. Un")
    assert found.text.startswith("Mon chat dort. Un") and not found.parts


def test_glossary_works_in_every_sentence(translators):
    found = translators["ctranslate2"].translate(
        "The dog runs. The cat sleeps.", glossary={"cat": "lion", "dog": "roi"}
    )
    assert "roi" in found.text and "lion" in found.text and {"glossary", "split"} <= set(found.flags)


def test_tag_at_the_beginning_goes_with_every_part(trained):
    """The tag is one word of the line, whichever part a target word aligns with."""
    vocab = dataclasses.replace(trained.vocab, symbols=("the",))  # any piece serves as a tag
    settings = Settings(SearchOptions(), 4000, longest_source=100, align=True)
    translator = WindowTranslator(Workers(Echo(), 1, False), vocab, settings)
    (found,) = translator.translate([Row(1, "the the A boy runs. My lion eats.")])
    assert found.text == "the the A boy runs. the the My lion eats."
    sources = [source for source, _ in found.best.alignment]
    assert sources.count(0) == sources.count(1) == 2 and max(sources) == 7


class FirstAndLast(Echo):
    """Scores anything. The first piece of a target attends to the first piece of its source, all others to the last."""

    def score(self, pairs, options):
        self.seen += [list(source) for source, _ in pairs]
        found = []
        for source, target in pairs:
            weights = np.zeros((len(target), len(source)))
            weights[0, 0] = weights[1:, -1] = 1
            found.append(Hypothesis(tuple(target), -1.0, -1.0, (-1.0,) * (len(target) + 1), True, weights))
        return found


def test_tag_at_the_beginning_is_scored_with_every_sentence(trained):
    """The words of the line are 0 the, 1 the, 2 A, 3 boy, 4 runs., 5 My, 6 lion, 7 eats."""
    vocab = dataclasses.replace(trained.vocab, symbols=("the",))  # any piece serves as a tag
    settings = Settings(SearchOptions(), 4000, longest_source=100, align=True)
    engine = FirstAndLast()
    translator = WindowTranslator(Workers(engine, 1, False), vocab, settings)
    (scored,) = translator.score([Row(1, "the the A boy runs. My lion eats.", "Un garçon court. Mon lion mange.")])
    sources = vocab.encode_source(["the the A boy runs.", "the the My lion eats."])
    assert sorted(engine.seen) == sorted(sources) and scored.flags == ("split",)
    assert sorted(scored.best.alignment) == [(0, 0), (0, 3), (4, 1), (4, 2), (7, 4), (7, 5)]


@pytest.mark.parametrize("share", [0.0, 0.49, 0.5, 0.9, None, "0.9"])
def test_model_of_paragraphs_translates_paragraphs_whole(model, tmp_path, share):
    shutil.copytree(model / "model", tmp_path / "model")
    about = json.loads((tmp_path / "model/about.json").read_text())
    assert about["several_sentences"] == 0.0
    write_again(tmp_path / "model/about.json", several_sentences=share)
    with nmt_cli.load(tmp_path / "model") as translator:
        found = translator.translate("The cat sleeps. The dog runs.")
        assert bool(found.parts) == (share not in (0.5, 0.9))
        assert translator.translate("The cat sleeps. The dog runs.", split=True).parts


def test_line_of_many_sentences_stays_linear(trained):
    """2,000 sentences in a line are 2,000 requests of one sentence each. The work is counted, not timed."""
    pieces = []

    class Counting(Echo):
        def translate(self, requests, options):
            pieces.extend(len(request.source) for request in requests)
            return super().translate(requests, options)

    settings = Settings(SearchOptions(), 4000, longest_source=100)
    translator = WindowTranslator(Workers(Counting(), 1, False), trained.vocab, settings)
    (found,) = translator.translate([Row(1, "The cat sleeps. " * 2_000)])
    assert len(pieces) == len(found.parts) == 2_000 and max(pieces) == min(pieces)
    assert found.text == " ".join(["The cat sleeps."] * 2_000)
