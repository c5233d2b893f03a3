"""The demo corpus as a whole: its splits, its reproducibility, and a search for bad French and English."""

from __future__ import annotations

import hashlib
import re
from itertools import pairwise, product
from pathlib import Path

import pytest
from demo_corpus import lexicon
from demo_corpus.corpus import HELD_OUT, TRAIN, Speaker, alignment, demo_corpus, kept_apart
from demo_corpus.lexicon import NOUNS

from nmt_cli import demo
from nmt_cli.scoring.alignment import parse_links

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def corpus():
    return demo_corpus()


def everything(corpus) -> list[tuple[str, str]]:
    return corpus["train"] + corpus["dev"] + corpus["test"]


def test_the_package_ships_what_the_generator_makes(corpus):
    assert {split: demo.demo_corpus(split) for split in demo.SPLITS} == corpus, "run: cd tools && python -m demo_corpus"
    assert demo.demo_alignment() == alignment(), "run: cd tools && python -m demo_corpus"


def test_every_link_of_the_alignment_joins_two_words(corpus):
    """Almost every word of a sentence is linked. 'let us' is not: French says it by the form of the verb."""
    for (en, fr), line in zip(corpus["test"], alignment(), strict=True):
        (sure, possible), english, french = parse_links(line, "test.align", 1, is_gold=True), en.split(), fr.split()
        assert sure.isdisjoint(possible) and sure | possible <= set(product(range(len(english)), range(len(french))))
        assert {i for i, _ in sure | possible} >= {i for i, word in enumerate(english) if word not in ("Let", "us")}
        assert {j for _, j in sure | possible} == set(range(len(french)))


def test_equal_names_are_linked(corpus):
    names = {*lexicon.MEN, *lexicon.WOMEN}
    for (en, fr), line in zip(corpus["test"], alignment(), strict=True):
        sure, _ = parse_links(line, "test.align", 1, is_gold=True)
        sides = [{name: n for n, word in enumerate(text.split()) for name in re.findall(r"\w+", word) if name in names}
                 for text in (en, fr)]  # fmt: skip
        assert sides[0].keys() == sides[1].keys()
        assert sure >= {(n, sides[1][name]) for name, n in sides[0].items()}


def test_sizes(corpus):
    assert {name: len(pairs) for name, pairs in corpus.items()} == {"train": TRAIN, "dev": HELD_OUT, "test": HELD_OUT}
    assert (TRAIN, HELD_OUT) == (20_000, 500)


def test_no_sentence_occurs_twice(corpus):
    for side in (0, 1):
        texts = [pair[side] for pair in everything(corpus)]
        assert len(set(texts)) == len(texts)


def test_every_english_sentence_has_one_translation():
    speaker, french = Speaker(2), {}
    for _ in range(5_000):
        en, fr, _ = speaker.sentence()
        assert french.setdefault(en, fr) == fr


def test_train_has_every_held_out_word_five_times(corpus):
    for side in (0, 1):
        counts: dict[str, int] = {}
        for pair in corpus["train"]:
            for word in re.findall(r"[\w-]+|[^\w\s]", pair[side]):
                counts[word] = counts.get(word, 0) + 1
        for pair in corpus["dev"] + corpus["test"]:
            for word in re.findall(r"[\w-]+|[^\w\s]", pair[side]):
                assert counts.get(word, 0) >= 5, (word, pair)


def bigrams(pairs) -> set[tuple[str, str]]:
    words = (re.findall(r"[\w'-]+", en) for en, _ in pairs)
    return {two for sentence_ in words for two in pairwise(sentence_)}


def test_word_pairs_kept_apart_occur_only_in_dev_and_test(corpus):
    apart = kept_apart(Speaker(1))
    nouns = {form: noun.en[0] for noun in NOUNS.values() for form in noun.en}
    trained = {(a, nouns.get(b)) for a, b in bigrams(corpus["train"])}
    assert apart.isdisjoint(trained)
    for name in ("dev", "test"):
        together = {(a, nouns.get(b)) for a, b in bigrams(corpus[name])} & apart
        assert len(together) > 20  # adjectives alone: verbs do not stand next to their objects


