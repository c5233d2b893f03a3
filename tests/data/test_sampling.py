"""Subword sampling: the text stays the same, the probabilities follow the formula, the seed decides."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor
from support.toy_corpus import corpus

from nmt_cli.data import sampling
from nmt_cli.data.sampling import SubwordSampler
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import learn

LINES = [line for side in corpus(900, 100) for line in side.splitlines()]


def pieces_of(kind: str, symbols: tuple[str, ...] = ()) -> SentencePieceProcessor:
    settings = recipe.Vocab(type=kind, size=60 if kind == "bpe" else 45, symbols=symbols)
    return SentencePieceProcessor(model_proto=learn(iter(LINES), settings, "test"))


def sampler(kind: str, rate: float) -> SubwordSampler:
    return SubwordSampler(pieces_of(kind), rate, kind == "unigram", ())


def sampled(model: SubwordSampler, sentences: list[np.ndarray], seed: int) -> list[list[int]]:
    return [ids.tolist() for ids in model.sample(sentences, seed)]


def encoded(model: SubwordSampler) -> list[np.ndarray]:
    return [np.array(ids) for ids in model.processor.encode(LINES)]


def test_without_dropout_the_pieces_are_those_of_sentencepiece():
    model = sampler("bpe", 0.0)
    assert sampled(model, encoded(model), 1) == [ids.tolist() for ids in encoded(model)]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sampling_changes_the_pieces_but_not_the_text(kind):
    model = sampler(kind, 0.2)
    cuts = sampled(model, encoded(model), 1)
    assert model.processor.decode(cuts) == LINES
    assert sum(map(len, cuts)) > sum(map(len, encoded(model)))
    assert cuts == sampled(model, encoded(model), 1) != sampled(model, encoded(model), 2)


def test_dropping_all_merges_gives_characters():
    model = sampler("bpe", 1.0)
    for line, ids in zip(LINES[:20], sampled(model, encoded(model)[:20], 1), strict=True):
        assert [model.processor.id_to_piece(i) for i in ids] == list("▁" + line.replace(" ", "▁"))


def exact_bpe_dropout(word: str, scores: dict[str, float], rate: float) -> dict[tuple[str, ...], float]:
    """The distribution over segmentations by algorithm 1 of the paper, over all branches."""
    open_, done = {tuple(word): 1.0}, Counter()
    while open_:
        parts, p = open_.popitem()
        merges = [i for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in scores]
        for kept in product([True, False], repeat=len(merges)):
            q = p * np.prod([1 - rate if k else rate for k in kept]) if merges else p
            left = [i for i, k in zip(merges, kept, strict=True) if k]
            if not left:
                done[parts] += q
                continue
            i = max(left, key=lambda i: (scores[parts[i] + parts[i + 1]], -i))
            merged = (*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :])
            open_[merged] = open_.get(merged, 0.0) + q
    return done


def test_bpe_dropout_has_the_probabilities_of_the_paper(monkeypatch):
    monkeypatch.setattr(sampling, "VARIANTS", 10**9)  # a new cut each time
    model = sampler("bpe", 0.3)
    word = "▁seven"
    expected = exact_bpe_dropout(word, model.scores, 0.3)
    assert len(expected) > 3
    ids = np.array(model.processor.encode("seven"))
    drawn = Counter(tuple(model.processor.id_to_piece(i) for i in cut) for cut in sampled(model, [ids] * 20_000, 7))
    for cut, p in expected.items():
        assert abs(drawn[cut] / 20_000 - p) < 4 * np.sqrt(p * (1 - p) / 20_000) + 1e-9, cut


def test_words_with_unknown_characters_or_symbols_keep_their_pieces():
    processor = pieces_of("bpe", ("<2de>",))
    model = SubwordSampler(processor, 0.9, False, ("<2de>",))
    ids = np.array(processor.encode("<2de> seven 猫 eight."))
    symbol, unknown = processor.piece_to_id("<2de>"), processor.unk_id()
    for seed in range(20):
        cut = sampled(model, [ids], seed)[0]
        assert symbol in cut and unknown in cut


def test_an_empty_sentence_stays_empty():
    model = sampler("bpe", 0.5)
    assert sampled(model, [np.array([], int)], 1) == [[]] and sampled(model, [], 1) == []
    empty, (full,) = np.array([], int), encoded(model)[:1]
    first, *rest = sampled(model, [empty, full, empty, empty], 1)
    assert first == rest[1] == rest[2] == [] and model.processor.decode(rest[0]) == LINES[0]


def test_another_process_draws_the_same_pieces():
    """The sampling of SentencePiece differs between processes, so that a resumed run would not be exact."""
    code = (
        "import sys\n"
        f"sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]\n"
        "from test_sampling import *\n"
        "m = sampler('bpe', 0.2); print(sampled(m, encoded(m)[:50], 3))"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1
