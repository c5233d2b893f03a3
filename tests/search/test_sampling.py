"""The samples follow the distribution of the model."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from support.search_oracle import (
    ORDINARY,
    SRC,
    make,
    token_logprobs,
)

from nmt_cli.search.beam import search
from nmt_cli.search.contract import SearchOptions
from nmt_cli.text.vocab import BOS, EOS


def assert_drawn_from(counts: Counter, probs: dict, draws: int) -> None:
    """A chi-square test at five standard deviations. Rare outcomes form one cell."""
    assert set(counts) <= {outcome for outcome, p in probs.items() if p > 0}
    assert sum(probs.values()) == pytest.approx(1, abs=1e-4)
    common = [outcome for outcome, p in probs.items() if p * draws >= 5]
    cells = [(counts[outcome], probs[outcome] * draws) for outcome in common]
    rest = draws - sum(expected for _, expected in cells)
    if rest >= 5:
        cells.append((draws - sum(seen for seen, _ in cells), rest))
    chi2 = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    freedom = max(len(cells) - 1, 1)
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom), (chi2, freedom)


def test_samples_follow_the_probabilities_of_the_model(network):
    draws = 1500
    options = SearchOptions(sample=True, n_best=draws, max_ratio=0.0, max_extra=3)
    (samples,) = search([network], SRC[1:2, :2], options)
    probs = {}
    for length in range(3):
        ids = list(itertools.product(ORDINARY, repeat=length))
        for i, logp in zip(ids, token_logprobs([network], SRC[1:2, :2], ids).tolist(), strict=True):
            drawn = logp if length < 2 else logp[:-1]  # EOS at the length limit is not drawn
            probs[i] = math.exp(sum(drawn))
    assert_drawn_from(Counter(h.ids for h in samples), probs, draws)
    assert [h.score for h in samples] == sorted((h.score for h in samples), reverse=True)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 3, 1.0), (1.0, 0, 0.7), (1.5, 4, 0.8)]
)
def test_temperature_top_k_and_top_p(temperature, top_k, top_p):
    """Compare the first token with the definition of the options, written with lists."""
    model, draws = make("pre", 4), 1500
    options = SearchOptions(
        sample=True, n_best=draws, temperature=temperature, top_k=top_k, top_p=top_p, max_ratio=0, max_extra=2
    )
    (samples,) = search([model], SRC[:1], options)
    with torch.no_grad():
        logits = model(SRC[:1], torch.tensor([[BOS]]))[0, 0].tolist()
    weights = {token: math.exp(logits[token] / temperature) for token in [*ORDINARY, EOS]}
    ranked = sorted(weights, key=lambda token: -weights[token])[: top_k or None]
    total = sum(weights[token] for token in ranked)
    kept, reached = [], 0.0
    for token in ranked:
        if reached < top_p:
            kept.append(token)
        reached += weights[token] / total
    total = sum(weights[token] for token in kept)
    first = Counter((h.ids or (EOS,))[0] for h in samples)
    assert_drawn_from(first, {token: weights[token] / total for token in kept}, draws)


def test_samples_depend_on_seed_and_number(network):
    def draw(seed, number=0, n_best=4):
        return search([network], SRC[:1], SearchOptions(sample=True, n_best=n_best, seed=seed), None, [number])[0]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(1) != draw(1, number=1)
    assert draw(1, n_best=1)[0].ids in [h.ids for h in draw(1)]  # the first sample stays the same


def test_sampling_at_a_low_temperature_equals_greedy_search(network):
    cold = search([network], SRC, SearchOptions(sample=True, temperature=1e-4))
    greedy = search([network], SRC, SearchOptions(beam=1))
    assert [sample.ids for (sample,) in cold] == [best.ids for (best,) in greedy]