def test_lengths_vary(corpus):
    lengths = [len(en.split()) for en, _ in corpus["train"]]
    assert min(lengths) == 2
    assert max(lengths) <= 25
    assert sum(length >= 12 for length in lengths) > 0.15 * len(lengths)


DIGEST = "9b68a54010a27dd8"  # a new word or rule changes it; a new Python version must not


def digest(corpus) -> str:
    return hashlib.sha256(repr(corpus).encode()).hexdigest()[:16]


def test_same_corpus_on_every_python_and_with_every_hash_seed(corpus):
    """Python draws a hash seed for each process of the tests."""
    assert digest(corpus) == DIGEST


def test_another_seed_gives_another_corpus():
    assert Speaker(3).sentence() != Speaker(4).sentence()
    assert kept_apart(Speaker(3)) != kept_apart(Speaker(4))


VOWEL = "[aeiouyâàéèêîôœAEIOUÉ]"
MUTE = "(?:homme|hôtel|hôpita|histoire|horloge|heure|honnête)"
ASPIRATE = "(?:héros|hibou|hamster|homard|haut)"
NO_FRENCH = [
    rf"(?i)\b(?:le|la|je|me|te|se|de|ne|que|ce|ma|ta|sa) (?!onze|huit)(?:{VOWEL}|{MUTE})",  # no elision
    rf"(?i)['’]{ASPIRATE}",
    rf"(?i)\b(?:cet|bel|nouvel|vieil) {ASPIRATE}",
    rf"(?i)\b(?:cet|bel|nouvel|vieil) (?!{VOWEL}|h)",
    rf"\b(?:un|le|ce|mon|ton|son|notre|votre|leur) (?:beau|nouveau|vieux) (?:{VOWEL}|{MUTE})",
    r"(?i)\b(?:de|à) les? ",
    r"(?i)\bsi ils?\b",
    r"(?i)\bs'elle",
    r"\bdes (?:petits|grands|beaux|jolis|vieux|jeunes|nouveaux|bons|mauvais|longs|hauts)\b",
    r"\bdes (?:petites|grandes|belles|jolies|vieilles|nouvelles|bonnes|mauvaises|longues|hautes)\b",
    r"(?i)\bn(?:e |')(?!est|sont|était|vien|revien)\S+ (?:pas|jamais|plus)(?: (?!reven|près)\w+)? "
    r"(?:une?|des|du)\b(?! heure)",
    r"\b(?:un|le|ce|mon|ton|son) (?:femme|fille|reine|pomme|maison|voiture|robe|clé|soupe|table|lettre|vache)\b",
    r"\b(?:une|la|cette|ma|ta|sa) (?:garçon|chat|chien|livre|chapeau|pain|lait|vin|roi|cheval|sac|jardin|verre)\b",
    r"\b(?:deux|trois|les|des|ces|mes|tes|ses|nos|leurs) (?:chat|chien|fille|pomme|cheval|oiseau|gâteau)\b",
    r"\b[Ee]lle (?:n'|s'|ne s')?est (?:pas |jamais )?(?:allé|arrivé|parti|resté|tombé|sorti|revenu|levé|couché)\b",
    r"\b[Ee]lles (?:ne |se |ne se )?sont (?:pas |jamais )?(?:allé|arrivé|parti|tombé|sorti|levé)e?s?\b(?<!es)",
    r"\b[Jj]e (?:est|a|va|sont|ont)\b",
    r"\b(?:nous|Nous) (?:mangons|voyagons|nagons|commencons)\b",
    r"\b(?:tu|Tu) \w+ez\b",
    r"(?i)\bvous (?:faisez|disez|êtez)\b",
    r"^Elles\b|^Est-ce qu'elles\b|(?:pleut|neige|pleuvra|neigera), elles\b",  # without named people, 'they' is 'ils'
    r"\bjamais (?:lu|coupé|mis)(?:e|s|es)?\b",  # 'they never read' must not be both past and present
    r"  | [,.]|\w[?!]|’|\n|\t|\u00a0|\u202f",
    r"^[a-zéèêàâîôœ]",
    r"(?<![.?!])$",
]  # fmt: skip
NO_ENGLISH = [
    r"\b[Aa] (?!uni)[aeiouAEIOU]",
    r"\b[Aa]n (?![aeiouAEIOU]|honest)",
    r"\ban uni",
    r"^(?:He|She) (?:are|am|have|do|were|want|go)\b",
    r"^(?:They|We|You) (?:is|am|has|does|was|wants|goes)\b",
    r"\bI (?:is|are|has|does|were)\b",
    r"\b(?:do|does|did|will|can|must|cannot) (?:not )?(?:is|are|was|were|has|had)\b",
    r"\bcan not\b|n't\b",
    r"^This \w+s are\b|^These \w+ is\b",
    r"  | [,.?!]|’|\n|\t",
    r"^[a-z]",
    r"\bi\b",
    r"(?<![.?!])$",
]  # fmt: skip


