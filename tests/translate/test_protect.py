"""Placeholders, tags, URLs, numbers, emoji and unknown words survive."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.checks import assert_user_error
from support.engines import Echo
from support.small_language import ENGINES, SENTENCES

from nmt_cli.export.ctranslate2 import to_ctranslate2
from nmt_cli.model.build import build_model
from nmt_cli.recipe.schema import Data, Recipe, Rnn, Transformer, Vocab
from nmt_cli.search.contract import SearchOptions
from nmt_cli.search.ct2_engine import CTranslate2Engine
from nmt_cli.search.workers import Workers
from nmt_cli.store.checkpoint import Trained, load_model, save_model
from nmt_cli.text.lines import read_lines
from nmt_cli.text.vocab import EOS, learn, load_vocab, write_vocab
from nmt_cli.translate.options import Settings
from nmt_cli.translate.protect import Span, contents, lost, protected, put_back, replaced, take_out
from nmt_cli.translate.rows import Row
from nmt_cli.translate.translator import WindowTranslator


@pytest.mark.parametrize("engine", ENGINES)
def test_entity_inside_a_word_survives(translators, trained, engine):
    """Half a word can have more pieces than the whole word, so the gap would lie behind the last piece."""
    encode = trained.vocab.source.encode
    words = sorted({word for line in SENTENCES for word in line.strip(".?").split() if word.isalpha()})
    cuts = [
        (word, at) for word in words for at in range(1, len(word)) if len(encode(word[:at])) > len(encode(word)) + 1
    ]
    assert cuts
    lines = [f"{word[:at]}&shy;{word[at:]}" for word, at in cuts[:20]]
    assert all("&shy;" in translation.text for translation in translators[engine].translate(lines))


def test_line_of_punctuation_is_copied(translators):
    """The model would invent a sentence."""
    lines = ["...", "!", "-", "?!", '"']
    translations = translators["ctranslate2"].translate(lines)
    assert [translation.text for translation in translations] == lines
    assert all(translation.flags == ("copied",) for translation in translations)


SURVIVORS = [
    "{name}",
    "%1$s",
    "%(x)d",
    "<b>",
    "</b>",
    "https://a.b/c?d=e&f",
    "me@x.org",
    "😀👍🏽",
    "北京",
    "Zoë-Ŵ",
    "12,345.67",
    "⁇",
]


@pytest.mark.parametrize("engine", ENGINES)
def test_protected_text_survives_in_both_engines(translators, engine):
    lines = [f"the {thing} sees the dog near {thing} today." for thing in SURVIVORS]
    lines += [" ".join(SURVIVORS), "see <a href='x y'>the cat</a>, {0} and {1}!"]
    *texts, everything, tags = (translation.text for translation in translators[engine].translate(lines))
    for thing, text in zip(SURVIVORS, texts, strict=True):
        assert text.count(thing) >= 2, (thing, text)
    assert all(thing in everything for thing in SURVIVORS)
    assert all(thing in tags for thing in ("<a href='x y'>", "</a>", "{0}", "{1}"))


def test_unknown_words_of_a_vocabulary_of_words_are_copied(tmp_path):
    """PosUnk: a word that the vocabulary does not have goes where attention says. Known words are left to the model."""
    settings = Vocab(type="word", size=14)
    text = ["I like the green cat .", "the dog sees the cat .", "I see a dog ."] * 5
    write_vocab(tmp_path / "vocab", {"joint": learn(iter(text), settings, "toy")}, Data(), settings)
    settings = Settings(SearchOptions(), 512, 100)
    translator = WindowTranslator(Workers(Echo(), 1, False), load_vocab(tmp_path / "vocab"), settings)
    lines = ["I like the zebra .", "the green cat sees a dog .", "Zoë: the cat"]
    found = translator.translate([Row(n, line) for n, line in enumerate(lines)])
    assert [(line.text, line.flags) for line in found] == [
        (lines[0], ("restored",)),
        (lines[1], ()),
        (lines[2], ("restored",)),
    ]


def test_no_protect_leaves_everything_to_the_model(nmt, model):
    result = nmt("translate", model, "--no-protect", stdin="the {name} sees 北京.\n".encode())
    assert result.code == 0 and "北京" not in result.text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Hello {name}!", ["{name}"]),
        ("100 % sure, 50% off, %d of %5.2f", ["100 %", "50%", "%d", "%5.2f"]),
        ("Go to https://x.org/a_(b)?c=1.", ["https://x.org/a_(b)?c=1"]),
        ("mail a.b+c@d-e.org, now", ["a.b+c@d-e.org"]),
        ("a < b and b > c", []),
        ("x &amp; y &#39; & z", ["&amp;", "&#39;"]),
        ("in 1999 at 10:30 there were 3 cats, B2B", ["1999", "10:30", "B2B"]),
        ("in the 1990s at -5 °C, 7% of 3 cats", ["1990s", "-5 °C", "7%"]),
        ("a 50mm lens of 1920x1080, (10km)", ["50mm", "1920x1080", "10km"]),
        ("请访问https://example.com/a，联系joe@x.org获取帮助", ["https://example.com/a", "joe@x.org"]),
        ("会议于2024年12月25日举行，版本1.2.3", ["2024", "12", "25", "1.2.3"]),
        ("reads “https://a.b/c” (or https://a.b/d)…", ["https://a.b/c", "https://a.b/d"]),
        ("Zoë saw 北京 today", ["Zoë", "北京"]),
        ("${HOME} {{x}} {}", ["${HOME}", "{{x}}", "{}"]),
        ("@user likes #nmt", ["@user", "#nmt"]),
        ("no trouble here.", []),
        ("%lu of %lld or %zu and %{name}", ["%lu", "%lld", "%zu", "%{name}"]),
        ("ftp://a.b/c, file:///x mailto:a@b.de", ["ftp://a.b/c", "file:///x", "mailto:a@b.de"]),
        ("press 1\ufe0f\u20e3 now", ["1\ufe0f\u20e3"]),
        ("%1 of %L1: %n, 5 %1 (100%)", ["%1", "%L1", "%n", "%1", "100%"]),
        ("set $NAME, $HOME/bin or $_x for $5 or US$ 5", ["$NAME", "$HOME/bin", "$_x"]),
        ("use --force, --dry-run=5 or -v -- the -based on--and", ["--force", "--dry-run=5", "-v"]),
        (
            "in /etc/hosts, ~/x, ./a or C:\\Users\\x and/or docs/ km/h",
            ["/etc/hosts", "~/x", "./a", "C:\\Users\\x", "docs/"],
        ),
        ("see README.md, .gitignore, os.path and e.g. the U.S. or i.e. 3 a.m.", ["README.md", ".gitignore", "os.path"]),
        ("call `f(x, y)` or ``a b`` or :func:`len`, 'tis", ["`f(x, y)`", "``a b``", ":func:`len`"]),
        ("see `the docs <https://x.org>`_ or `it <b>`_", ["<https://x.org>", "<b>"]),
        ("``quoted,'' he said, ``or `not' at all`` ` x `", []),
        ("June 1, 2006 or 2 October 1869 or 1. Juni 2006", ["1", "2006", "2", "1869", "1", "2006"]),
        ("in 2 cases of 12 or 3 cats, 12345", ["12", "12345"]),
        ("on 2024-05-31, 31/12/1999 or 25.12.2024", ["2024-05-31", "31/12/1999", "25.12.2024"]),
        ("file(s), foo_bar, run(), __init__, x=5, _word_", ["foo_bar", "run()", "__init__", "x=5"]),
        ("[the text](https://x.org/a_b)", ["https://x.org/a_b"]),
        ("{count, plural, one {# file} other {# files}}", ["{count, plural, one {# file} other {# files}}"]),
        ("caf&eacute;s a${HOME}", ["&eacute;", "${HOME}"]),
    ],
)
def test_protected_finds_the_spans(text, wanted):
    assert [span.wanted for span in protected(text, lambda character: character not in "ë北京")] == wanted


def missing_in(source: str, translation: str) -> list[Span]:
    return lost(protected(source, lambda _: True), contents(translation, lambda _: True))


def test_number_in_another_notation_counts():
    for text in ("1.234,50 Euro", "1 234,50"):
        assert not missing_in("1,234.50 euros", text)
    for text in ("1.234", "91.234,50"):
        assert missing_in("1,234.50 euros", text)
    for text in ("call 030 1234 5678 now", "In 1999 12 cats came", "10km, 12th, 250 ml"):
        assert len(protected(text, lambda _: True)) > 1 and not missing_in(text, text)


@pytest.mark.parametrize(
    ("source", "target", "attention", "expected"),
    [
        # a translation word for word: attention is the identity
        ("see {x} now .", "voir maintenant .", "identity", "voir {x} maintenant ."),
        ("{x} see now", "voir maintenant", "identity", "{x} voir maintenant"),
        ("see now {x}", "voir maintenant", "identity", "voir maintenant {x}"),
        ("see <b>now</b> .", "voir maintenant .", "identity", "voir <b>maintenant</b> ."),
        # in real models the last mark attends to anything; it still comes last
        ("see now {x} .", "voir maintenant .", "first", "voir maintenant {x} ."),
        # the words change places
        ("see now {x} .", "maintenant voir .", "swapped", "maintenant voir {x} ."),
        # the source has a mark beside {x}; the target has a word there, or the same mark ("+": touches the word before)
        ('see "{x}" now', "voir alors maintenant", "identity", "voir alors {x} maintenant"),
        ('see " {x}" now', "voir « maintenant", "identity", "voir « {x} maintenant"),
        ("see now {x}.", "voir maintenant +.", "identity", "voir maintenant {x}."),
        ("see ({x}) now", "voir ( +) maintenant", "identity", "voir ({x}) maintenant"),
        ("see {x} or {y} now.", "voir maintenant ou +.", "late", "voir maintenant ou {x} {y}."),
        ("see un{x} now", "voir in maintenant", "identity", "voir in{x} maintenant"),
    ],
)
def test_put_back_chooses_the_place_by_attention(source, target, attention, expected):
    rest, gaps = take_out(source, protected(source, lambda _: True))
    pieces = ["▁" + word if word[0] != "+" else word[1:] for word in target.split()]
    weights = np.eye(len(pieces), len(rest.split()) + 1)
    if attention == "swapped":
        weights[[0, 1]] = weights[[1, 0]]
    if attention == "late":
        weights[:-1] = np.eye(1, weights.shape[1])
    if attention == "first":
        weights[-1] = weights[0]
    boundaries = [len(rest[: gap.at].split()) for gap in gaps]
    assert put_back(pieces, weights, gaps, boundaries, lambda word: word.text) == expected


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("see https://x.org and https://x.org/a", "voir https://x.org/a", ["https://x.org"]),
        ("see https://x.org and https://x.org/a", "voir https://x.org/a https://x.org", []),
        ("<b>cat</b> {x}", "chat</b> {x}", ["<b>", "</b>"]),  # with one tag, all tags are taken out
        ("{x} and {x}", "{x}", ["{x}", "{x}"]),
        ("1,000 and 12", "1 000 et 12", []),
        ("at -12 and -3.5", "à 12 et -3,5", ["-12"]),
        ("at -12", "à \u221212", []),
        ("from 10-12", "de 10 à 12", []),
        ("in v1.2.3", "en v1 2.3", ["v1.2.3"]),
        ("1.5 at 12:30", "15 à 1230", ["1.5", "12:30"]),
        ("1.5 at 12:30", "1,5 à 12.30", []),
        ("15 men", "15,5 hommes", ["15"]),
        ("in the 1990s, -5 °C", "aux années 1990, 5 °C", ["-5 °C"]),
        ("3 %", "3 pour cent", []),
        ("<b>a</b> <i>b</i>", "<i>b</i> <b>a</b>", ["<b>", "</b>", "<i>", "</i>"]),  # tags keep their order
        ("the %s file", "die %s-Datei", []),
        ("`a_b` and a_b", "`a_b` et `a_b`", ["a_b"]),
    ],
)
def test_lost_finds_missing_spans(source, translation, expected):
    assert [span.wanted for span in missing_in(source, translation)] == expected


def test_put_back_leaves_a_forced_prefix_in_front():
    source = "😀 the cat"
    _, gaps = take_out(source, protected(source, lambda _: True))
    pieces = ["▁le", "▁chat"]
    for prefix, expected in enumerate(["😀 le chat", "le 😀 chat", "le chat 😀"]):
        assert put_back(pieces, np.eye(2, 3), gaps, [0], lambda word: word.text, prefix) == expected


@pytest.mark.parametrize("source", ["see <b>the cat</b> now", "<b>see</b> the <i>cat</i> now"])
def test_put_back_leaves_words_in_pairs_of_tags_with_any_attention(source):
    random = np.random.default_rng(1)
    rest, gaps = take_out(source, protected(source, lambda _: True))
    boundaries = [len(rest[: gap.at].split()) for gap in gaps]
    for _ in range(50):
        weights = random.dirichlet([0.3] * 5, 6)
        text = put_back(["▁(", "a", "▁b", ")", "▁c", "."], weights, gaps, boundaries, lambda word: word.text)
        assert re.findall("<.*?>", text) == re.findall("<.*?>", source)
        assert all(re.search(rf"<{tag}>[^<]*[abc][^<]*</{tag}>", text) for tag in re.findall(r"<(\w)>", source)), text


PARTS = [*"aé北1  .,-_%$/`(", "Bc", "23", "%s", "<b>", "</b>", "&amp;", "😀", "{x}"]


@given(st.lists(st.sampled_from(PARTS), max_size=20).map("".join))
def test_text_loses_nothing_of_itself(text):
    def is_known(character: str) -> bool:
        return character not in "é北"

    spans = protected(text, is_known)
    assert all(text[span.start : span.stop] == span.wanted for span in spans)
    assert all(one.stop <= two.start for one, two in pairwise(spans))
    assert not lost(spans, contents(text, is_known))
    assert replaced(text, spans) == text


@pytest.mark.parametrize(
    ("text", "unknown", "expected"),
    [
        ("see x\u0302 now", "\u0302", ["x\u0302"]),  # an accent belongs to its letter
        ("learn C# now", "#", ["C#"]),
        ("at 15 °C now", "°", ["15 °C"]),
        ("AT&T, it is", "&", ["AT&T"]),
        ("a “word” here", "“”", ["“", "”"]),  # a quotation mark is no part of the word
        ("Müller-Lüdenscheidt is", "ü", ["Müller-Lüdenscheidt"]),
        ("the ▁ cat", "▁", ["▁"]),
    ],
)
def test_unknown_character_protects_its_whole_word(text, unknown, expected):
    spans = protected(text, lambda character: character not in unknown)
    assert [span.wanted for span in spans if not span.number] == expected


def test_sentencepiece_space_mark_survives(translators):
    assert "▁" in translators["ctranslate2"].translate("the ▁ cat sees the dog.").text


def test_long_run_of_unknown_characters_is_one_span():
    assert [span.wanted for span in protected("a " + "北" * 100_000, lambda c: c != "北")] == ["北" * 100_000]


def test_model_without_attention_restores_text_and_refuses_align(nmt, model, tmp_path):
    """Without attention, the place of a lost word is found by its position. Alignments need attention."""
    trained = load_model(model)
    config = Rnn(dim=32, attention="none", encoder_layers=1, decoder_layers=1)
    torch.manual_seed(1)
    weights = build_model(config, *trained.vocab.sizes).state_dict()
    save_model(tmp_path / "rnn", weights, replace(trained.recipe, model=config), model / "model/vocab", {})
    (tmp_path / "terms.tsv").write_text("cat\tminou\n")
    result = nmt("translate", tmp_path / "rnn", "--glossary", tmp_path / "terms.tsv", stdin=b"the cat {x} sees 1234.\n")
    assert result.code == 0 and all(part in result.text for part in ("{x}", "1234", "minou"))
    refused = nmt("translate", tmp_path / "rnn", "--align", "--format", "tsv", stdin=b"the cat.\n")
    assert_user_error(refused, "this model has no attention for --align")


def test_text_is_put_back_into_an_empty_translation(tmp_path):
    """The bias of the end mark is so high that CTranslate2 translates everything into nothing."""
    pytest.importorskip("ctranslate2")
    settings = Vocab(size=200)
    write_vocab(tmp_path / "vocab", {"joint": learn(iter(SENTENCES), settings, "toy")}, Data(), settings)
    vocab = load_vocab(tmp_path / "vocab")
    config = Transformer(dim=16, heads=2, ff=16, encoder_layers=1, decoder_layers=1, output_bias=True)
    model = build_model(config, *vocab.sizes).eval()
    with torch.no_grad():
        model.output_bias[EOS] = 100.0
    to_ctranslate2(Trained(model, vocab, Recipe(model=config), {}), tmp_path / "ct2")
    engine = CTranslate2Engine(tmp_path / "ct2", vocab, "float32", "cpu", 1)
    translator = WindowTranslator(Workers(engine, 1, False), vocab, Settings(SearchOptions(), 512, 100))
    lines = ["the cat sees {x} and %s.", "{x} the cat", "the cat."]
    found = translator.translate([Row(n, line) for n, line in enumerate(lines)])
    assert [line.text for line in found] == ["{x} %s", "{x}", ""]
    assert all("omission" in line.flags for line in found)  # also without quality.json


def test_rules_find_what_must_survive_in_real_lines():
    """tools/survival_corpus.py found these things with other patterns. Of a number, only two digits or more count."""
    rows = [row.split("\t") for row in read_lines(Path(__file__).with_name("survival.tsv")) if row[:2] != "# "]
    assert len(rows) > 500
    for row_kind, line, *things in rows:
        found = [span.wanted for span in protected(line, lambda character: ord(character) < 256)]
        assert row_kind != "plain" or not found or "`" in line, (found, line)
        for kind, thing in zip(things[::2], things[1::2], strict=True):
            is_number = kind in ("number", "unit", "written date")
            texts = re.findall(r"\d[\d.,:]*\d", thing) if is_number else thing.split("…")
            assert all(any(text in wanted for wanted in found) for text in texts), (thing, line)
