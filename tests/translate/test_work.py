"""All work on the text of a line is linear in its length. These tests count the work, so they depend on no clock."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import SupportsIndex

import numpy as np
import pytest
from support.regex_steps import Steps
from support.tiny_run import TEXT

from nmt_cli.recipe import schema as recipe
from nmt_cli.search.contract import Hypothesis, SearchOptions
from nmt_cli.text.spelling import Words
from nmt_cli.text.vocab import Vocab, learn, load_vocab, write_vocab
from nmt_cli.translate import glossary, protect
from nmt_cli.translate.line import MOST_FORCED, LineTranslator, _Part, cut_loops
from nmt_cli.translate.options import Settings
from nmt_cli.translate.protect import Span, contents, lost, overlaps, protected, put_back, replaced, take_out, verbatim
from nmt_cli.translate.respell import respell

PATTERNS = {name: value for name, value in vars(protect).items() if isinstance(value, re.Pattern)}
# Repeated, these made some pattern or loop quadratic, or could. A dot in the middle stands for a space.
TEXT_OF_UNITS = r"""
123· 12·-3· 1. .1 1,2 1· a a_ _ ( a( a(b () ` `a ``· a`· : :a <a <a·b· </ { {a{ {} {a· &a &#1 % %1 %( $ $a - --a·
/ a/ . a.b ... @ a@ # = x= \ 😀 北 北京· é- é' 1x2 www. a:// <b>a</b> 1,·2000· 1·May·
"""
UNITS = [unit.replace("·", " ") for unit in TEXT_OF_UNITS.split()]
ENDS = ["", "abcd"]


@pytest.fixture
def deep_recursion() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_take_linear_work(name, deep_recursion):
    for unit in UNITS:
        for end in ENDS:
            once, twice = (Steps(PATTERNS[name], unit * n + end) for n in (25, 50))
            assert twice.count < 2.5 * once.count + 200, (unit, end)
            assert twice.spans == [match.span() for match in PATTERNS[name].finditer(unit * 50 + end)], (unit, end)


def test_steps_show_a_quadratic_pattern():
    once, twice = (Steps(re.compile("a+b"), "a" * n).count for n in (25, 50))
    assert twice > 3 * once


class CountingText(str):
    """A text that counts the characters of its slices."""

    sliced = 0

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        found = super().__getitem__(key)
        CountingText.sliced += len(found)
        return found


def count_work(function: Callable[[str], object], text: str) -> int:
    """Calls of functions and methods, and characters of slices of the text."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    CountingText.sliced = 0
    sys.setprofile(count)
    try:
        function(CountingText(text))
    finally:
        sys.setprofile(None)
    return calls + CountingText.sliced


def is_known(character: str) -> bool:
    return character not in "é北京😀"


def find_lost(text: str) -> list[Span]:
    return lost(protected(text, is_known), contents(text[: len(text) // 2], is_known))


def put_all_back(text: str) -> str:
    rest, gaps = take_out(text, protected(text, is_known))
    pieces = [f"▁{word}" for word in rest.split()]
    attention = np.ones((len(pieces), 1))
    return put_back(pieces, attention, gaps, [0] * len(gaps), lambda word: word.text)


def find_terms(text: str) -> list[object]:
    terms = glossary.Glossary({"a": "b", "a b": "c", "12": "d", "café": "e"}).find(text)
    fixed = [*overlaps(terms, protected(text, is_known)), *overlaps(protected(text, is_known), terms)]
    return [fixed, glossary.terms_in(text, terms)]


WORDS = Words({"the": 5, "cat": 3}, frozenset())


def test_correction_of_a_line_takes_linear_work():
    """Words that one slip turned into others, and words that cannot be corrected."""
    for unit in ("teh cst ", "teh the the the zwitschert ", "a" * 30 + " ", "b" * 1000):
        once, twice = (count_work(lambda text: respell(text, verbatim, WORDS), unit * n) for n in (50, 100))
        assert twice < 2.2 * once + 200, unit


@pytest.mark.parametrize(
    "function",
    [
        find_lost,
        put_all_back,
        find_terms,
        lambda text: take_out(text, protected(text, is_known)),
        lambda text: replaced(text, protected(text, is_known)),
        lambda text: respell(text, verbatim, WORDS),
    ],
    ids=["lost", "put_back", "terms", "take_out", "replaced", "respell"],
)
@pytest.mark.parametrize("make", [" x{} ".format, "12 ".format, "{} ".format, "<a{}> a ".format])
def test_functions_take_linear_work(function, make):
    """With the same thing again and again, and with another thing each time."""
    once, twice = (count_work(function, "".join(map(make, range(1000, 1000 + n)))) for n in (100, 200))
    assert twice < 2.2 * once + 200


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("function", [find_lost, put_all_back, find_terms], ids=["lost", "put_back", "terms"])
def test_units_take_linear_work(function, unit):
    once, twice = (count_work(function, unit * n) for n in (100, 200))
    assert twice < 2.2 * once + 200


LOOPS = ["a", "ab", "abac", "aaab", "aabaab c", "".join(map(chr, range(1000, 1100))), "ab" * 60 + "c"]


@pytest.mark.parametrize("unit", LOOPS)
def test_loops_take_linear_work(unit):
    """With the loop in the translation, in the source and in both."""
    for in_source in ("", "x", unit):
        once, twice = (
            count_work(lambda text: cut_loops(list(text), in_source * (len(text) // len(unit)), str.isalpha), unit * n)  # noqa: B023
            for n in (2000 // len(unit), 4000 // len(unit))
        )
        assert twice < 2.2 * once + 200, in_source


class CountingPieces:
    """One side of a vocabulary. Counts the characters and pieces that are encoded and decoded."""

    def __init__(self, side: object) -> None:
        self.side, self.count = side, 0

    def __getattr__(self, name: str) -> object:
        def call(value: object, **options: object) -> object:
            result = getattr(self.side, name)(value, **options)
            self.count += len(value) if isinstance(value, (str, list)) else 1
            return result

        return call


@pytest.fixture(scope="module")
def vocab(tmp_path_factory) -> Vocab:
    folder: Path = tmp_path_factory.mktemp("work") / "vocab"
    settings = recipe.Vocab(size=70)
    write_vocab(folder, {"joint": learn(iter(TEXT), settings, "toy")}, recipe.Data(), settings)
    return load_vocab(folder)


def force_terms(vocab: Vocab, text: str) -> int:
    """The work for terms that the model never writes. The engine attends to everything alike."""
    side = CountingPieces(vocab.source)
    counting = Vocab(side, side, "en", "fr", vocab.normalization, vocab.type, ())
    terms = glossary.Glossary({"cat": "the dog", "green": "a - b"})
    line = LineTranslator(counting, Settings(SearchOptions(), 4000, 10**6, glossary=terms))
    ids = tuple(vocab.source.encode(text))
    written = tuple(vocab.target.encode("like I " * (len(text) // 7)))

    def run(text: str) -> None:
        program = line._with_terms(1, _Part("", text, ids, 0, len(text), None), ())
        asked, answer = 0, None
        try:
            while True:
                asked += len(program.send(answer))
                answer = [[Hypothesis(written, -1.0, -1.0, (), True, np.ones((len(written) + 1, len(ids) + 1)))]]
        except StopIteration:
            assert asked == 1 + MOST_FORCED

    return count_work(run, text) + side.count


def test_forced_terms_take_linear_work(vocab):
    once, twice = (force_terms(vocab, "the cat, the green dog " * n) for n in (50, 100))
    assert twice < 2.2 * once + 200
