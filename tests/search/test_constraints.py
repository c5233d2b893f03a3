"""Constraints and prefixes against brute force. A constraint rules out sequences and does not change log p."""

from __future__ import annotations

import math

import pytest
from support.search_oracle import (
    ORDINARY,
    SHORT,
    SRC,
    assert_same,
    brute_force,
    every_family,
    token_logprobs,
)

from nmt_cli.search.beam import search
from nmt_cli.search.contract import SearchOptions
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK


def without_repeats(ids: tuple[int, ...], n: int) -> bool:
    ngrams = [ids[i : i + n] for i in range(len(ids) - n + 1)]
    return len(set(ngrams)) == len(ngrams)


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"min_length": 2}, lambda ids: len(ids) >= 2),
        ({"forbidden": (4, 5)}, lambda ids: not {4, 5} & set(ids)),
        ({"no_repeat_ngram": 1}, lambda ids: without_repeats(ids, 1)),
        ({"no_repeat_ngram": 2}, lambda ids: without_repeats(ids, 2)),
        ({"no_repeat_ngram": 3}, lambda ids: without_repeats(ids, 3)),
        ({"repetition_penalty": 1.7}, lambda ids: True),
        ({"repetition_penalty": 0.6, "min_length": 1}, lambda ids: len(ids) >= 1),
        ({"max_length": 3}, lambda ids: True),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_constrained_search_equals_brute_force(network, settings, allowed):
    options = SearchOptions(beam=400, n_best=12, **settings, **SHORT)
    for row, hypotheses in zip(SRC, search([network], SRC, options), strict=True):
        expected = brute_force([network], row, options, allowed)[:12]
        assert expected
        assert_same(hypotheses, expected)


def test_min_length_yields_to_the_length_limit_and_to_rows_that_must_end(network):
    for options in (
        SearchOptions(beam=3, min_length=50, **SHORT),
        SearchOptions(beam=3, min_length=50, max_extra=50, no_repeat_ngram=1),
        SearchOptions(beam=3, min_length=50, max_extra=50, forbidden=tuple(ORDINARY)),
    ):
        results = search([network], SRC, options)
        assert all(hypotheses and hypotheses[0].score > -math.inf for hypotheses in results)
    assert all(hypotheses[0].ids == () for hypotheses in results)


@every_family
def test_search_with_prefixes_equals_brute_force(network):
    prefixes = [(5, UNK), (), (6,)]
    options = SearchOptions(beam=400, n_best=10, **SHORT)
    results = search([network], SRC, options, prefixes)
    for row, prefix, hypotheses in zip(SRC, prefixes, results, strict=True):
        assert_same(hypotheses, brute_force([network], row, options, prefix=prefix)[:10])


def test_prefix_takes_precedence_over_every_constraint(network):
    """The prefix is longer than the limit, has a forbidden token and repeats it."""
    options = SearchOptions(beam=3, forbidden=(4,), no_repeat_ngram=1, min_length=20, **SHORT)
    prefix = [4, 4, 5, 4, 4, 4]
    (hypothesis,) = search([network], SRC[1:2, :2], options, [prefix])[0]
    assert hypothesis.ids == tuple(prefix)
    assert not hypothesis.finished
    logprobs = token_logprobs([network], SRC[1:2, :2], [tuple(prefix)])[0].tolist()
    assert hypothesis.token_logprobs == pytest.approx([0.0] * 6 + logprobs[6:], abs=1e-5)


@pytest.mark.parametrize("token", [PAD, BOS, EOS])
def test_prefix_with_special_tokens_is_refused(network, token):
    with pytest.raises(ValueError, match="must not contain PAD"):
        search([network], SRC, SearchOptions(), [[4, token], [], []])
