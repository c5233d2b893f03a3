"""English and French so small that a small model masters them in seconds, on any processor.

A model that is right by a wide margin writes the same on every machine; one that is half trained does not, since the
last bit of a sum may decide what it writes.
"""

from __future__ import annotations

import random

ARTICLES = {"the": "le", "a": "un", "this": "ce", "my": "mon"}
NOUNS = {
    "cat": "chat",
    "dog": "chien",
    "horse": "cheval",
    "king": "roi",
    "boy": "garçon",
    "teacher": "professeur",
    "doctor": "médecin",
    "brother": "frère",
    "lion": "lion",
    "baker": "boulanger",
    "neighbour": "voisin",
    "duck": "canard",
    "rabbit": "lapin",
    "father": "père",
}
BEFORE = {"small": "petit", "big": "grand", "young": "jeune", "good": "bon", "nice": "gentil"}  # their nouns
AFTER = {"green": "vert", "red": "rouge", "black": "noir", "tired": "fatigué", "strong": "fort"}  # ... in French
WITH_OBJECT = {"sees": "voit", "likes": "aime", "hears": "entend", "follows": "suit", "finds": "trouve"}
WITHOUT = {"sleeps": "dort", "sings": "chante", "works": "travaille", "eats": "mange", "runs": "court"}
WHERE = {"in the garden": "dans le jardin", "at school": "à l'école", "today": "aujourd'hui", "at home": "à la maison"}
AND = {" and": " et", " because": " parce que", ", but": ", mais"}

Pair = tuple[str, str]


def sentences(count: int, seed: int) -> list[Pair]:
    return [_sentence(random.Random(f"{seed} {n}")) for n in range(count)]


def _sentence(rng: random.Random) -> Pair:
    kind = rng.random()
    source, target = _noun(rng) if kind < 0.1 else _clause(rng)
    if kind > 0.6:
        (english, french), (more, plus) = _pick(rng, AND), _clause(rng)
        source, target = f"{source}{english} {more}", f"{target}{french} {plus}"
    if rng.random() < 0.8:
        source, target = source[0].upper() + source[1:], target[0].upper() + target[1:]
    return f"{source}.", f"{target}."


def _clause(rng: random.Random) -> Pair:
    words = [_noun(rng), *([_pick(rng, WITHOUT)] if rng.random() < 0.3 else [_pick(rng, WITH_OBJECT), _noun(rng)])]
    if rng.random() < 0.4:
        words.append(_pick(rng, WHERE))
    english, french = zip(*words, strict=True)
    return " ".join(english), " ".join(french)


def _noun(rng: random.Random) -> Pair:
    (article, un), (english, french), kind = _pick(rng, ARTICLES), _pick(rng, NOUNS), rng.random()
    if kind < 0.25:
        adjective, adjectif = _pick(rng, BEFORE)
        return f"{article} {adjective} {english}", f"{un} {adjectif} {french}"
    if kind < 0.5:
        adjective, adjectif = _pick(rng, AFTER)
        return f"{article} {adjective} {english}", f"{un} {french} {adjectif}"
    return f"{article} {english}", f"{un} {french}"


def _pick(rng: random.Random, table: dict[str, str]) -> Pair:
    return rng.choice(list(table.items()))


TEST = sentences(500, seed=2)
SENTENCES = [pair[0] for pair in TEST[:60]]
ENGINES = ["ctranslate2", "torch"]


def text_of(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()
