"""Terms of a glossary."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
from support.checks import assert_user_error
from support.engines import Says
from support.small_language import ENGINES, SENTENCES, TEST, text_of

from nmt_cli.recipe import schema as recipe
from nmt_cli.search.contract import Hypothesis, SearchOptions
from nmt_cli.search.workers import Workers
from nmt_cli.text.vocab import learn, load_vocab, write_vocab
from nmt_cli.translate.glossary import Term, make_glossary
from nmt_cli.translate.options import Settings
from nmt_cli.translate.protect import lost, take_out, without_overlaps
from nmt_cli.translate.rows import Row
from nmt_cli.translate.window import WindowTranslator


@pytest.mark.parametrize(
    ("term", "text", "times"),
    [
        ("chat", "le chat et le chaton", 1),
        ("chien", "Chien et chien", 2),
        ("猫", "黒猫だ", 1),
        ("Chat", "le chat", 0),
        ("c++", "en c++.", 1),
        ("राम", "रामी राम", 1),  # a vowel sign is part of its word
    ],
)
def test_terms_are_counted_in_a_translation(term, text, times):
    assert Term(0, 0, term).count_in(text) == times


def test_term_inside_a_longer_term_is_counted_apart():
    terms = [Term(0, 3, "chat"), Term(8, 17, "chat noir")]
    assert lost(terms, "un chat noir") == terms[:1]
    assert not lost(terms, "un chat noir, un Chat")


@pytest.mark.parametrize("engine", ENGINES)
def test_terms_of_the_glossary_are_used(nmt, model, write, engine):
    terms = {"dog": "clebs", "garden": "jardinet", "cat": "matou"}
    glossary = write("g.tsv", "".join(f"{s}\t{t}\n" for s, t in terms.items()))
    lines = ["The dog sees the cat.", "The cat is in the garden.", "The Dog.", "Nothing of that."]
    result = nmt("translate", model, "--glossary", glossary, "--engine", engine, stdin=text_of(lines))
    assert result.code == 0, result.err
    for source, found in zip(lines, result.text.splitlines(), strict=True):
        for term, target in terms.items():
            assert (target in found.lower()) == (term in source.lower()), (source, found)


@pytest.mark.parametrize("engine", ENGINES)
def test_term_that_occurs_twice_comes_twice(nmt, model, write, engine):
    glossary = write("g.tsv", "dog\tmédor\n")
    result = nmt("translate", model, "--glossary", glossary, "--engine", engine, stdin=b"the dog sees the dog.\n")
    assert result.text.count("médor") == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_forced_term_gets_no_ending(nmt, model, write, engine):
    """The terms are the beginnings of words that the model would rather write."""
    terms = {"because": "par", "found": "tro", "box": "boî", "small": "pet", "happy": "heu", "old": "vie"}
    glossary = write("g.tsv", "".join(f"{s}\t{t}\n" for s, t in terms.items()))
    lines = [line for line in SENTENCES if any(re.search(rf"\b{term}\b", line.lower()) for term in terms)]
    assert len(lines) > 10
    result = nmt("translate", model, "--glossary", glossary, "--engine", engine, stdin=text_of(lines))
    assert result.code == 0, result.err
    for line, found in zip(lines, result.text.splitlines(), strict=True):
        for term, target in terms.items():
            wanted = re.findall(rf"\b{term}\b", line.lower())
            assert len(re.findall(rf"\b{target}\b", found.lower())) == len(wanted), (line, found)


@pytest.mark.parametrize("engine", ENGINES)
def test_line_of_terms_only_is_replaced(nmt, model, write, engine):
    """The model has no pieces for these terms."""
    glossary = write("g.tsv", "dog\tжук\ncat\t犬\n")
    lines = ["Dog", "dog", "Cat", "cat 😀", "Cat dog", "Dog!", "Dog (cat)."]
    result = nmt("translate", model, "--glossary", glossary, "--engine", engine, stdin=text_of(lines))
    assert result.text.splitlines() == ["Жук", "жук", "犬", "犬 😀", "犬 жук", "Жук!", "Жук (犬)."]
    prefixes = write("p.fr", "Voilà\n" * 2)
    text = text_of(["Dog!", "https://example.org/a!"])
    options = ("--glossary", glossary, "--engine", engine, "--prefix-file", prefixes)
    result = nmt("translate", model, *options, stdin=text)
    assert result.text.splitlines() == ["Voilà жук!", "Voilà https://example.org/a!"]


def test_both_engines_give_the_same_result_with_a_glossary(nmt, model, write):
    """The cost of a forced term is reported, but does not change the order of the n best."""
    glossary = write("g.tsv", "because\tcar\nfound\tretrouvé\nbox\tcaisse\nsmall\tminuscule\nthe\tce\n")
    options = ("--glossary", glossary, "--patience", 1, "--format", "jsonl")
    one, two = (
        [
            json.loads(line)
            for line in nmt("translate", model, *options, "--engine", e, stdin=text_of(SENTENCES)).text.splitlines()
        ]
        for e in ENGINES
    )
    assert sum("glossary" in line["flags"] for line in one) > 20
    assert [line["translation"] for line in one] == [line["translation"] for line in two]
    for a, b in zip(one, two, strict=True):
        assert a["n_best"][0]["score"] == pytest.approx(b["n_best"][0]["score"], abs=2e-3)


def test_neighboring_chinese_terms_get_a_space_in_english(write):
    glossary = make_glossary(write("g.tsv", "猫\tcat\n狗\tdog\n"), "nfc")
    text = "猫狗都在睡。"
    assert [gap.wanted for gap in take_out(text, glossary.find(text))[1]] == ["cat dog"]


@pytest.mark.parametrize("engine", ENGINES)
def test_forced_term_costs_what_the_model_says(nmt, model, write, engine):
    """Only a prefix of the user is free."""
    options = ("--engine", engine, "--format", "jsonl")
    glossary = write("g.tsv", "cat\tmatou\n")
    (line,) = nmt("translate", model, "--glossary", glossary, *options, stdin=b"the dog sees the cat.\n").text.split(
        "\n"
    )[:-1]
    found = json.loads(line)
    assert "matou" in found["translation"] and "glossary" in found["flags"]
    pair = f"the dog sees the cat.\t{found['translation']}\n".encode()
    given = json.loads(nmt("translate", model, "--score-only", *options, stdin=pair).text)
    assert found["n_best"][0]["score"] == pytest.approx(given["n_best"][0]["score"], abs=2e-3)


def test_find_agrees_with_one_pattern_per_term(write):
    """Random terms in random lines of letters, marks and characters of a script without spaces."""
    random_ = random.Random(3)

    def text(length: int) -> str:
        return "".join(random_.choice("aAb é猫-+ ") for _ in range(length)).strip() or "a"

    for _ in range(200):
        terms = {" ".join(text(random_.randint(1, 4)).lower().split()): f"t{n}" for n in range(5)}
        glossary = make_glossary(write("g.tsv", "".join(f"{s}\t{t}\n" for s, t in terms.items())), "nfc")
        line, expected = text(20), []
        for source, target in terms.items():
            first, last = (re.match(r"[^\W猫]", source[at]) for at in (0, -1))
            pattern = (r"(?<!\w)" if first else "") + re.escape(source) + (r"(?!\w)" if last else "")
            matches = (re.compile(pattern).match(line.lower(), at) for at in range(len(line)))
            expected += [Term(match.start(), match.end(), target) for match in matches if match]
        assert glossary.find(line) == without_overlaps(expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_term_inside_a_placeholder_or_address_is_ignored(nmt, model, write, engine):
    glossary = write("g.tsv", "cat\tmatou\npress {x}\tappuyer sur {x}\n")
    kept = ["{cat}", "https://x.org/cat/1", "cat@example.com", "%(cat)s", '<cat id="1">', "#cat"]
    lines = [f"the dog sees {thing} today." for thing in kept]
    result = nmt("translate", model, "--glossary", glossary, "--engine", engine, stdin=text_of(lines))
    for thing, line in zip(kept, result.text.splitlines(), strict=True):
        assert thing in line and "matou" not in line
    result = nmt("translate", model, "--glossary", glossary, "--engine", engine, stdin=b"press {x} now.\n")
    assert "appuyer sur {x}" in result.text.lower()


@pytest.mark.parametrize("engine", ENGINES)
def test_term_at_the_beginning_gets_a_capital(nmt, model, write, engine):
    glossary = write("g.tsv", "the\tce\n")
    result = nmt("translate", model, "--glossary", glossary, "--engine", engine, stdin=b"The dog sees a cat.\n")
    assert result.text.startswith("Ce "), result.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("dog\n", "line 1: 1 column"),
        ("dog\tchien\ndog\tclebs\n", 'line 2: "dog" has two translations'),
        ("dog\t \n", "line 1: a side of the entry is blank"),
        ("\n", "is empty"),
    ],
)
def test_bad_glossary_is_an_error(nmt, model, write, content, message):
    assert_user_error(nmt("translate", model, "--glossary", write("g.tsv", content), stdin=b"a\n"), message)


def test_terms_are_whole_words_and_the_longest_wins(write):
    glossary = make_glossary(write("g.tsv", "cat\tA\nblack cat\tB\n猫\tC\nc++\tD\n"), "nfc")
    found = [(span.start, span.wanted) for span in glossary.find("Black cat, cats, CAT, 黒猫だ c++ concat")]
    assert found == [(0, "B"), (17, "A"), (23, "C"), (26, "D")]


@pytest.mark.parametrize("engine", ENGINES)
def test_glossary_goes_before_protection(nmt, model, write, engine):
    """The source vocabulary lacks the first term. The target vocabulary lacks the second translation."""
    terms = write("g.tsv", "北京\tPékin\ndog\t犬\n")
    text = text_of(["the cat sees 北京 today.", "the dog sees the cat."])
    result = nmt("translate", model, "--glossary", terms, "--engine", engine, stdin=text)
    assert result.code == 0, result.err
    first, second = result.text.splitlines()
    assert "Pékin" in first and "北京" not in first
    assert "犬" in second and "⁇" not in second


def test_forced_term_touches_an_opening_bracket(trained, write, tmp_path):
    """No space comes behind an opening bracket."""
    source, target, settings = "He sees (cat).", "Il voit (chat).", recipe.Vocab(size=300)
    texts = [source, target, *(side for pair in TEST[:50] for side in pair)]
    write_vocab(tmp_path / "v", {"joint": learn(iter(texts), settings, "toy")}, trained.recipe.data, settings)
    vocab = load_vocab(tmp_path / "v")
    sources, targets = (vocab.source.encode(text, out_type=str) for text in (source, target))
    attention = np.zeros((len(targets) + 1, len(sources) + 1))
    behind = [next(n for n, piece in enumerate(pieces) if "(" in piece) + 1 for pieces in (targets, sources)]
    attention[behind[0], behind[1]] = 1  # from bracket to bracket

    class Obeys(Says):
        """Writes the prefix, then the end of the sentence."""

        def translate(self, requests, options):
            ends = tuple(vocab.target.piece_to_id([")", "."]))
            found = [(*request.prefix, *ends) if request.prefix else self.ids for request in requests]
            return [[Hypothesis(ids, -1.0, -1.0 * (len(ids) + 1), (), True, attention)] for ids in found]

    glossary = make_glossary(write("g.tsv", "cat\tmatou\n"), "nfc")
    engine = Obeys(vocab.target.piece_to_id(targets))
    settings = Settings(SearchOptions(), 4000, 100, glossary=glossary)
    translator = WindowTranslator(Workers(engine, 1, False), vocab, settings)
    (found,) = translator.translate([Row(1, source)])
    assert found.text == "Il voit (matou)." and found.flags == ("glossary",)
