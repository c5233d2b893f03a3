"""Terms of a glossary."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from support.checks import assert_user_error
from support.engines import Says
from support.small_language import ENGINES, SENTENCES, TEST

from nmt_cli.recipe import schema as recipe
from nmt_cli.search.contract import Hypothesis, SearchOptions
from nmt_cli.search.workers import Workers
from nmt_cli.text.vocab import learn, load_vocab, write_vocab
from nmt_cli.translate.glossary import Term, make_glossary, terms_in
from nmt_cli.translate.options import Settings
from nmt_cli.translate.protect import lost, take_out, without_overlaps
from nmt_cli.translate.rows import Row
from nmt_cli.translate.translator import WindowTranslator


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
    assert terms_in(text, [Term(0, 0, term)]).count(Term(0, 0, term)) == times


def test_term_inside_a_longer_term_is_counted_apart():
    terms = [Term(0, 3, "chat"), Term(8, 17, "chat noir")]
    assert lost(terms, terms_in("un chat noir", terms)) == terms[:1]
    assert not lost(terms, terms_in("un chat noir, un Chat", terms))


@pytest.mark.parametrize("engine", ENGINES)
def test_terms_of_the_glossary_are_used(translators, engine):
    terms = {"dog": "clebs", "garden": "jardinet", "cat": "matou"}
    lines = ["The dog sees the cat.", "The cat is in the garden.", "The Dog.", "Nothing of that."]
    for translation in translators[engine].translate(lines, glossary=terms):
        for term, target in terms.items():
            assert (target in translation.text.lower()) == (term in translation.source.lower()), translation


@pytest.mark.parametrize("engine", ENGINES)
def test_term_that_occurs_twice_comes_twice(translators, engine):
    translation = translators[engine].translate("the dog sees the dog.", glossary={"dog": "médor"})
    assert translation.text.count("médor") == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_forced_term_gets_no_ending(translators, engine):
    """The terms are the beginnings of words that the model would rather write."""
    terms = {"because": "par", "found": "tro", "box": "boî", "small": "pet", "happy": "heu", "old": "vie"}
    lines = [line for line in SENTENCES if any(re.search(rf"\b{term}\b", line.lower()) for term in terms)]
    assert len(lines) > 10
    for translation in translators[engine].translate(lines, glossary=terms):
        for term, target in terms.items():
            wanted = re.findall(rf"\b{term}\b", translation.source.lower())
            assert len(re.findall(rf"\b{target}\b", translation.text.lower())) == len(wanted), translation


@pytest.mark.parametrize("engine", ENGINES)
def test_line_of_terms_only_is_replaced(translators, engine):
    """The model has no pieces for these terms."""
    terms = {"dog": "жук", "cat": "犬"}
    lines = ["Dog", "dog", "Cat", "cat 😀", "Cat dog", "Dog!", "Dog (cat)."]
    texts = [translation.text for translation in translators[engine].translate(lines, glossary=terms)]
    assert texts == ["Жук", "жук", "犬", "犬 😀", "犬 жук", "Жук!", "Жук (犬)."]
    lines = ["Dog!", "https://example.org/a!"]
    translations = translators[engine].translate(lines, ["Voilà"] * 2, glossary=terms)
    assert [translation.text for translation in translations] == ["Voilà жук!", "Voilà https://example.org/a!"]


def test_both_engines_give_the_same_result_with_a_glossary(translators):
    """The cost of a forced term is reported, but does not change the order of the n best."""
    terms = {"because": "car", "found": "retrouvé", "box": "caisse", "small": "minuscule", "the": "ce"}
    one, two = (translators[engine].translate(SENTENCES, glossary=terms, patience=1) for engine in ENGINES)
    assert sum("glossary" in translation.flags for translation in one) > 20
    assert [translation.text for translation in one] == [translation.text for translation in two]
    assert [translation.score for translation in one] == pytest.approx([other.score for other in two], abs=2e-3)


def test_neighboring_chinese_terms_get_a_space_in_english(write):
    glossary = make_glossary(write("g.tsv", "猫\tcat\n狗\tdog\n"), "nfc")
    text = "猫狗都在睡。"
    assert [gap.wanted for gap in take_out(text, glossary.find(text))[1]] == ["cat dog"]


@pytest.mark.parametrize("engine", ENGINES)
def test_forced_term_costs_what_the_model_says(translators, engine):
    """Only a prefix of the user is free."""
    translation = translators[engine].translate("the dog sees the cat.", glossary={"cat": "matou"})
    assert "matou" in translation.text and "glossary" in translation.flags
    scored = translators[engine].score("the dog sees the cat.", translation.text)
    assert translation.score == pytest.approx(scored.score, abs=2e-3)


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
def test_term_inside_a_placeholder_or_address_is_ignored(translators, engine):
    terms = {"cat": "matou", "press {x}": "appuyer sur {x}"}
    kept = ["{cat}", "https://x.org/cat/1", "cat@example.com", "%(cat)s", '<cat id="1">', "#cat"]
    translations = translators[engine].translate([f"the dog sees {thing} today." for thing in kept], glossary=terms)
    for thing, translation in zip(kept, translations, strict=True):
        assert thing in translation.text and "matou" not in translation.text
    assert "appuyer sur {x}" in translators[engine].translate("press {x} now.", glossary=terms).text.lower()


@pytest.mark.parametrize("engine", ENGINES)
def test_term_at_the_beginning_gets_a_capital(translators, engine):
    translation = translators[engine].translate("The dog sees a cat.", glossary={"the": "ce"})
    assert translation.text.startswith("Ce "), translation


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
def test_glossary_goes_before_protection(translators, engine):
    """The source vocabulary lacks the first term. The target vocabulary lacks the second translation."""
    lines = ["the cat sees 北京 today.", "the dog sees the cat."]
    first, second = translators[engine].translate(lines, glossary={"北京": "Pékin", "dog": "犬"})
    assert "Pékin" in first.text and "北京" not in first.text
    assert "犬" in second.text and "⁇" not in second.text


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


def test_term_without_a_position_left_is_put_back(tmp_path):
    """A translation that loops may fill all positions of the model. The engines refuse a prefix that does."""
    source, target, settings = "The man sees a dog", "Der Mann sieht einen Hund", recipe.Vocab(size=200)
    texts = [source, target, "Rauhaardackel", *(side for pair in TEST[:50] for side in pair)]
    write_vocab(tmp_path / "v", {"joint": learn(iter(texts), settings, "toy")}, recipe.Data(), settings)
    vocab = load_vocab(tmp_path / "v")
    positions = len(vocab.target.encode(target)) + 1  # with the end mark

    class Strict(Says):
        def translate(self, requests, options):
            assert all(len(request.prefix) < positions for request in requests)
            return super().translate(requests, options)

    glossary = make_glossary({"dog": "Rauhaardackel"}, "nfc")
    engine = Strict(vocab.target.encode(target))
    settings = Settings(SearchOptions(), 4000, 100, positions=positions, glossary=glossary)
    translator = WindowTranslator(Workers(engine, 1, False), vocab, settings)
    (found,) = translator.translate([Row(1, source)])
    assert "Rauhaardackel" in found.text and found.flags == ("restored",)