@pytest.mark.parametrize("pattern", NO_FRENCH)
def test_no_bad_french(corpus, pattern):
    wrong = re.compile(pattern)
    assert [fr for _, fr in everything(corpus) if wrong.search(fr)][:5] == []


@pytest.mark.parametrize("pattern", NO_ENGLISH)
def test_no_bad_english(corpus, pattern):
    wrong = re.compile(pattern)
    assert [en for en, _ in everything(corpus) if wrong.search(en)][:5] == []


BAD_FRENCH = [
    "Je ai un chat.", "Le homme dort.", "Il voit l'héros.", "Il voit cet hamster.", "Il voit cet chat.",
    "Il voit un beau oiseau.", "Il va à le marché.", "Si il part, je pleure.", "Il voit des petits chats.",
    "Il n'a pas un chat.", "Il n'a pas mangé une pomme.", "Il voit le maison.", "Il voit une chat.",
    "Il voit deux cheval.", "Elle est allé à Paris.", "Elles sont arrivés.", "Nous mangons.", "Tu voyez le chat.",
    "Est-ce que tu dors?", "il dort.", "Il dort", "Il dort .", "Elle voit sa école.",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_FRENCH)
def test_the_patterns_find_bad_french(text):
    assert any(re.search(pattern, text) for pattern in NO_FRENCH)


@pytest.mark.parametrize("pattern", [
    r"\bau ", r"\baux ", r"\bdu ", r"\bd'", r"\bl'h", r"\ben Italie", r"\baux États-Unis", r"\bcet ", r"\bmon amie ",
    r"\bbel ", r"\bvieil ", r"\bnouvel ", r"\bn'y a pas de ", r" pas d'", r" jamais de ", r" plus de ", r"^Est-ce qu'",
    r"^Qu'est-ce que ", r"^Où ", r"^Pourquoi ", r"^Quelles? ", r"^Combien d", r"\bparce qu'elles ", r"^S'il",
    r"^Si elle", r"^Quand .*ra, ", r" pendant qu", r" qui ", r" que ", r"\bqu'elle a \w+es\b", r"\ballée",
    r"sont \w+ées\b", r"\bvous \w+ez\b", r"s'il vous plaît", r"\bbeaucoup d'", r"\bde l'eau", r"\bde la ",
    r"vingt et une", r" ans\.", r"\bl'a pas ", r"\blui ", r"\bœufs?\b", r"^É", r"\bse lèvera", r"ons .* !$",
    r"\bmarron\b", r"\bchevaux\b",
])  # fmt: skip
def test_the_corpus_shows_each_rule(corpus, pattern):
    assert any(re.search(pattern, fr) for _, fr in corpus["train"])
