"""Symbols of vocab.symbols at the beginning of a line: tags that choose the language of the translation."""

from __future__ import annotations

import numpy as np
import pytest
from support.small_language import SENTENCES

from nmt_cli.recipe import schema as recipe
from nmt_cli.search.contract import Hypothesis, SearchOptions
from nmt_cli.search.workers import Workers
from nmt_cli.text.spelling import Words
from nmt_cli.text.vocab import UNK, Vocab, learn, load_vocab, write_vocab
from nmt_cli.translate.glossary import Glossary
from nmt_cli.translate.options import Settings
from nmt_cli.translate.results import Translation
from nmt_cli.translate.rows import Row
from nmt_cli.translate.translator import WindowTranslator

SYMBOLS = ("<de>", "<2de>", "[GERMAN]", "[dgo]")
WORDS = Words(dict.fromkeys(["The", "the", "man", "sees", "a", "dog"], 5), frozenset())


@pytest.fixture(scope="module")
def vocab(tmp_path_factory) -> Vocab:
    folder = tmp_path_factory.mktemp("symbols") / "vocab"
    settings = recipe.Vocab(size=200, symbols=SYMBOLS)
    text = [*SENTENCES, *(f"{symbol} The man sees a dog." for symbol in SYMBOLS)] * 5
    write_vocab(folder, {"joint": learn(iter(text), settings, "toy")}, recipe.Data(), settings)
    return load_vocab(folder)


class Obeys:
    """Writes the source behind its symbols, as a model does that has learned them. Attends to the symbols most."""

    name = "obeys"

    def __init__(self, vocab: Vocab) -> None:
        self.vocab, self.seen = vocab, []

    def translate(self, requests, options):
        self.seen += [self.vocab.source.decode(list(request.source)) for request in requests]
        return [[self._written(request.source)] for request in requests]

    def _written(self, source):
        symbols = [n for n, index in enumerate(source) if self.vocab.source.id_to_piece(index) in SYMBOLS]
        start = symbols[-1] + 1 if symbols else 0
        kept = [n for n in range(start, len(source)) if source[n] != UNK]
        weights = np.zeros((len(kept) + 1, len(source) + 1))
        weights[:, symbols] = 0.6 / max(len(symbols), 1)
        weights[np.arange(len(kept)), kept] = 0.4
        ids = tuple(source[n] for n in kept)
        return Hypothesis(ids, -1.0, -1.0 * (len(ids) + 1), (), True, weights)

    def score(self, pairs, options):
        """Targets are their sources without the tags. Each piece attends to the same piece of the source."""
        self.seen += [self.vocab.source.decode(list(source)) for source, _ in pairs]
        found = []
        for source, target in pairs:
            weights = np.eye(len(target) + 1, len(source) + 1, k=len(source) - len(target))
            found.append(Hypothesis(tuple(target), -1.0, -1.0, (-1.0,) * (len(target) + 1), True, weights))
        return found


@pytest.fixture
def translate(vocab):
    """Translates or scores a line, and returns also what the model has read."""

    def run(line: str, target: str | None = None, **settings: object) -> tuple[Translation, list[str]]:
        engine = Obeys(vocab)
        given = Settings(SearchOptions(), 4000, longest_source=100, **settings)
        translator = WindowTranslator(Workers(engine, 1, False), vocab, given)
        row = Row(1, line, target or "")
        (found,) = translator.translate([row]) if target is None else translator.score([row])
        return found, engine.seen

    return run


@pytest.mark.parametrize("symbols", ["<de> ", "<2de> ", "[GERMAN] ", "<2de>", "<2de> [GERMAN][dgo] "])
@pytest.mark.parametrize(
    ("line", "settings", "expected", "flags"),
    [
        ("The man sees a dog.", {}, "The man sees a dog.", ()),
        ("The man sees {x} today.", {}, "The man sees {x} today.", ("restored",)),
        ("{x} The man sees <b>a dog</b>.", {}, "{x} The man sees <b>a dog</b>.", ("restored",)),
        ("😀 The man. 😀 The dog.", {}, "😀 The man. 😀 The dog.", ("restored", "split")),
        ("!!!", {}, "!!!", ("copied",)),
        ("{x} 😀!", {}, "{x} 😀!", ("copied",)),
        ("https://example.org/" + "a" * 300, {}, "https://example.org/" + "a" * 300, ("copied",)),
        ("THE MAN SEES A DOG.", {}, "THE MAN SEES A DOG.", ("recased",)),
        ("The Man Sees A Dog", {}, "The Man Sees A Dog", ("recased",)),
        ("Teh man sees a dog.", {"words": WORDS}, "The man sees a dog.", ("respelled",)),
        ("Dog", {"glossary": Glossary({"dog": "жук"})}, "Жук", ("copied",)),  # the term begins the text
    ],
)
def test_symbols_are_read_and_never_written(translate, symbols, line, settings, expected, flags):
    found, seen = translate(symbols + line, **settings)
    assert (found.text, found.flags) == (expected, flags)
    assert all(text.startswith(symbols) for text in seen)


@pytest.mark.parametrize("line", ["<2de>", " [GERMAN] <de> ", "<2de>\u200b"])
def test_line_of_tags_has_an_empty_translation(translate, line):
    found, seen = translate(line)
    assert (found.text, found.n_best, found.flags, seen) == ("", (), (), [])
    assert translate(line, target="")[0].flags == ()


@pytest.mark.parametrize(
    ("tags", "attended"),
    [
        ("<2de>", [0, 0, 0, 3, 3, 3, 6, 6]),  # <2de>The is one word of the line
        ("<2de> ", [0] * 8),
        ("[GERMAN]<2de>", [0, 0, 0, 3, 3, 3, 6, 6]),
        ("[GERMAN] <2de>", [1, 2, 3, 4, 5, 6, 7, 8]),  # each tag gets less attention than the word
        ("[GERMAN] <2de> ", [2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_words_are_aligned_with_and_without_a_space_behind_the_tags(translate, tags, attended):
    text = "The man sees. The dog sees. The man."
    read = [tags + sentence for sentence in ("The man sees.", "The dog sees.", "The man.")]
    found, seen = translate(tags + text, align=True)
    assert (found.text, seen) == (text, read)
    assert sorted(found.best.alignment, key=lambda link: link[1]) == list(zip(attended, range(8), strict=True))
    scored, seen = translate(tags + text, text, align=True)
    assert sorted(seen) == sorted(read)
    tag_words = len((tags + text).split()) - 8
    assert sorted(scored.best.alignment) == [(tag_words + n, n) for n in range(8)]


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("THE MAN [GERMAN] SEES A DOG.", "The man [GERMAN] sees a dog."),
        ("The mna [dgo] sees a dog.", "The man [dgo] sees a dog."),
    ],
)
def test_symbol_inside_of_a_line_keeps_its_letters(translate, line, read):
    _, seen = translate(line, words=WORDS, protect=False)
    assert seen == [read]
