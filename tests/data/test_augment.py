"""[train.augment]: what each change does to a text, which pairs are changed, and what the batches see."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor
from support.toy_corpus import corpus

from nmt_cli.data import batches
from nmt_cli.data.augment import Augmenter, Rewriter, mistyped
from nmt_cli.data.batches import BatchStream, ParallelData, Position
from nmt_cli.recipe import schema
from nmt_cli.recipe.schema import Augment
from nmt_cli.text.vocab import Vocab, learn, load_vocab

SYMBOLS = ("<2de>", "__low__", "ⓘ")
PLAIN = Rewriter(symbols=SYMBOLS)
TURKISH = Rewriter("tr-TR")

CAPITALS = [
    ("A man in a blue shirt.", "A MAN IN A BLUE SHIRT."),
    ("Die Straße ist weiß.", "DIE STRASSE IST WEISS."),
    ("<2de> a 2nd man", "<2de> A 2ND MAN"),
    ("__low__ heⓘllo", "__low__ HEⓘLLO"),
    ("Press <b>this key</b> now", "PRESS <b>THIS KEY</b> NOW"),
    ('<a title="big dog">dog</a>', '<a title="big dog">DOG</a>'),
    ("Hi {first name}, %s of %(all)d, ${HOME} &amp; more", "HI {first name}, %s OF %(all)d, ${HOME} &amp; MORE"),
    ("see https://a.org/b or jane@a.org or www.a.org", "SEE https://a.org/b OR jane@a.org OR www.a.org"),
    ("run `nmt train x` with --force in /etc/hosts", "RUN `nmt train x` WITH --force IN /etc/hosts"),
    ("open read_me.txt and/or a.out", "OPEN read_me.txt AND/OR a.out"),
    ("Привет, мир!", "ПРИВЕТ, МИР!"),
    ("猫がいる。", "猫がいる。"),
    ("", ""),
]
TITLES = [
    ("a man in a blue shirt.", "A Man In A Blue Shirt."),
    ("the news of the BBC", "The News Of The BBC"),
    ('he said "don\'t (ever) go"', 'He Said "Don\'t (Ever) Go"'),
    ("<2de> a 2nd well-known man", "<2de> A 2nd Well-known Man"),
    ("write to jane@a.org today", "Write To jane@a.org Today"),
    ("élan  vital", "Élan  Vital"),
]
LOWER = [
    ("A Man from BERLIN.", "a man from berlin."),
    ("<2de> Hi {Name}, see README.md", "<2de> hi {Name}, see README.md"),
    ("ΟΔΟΣ", "οδος"),
]
WITHOUT_MARK = [
    ("A man.", "A man"),
    ("Really?!", "Really"),
    ("C'est vrai !", "C'est vrai"),
    ("And so on...", "And so on"),
    ("猫がいる。", "猫がいる"),
    ("No mark", "No mark"),
    ("...", "..."),
    ('He said "no."', 'He said "no."'),
    ("Go to a.org.", "Go to a.org."),
    ("At 5.30 p.m. or so.", "At 5.30 p.m. or so"),
    ("<2de>.", "<2de>"),
]
TURKISH_CASES = [("capitals", "ışık in", "IŞIK İN"), ("lower_case", "IŞIK İN", "ışık in"), ("title_case", "iş", "İş")]


@pytest.mark.parametrize(("text", "expected"), CAPITALS)
def test_capitals(text, expected):
    assert PLAIN.capitals(text) == expected


@pytest.mark.parametrize(("text", "expected"), TITLES)
def test_title_case(text, expected):
    assert PLAIN.title_case(text) == expected


@pytest.mark.parametrize(("text", "expected"), LOWER)
def test_lower_case(text, expected):
    assert PLAIN.lower_case(text) == expected


@pytest.mark.parametrize(("text", "expected"), WITHOUT_MARK)
def test_without_final_mark(text, expected):
    assert PLAIN.without_final_mark(text) == expected


@pytest.mark.parametrize(("change", "text", "expected"), TURKISH_CASES)
def test_turkish_has_two_letters_i(change, text, expected):
    assert getattr(TURKISH, change)(text) == expected


def one_typo(word: str, keyboard: dict[str, str]) -> set[str]:
    """All words that one typo can make."""
    made = set()
    for n, letter in enumerate(word):
        made |= {word[:n] + word[n + 1 :], word[:n] + 2 * letter + word[n + 1 :]}
        made |= {word[:n] + near + word[n + 1 :] for near in keyboard.get(letter, "")}
        made |= {word[:n] + word[n + 1 : n + 2] + letter + word[n + 2 :]} if n + 1 < len(word) else set()
    return made - {word}


@pytest.mark.parametrize(
    ("word", "keyboard"),
    [
        ("cat", {"c": "xvdf", "a": "qwsz", "t": "ryfg"}),
        ("Map", {"M": "NJK", "a": "qwsz", "p": "ol"}),
        ("aa", {"a": "qwsz"}),
        ("дом", {}),
        ("año", {"a": "qwsz", "o": "ipkl"}),
    ],
)
def test_every_typo_of_the_four_kinds_and_no_other_is_made(word, keyboard):
    assert {mistyped(word, Random(seed)) for seed in range(2000)} == one_typo(word, keyboard)


def test_about_each_third_word_has_a_typo_and_at_least_one():
    text = " ".join(["something"] * 30)
    counts = [
        sum(word != "something" for word in PLAIN.with_typos(text, Random(seed)).split(" ")) for seed in range(200)
    ]
    assert 9 < np.mean(counts) < 11 and len(set(counts)) > 5
    assert all(PLAIN.with_typos("a dog", Random(seed)).startswith("a ") for seed in range(50))
    assert all(PLAIN.with_typos("a dog", Random(seed)) != "a dog" for seed in range(50))


@pytest.mark.parametrize("text", ["", " ", "a", "5 b 10km 2nd", "<2de> {name} %s", "ⓘ __low__", "x@y.org `some code`"])
def test_text_without_words_gets_no_typo(text):
    assert all(PLAIN.with_typos(text, Random(seed)) == text for seed in range(20))


LINES = st.lists(st.sampled_from([*SYMBOLS, "{a b}", "<i>", "the", "cats,", "Über", "2nd", "10", "½", "don't", "।"]))


@given(st.one_of(st.text(), LINES.map(" ".join)), st.integers(0, 100))
def test_typos_keep_words_digits_and_symbols(text, seed):
    changed = PLAIN.with_typos(text, Random(seed))
    assert len(changed.split()) == len(text.split())
    assert [c for c in changed if c.isnumeric()] == [c for c in text if c.isnumeric()]
    assert changed == PLAIN.with_typos(text, Random(seed))


@given(LINES.map(" ".join), st.integers(0, 100))
def test_every_change_keeps_symbols_and_placeholders(text, seed):
    for change in (PLAIN.capitals, PLAIN.title_case, PLAIN.lower_case, PLAIN.without_final_mark):
        for kept in (*SYMBOLS, "{a b}", "<i>", "10"):
            assert change(text).count(kept) == text.count(kept)
    for kept in (*SYMBOLS, "{a b}", "<i>", "2nd"):
        assert PLAIN.with_typos(text, Random(seed)).count(kept) == text.count(kept)


ENGLISH = [line + end for line, end in zip(corpus(300, 100)[0].splitlines(), "." + 299 * "!", strict=True)]
ENGLISH += [line.upper() for line in ENGLISH] + [line.title() for line in ENGLISH]


@pytest.fixture(scope="module")
def vocab() -> Vocab:
    settings = schema.Vocab(size=120, symbols=("<2de>",))
    processor = SentencePieceProcessor(model_proto=learn(iter([*ENGLISH, "qwertyuiopasdfghjklzxcvbnm"]), settings, "x"))
    return Vocab(processor, processor, "en", "en", "nfc", "bpe", ("<2de>",))


def changed_texts(vocab: Vocab, shares: Augment, pairs: list[tuple[str, str]], **how) -> list[tuple[str, str]]:
    """The pairs as an epoch sees them."""
    options = {"numbers": range(len(pairs)), "seed": 1, "epoch": 0, "max_length": 0, **how}
    sides = [[np.array(ids, np.uint16) for ids in vocab.source.encode(list(side))] for side in zip(*pairs, strict=True)]
    augmenter = Augmenter(shares, vocab, options["max_length"])
    new = augmenter.change(sides, np.array(options["numbers"]), options["seed"], options["epoch"])
    return list(zip(*(vocab.source.decode([ids.tolist() for ids in side]) for side in new), strict=True))


PAIR = ("<2de> One two three.", "Two three four!")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("capitals", ("<2de> ONE TWO THREE.", "TWO THREE FOUR!")),
        ("title_case", ("<2de> One Two Three.", "Two Three Four!")),
        ("lower_case", ("<2de> one two three.", "Two three four!")),
        ("no_final_mark", ("<2de> One two three", "Two three four")),
    ],
)
def test_each_kind_changes_its_sides(vocab, kind, expected):
    assert changed_texts(vocab, Augment(**{kind: 1.0}), [PAIR]) == [expected]


def test_typos_change_the_source_only(vocab):
    ((source, target),) = changed_texts(vocab, Augment(typos=1.0), [PAIR])
    assert source != PAIR[0] and source.startswith("<2de> ") and len(source.split()) == 4
    assert target == PAIR[1]


def test_kinds_combine(vocab):
    shares = Augment(capitals=1.0, no_final_mark=1.0, typos=1.0)
    ((source, target),) = changed_texts(vocab, shares, [PAIR])
    assert source.removeprefix("<2de> ").isupper() and source[-1].isalpha() and source != "<2de> ONE TWO THREE"
    assert target == "TWO THREE FOUR"


def test_a_final_mark_of_one_side_alone_stays(vocab):
    pairs = [("One two.", "two"), ("One", "two.")]
    assert changed_texts(vocab, Augment(no_final_mark=1.0), pairs) == pairs


@pytest.mark.parametrize(
    ("pair", "max_length"),
    [
        (("One two 猫.", "two."), 0),  # the text of the unknown piece is lost
        (("One two.", "two é."), 0),
        (("one two.", "two ß."), 0),
        (PAIR, 3),  # capitals would have too many pieces
    ],
)
def test_a_pair_that_cannot_be_encoded_stays_on_both_sides(vocab, pair, max_length):
    as_stored = changed_texts(vocab, Augment(), [pair])
    assert changed_texts(vocab, Augment(capitals=1.0), [pair], max_length=max_length) == as_stored


def test_a_change_that_needs_an_unknown_letter_is_refused_on_both_sides():
    settings = schema.Vocab(size=20)
    processor = SentencePieceProcessor(model_proto=learn(iter(["abba ABBA", "abab BABA xx"]), settings, "x"))
    vocab = Vocab(processor, processor, "en", "en", "nfc", "bpe", ())
    assert changed_texts(vocab, Augment(capitals=1.0), [("ab", "ba"), ("ab", "xa")]) == [("AB", "BA"), ("ab", "xa")]


def test_the_changes_of_a_pair_depend_on_seed_epoch_and_its_number_alone(vocab):
    shares = Augment(capitals=0.2, title_case=0.2, lower_case=0.2, no_final_mark=0.3, typos=0.5)
    pairs = [(line, line) for line in ENGLISH[:200]]
    whole = changed_texts(vocab, shares, pairs)
    assert changed_texts(vocab, shares, pairs) == whole
    assert changed_texts(vocab, shares, pairs[50:80], numbers=range(50, 80)) == whole[50:80]
    assert changed_texts(vocab, shares, pairs[::-1], numbers=range(199, -1, -1)) == whole[::-1]
    for other in ({"seed": 2}, {"epoch": 1}, {"numbers": range(1000, 1200)}):
        assert changed_texts(vocab, shares, pairs, **other) != whole


def test_the_shares_are_those_of_the_recipe(vocab):
    lines, pair = 3000, ("One two three.", "One two three.")
    shares = Augment(capitals=0.1, title_case=0.2, lower_case=0.3, no_final_mark=0.25)
    seen = changed_texts(vocab, shares, lines * [pair])
    drawn = Counter((source.rstrip("."), target.rstrip(".")) for source, target in seen)
    expected = {
        ("ONE TWO THREE", "ONE TWO THREE"): 0.1,
        ("One Two Three", "One Two Three"): 0.2,
        ("one two three", "One two three"): 0.3,
        ("One two three", "One two three"): 0.4,
    }
    assert {texts: count / lines for texts, count in drawn.items()} == pytest.approx(expected, abs=0.03)
    # The final mark does not depend on the case.
    without = Counter((source, target) for source, target in seen if "." not in source + target)
    assert without == {texts: pytest.approx(drawn[texts] / 4, abs=0.03 * lines) for texts in expected}
    assert all(source.endswith(".") == target.endswith(".") for source, target in seen)
    for share in (0.0, 0.4, 1.0):
        typos = Counter(changed_texts(vocab, Augment(typos=share), lines * [pair]))
        assert 1 - typos[pair] / lines == pytest.approx(share, abs=0.03)


@pytest.fixture
def toy_data(prepared):
    vocab = load_vocab(prepared / "data/vocab")

    def load(shares: Augment | None = None, sampling: float = 0.0, longest: int = 0) -> ParallelData:
        augmenter = Augmenter(shares, vocab, longest) if shares else None
        return ParallelData(prepared / "data", "train", vocab, longest, sampling, augmenter)

    return load


def read(data: ParallelData, position: Position, count: int) -> list[list[list[int]]]:
    return [
        [batch.src.tolist(), batch.tgt_out.tolist()]
        for batch in (micro.read() for micro in BatchStream(data, 128, 1, position).take(count))
    ]


TYPOS = Augment(typos=0.5, no_final_mark=0.5)


@pytest.mark.parametrize("sampling", [0.0, 0.2])
def test_a_stream_with_changes_continues_from_any_position(toy_data, monkeypatch, sampling):
    monkeypatch.setattr(batches, "CHANGED_POOL", 150)
    data = toy_data(TYPOS, sampling)
    stream, seen = BatchStream(data, 128, 1, Position()), []
    while stream.position.epoch < 2:
        position = stream.position
        (micro,) = stream.take(1)
        seen.append((position, [micro.read().src.tolist(), micro.read().tgt_out.tolist()]))
    for position, batch in seen[::20]:
        assert read(toy_data(TYPOS, sampling), position, 1) == [batch]


def pairs_of(data: ParallelData, monkeypatch, pool: int) -> dict[int, tuple[list[int], list[int]]]:
    """The pieces of each pair of the corpus in the first epoch."""
    monkeypatch.setattr(batches, "CHANGED_POOL", pool)
    stream, pairs = BatchStream(data, 8, 1, Position()), {}
    while len(pairs) < 400:
        (micro,) = stream.take(1)
        sources, targets = micro.pool.changed
        for n in micro.numbers:
            pairs[int(micro.pool.rows[n])] = (sources[n].tolist(), targets[n].tolist())
    return {number: pairs[number] for number in range(400)}


def test_the_changes_do_not_depend_on_the_size_of_a_pool(toy_data, monkeypatch):
    whole = pairs_of(toy_data(TYPOS), monkeypatch, 1 << 15)
    assert pairs_of(toy_data(TYPOS), monkeypatch, 130) == whole
    stored = toy_data()
    changed = sum(whole[n][0] != stored.source[n].tolist() for n in range(400))
    assert 0.6 < changed / 400 < 0.9


def test_changed_batches_stay_within_budget_and_max_length(toy_data):
    stream = BatchStream(toy_data(Augment(typos=1.0)), 128, 1, Position())
    free = [micro.read() for micro in stream.take(40)]
    assert all(max(batch.src.size, batch.tgt_out.size) <= 128 for batch in free)
    longest = int(toy_data().lengths.max()) - 1
    stream = BatchStream(toy_data(Augment(typos=1.0), longest=longest), 128, 1, Position())
    limited = [micro.read() for micro in stream.take(40)]
    assert max(batch.src.shape[1] for batch in limited) <= longest + 1 < max(batch.src.shape[1] for batch in free)


def test_with_all_shares_zero_the_batches_are_those_without_augmentation(toy_data):
    assert read(toy_data(Augment()), Position(), 40) == read(toy_data(), Position(), 40)


def test_every_share_is_documented():
    docs = (Path(__file__).parents[2] / "docs/training.md").read_text(encoding="utf-8")
    assert all(f"`{field.name}`" in docs for field in fields(Augment))
