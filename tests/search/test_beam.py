"""Beam search and greedy search against brute force."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from support.search_oracle import (
    ORDINARY,
    SHORT,
    SRC,
    Recurrent,
    assert_same,
    brute_force,
    every_family,
    make,
    unpadded,
    without_pad_and_bos,
)

import nmt_cli.search.beam as search_module
from nmt_cli.search.beam import fast_topk, search
from nmt_cli.search.contract import Hypothesis, SearchOptions, length_limit, length_normalized
from nmt_cli.search.torch_engine import score
from nmt_cli.text.vocab import BOS, EOS, UNK


@every_family
def test_exhaustive_beam_finds_the_n_best_of_brute_force(network):
    sums = [brute_force([network], row, SearchOptions(alpha=0.0, **SHORT)) for row in SRC]
    for alpha, n_best in itertools.product((0.0, 0.6, 1.0, 2.0), (1, 20)):
        options = SearchOptions(beam=400, n_best=n_best, alpha=alpha, **SHORT)
        for sequences, hypotheses in zip(sums, search([network], SRC, options), strict=True):
            scores = [(ids, logprob / (len(ids) + 1) ** alpha) for ids, logprob in sequences]
            assert_same(hypotheses, sorted(scores, key=lambda pair: -pair[1])[:n_best])


@every_family
def test_every_field_of_a_hypothesis(network):
    options = SearchOptions(beam=400, n_best=15, alpha=0.6, attention=True, **SHORT)
    for row, hypotheses in zip(SRC, search([network], SRC, options), strict=True):
        src = unpadded(row)
        for hypothesis in hypotheses:
            with torch.no_grad():
                tgt_in = torch.tensor([[BOS, *hypothesis.ids]])
                logits, weights = network.decode(tgt_in, network.encode(src), attention=True)
            logp = without_pad_and_bos(logits).log_softmax(2)[0]
            logprobs = [logp[t, token].item() for t, token in enumerate((*hypothesis.ids, EOS))]
            assert hypothesis.token_logprobs == pytest.approx(logprobs, abs=1e-5)
            assert hypothesis.logprob == pytest.approx(sum(logprobs), abs=1e-5)
            assert hypothesis.score == length_normalized(hypothesis.logprob, len(logprobs), options)
            assert hypothesis.finished == (len(logprobs) < src.size(1) - 1 + 2)
            if "cross" not in weights:
                assert hypothesis.attention is None
                continue
            expected = weights["cross"][0, -1].mean(0).numpy()
            np.testing.assert_allclose(hypothesis.attention[:, : src.size(1)], expected, atol=1e-5, rtol=0)
            assert not hypothesis.attention[:, src.size(1) :].any()


@every_family
def test_exhaustive_beam_with_the_penalties_of_gnmt(network):
    """Wu et al. 2016, eq. 14. A model without attention has no coverage penalty. `score` gives the same scores."""
    options = SearchOptions(beam=400, n_best=20, alpha=0.8, length_penalty="gnmt", coverage_penalty=0.4, **SHORT)
    for row, hypotheses in zip(SRC, search([network], SRC, options), strict=True):
        expected = brute_force([network], row, options)[:20]
        assert_same(hypotheses, expected)
        pairs = [(unpadded(row)[0, :-1].tolist(), ids) for ids, _ in expected]
        assert_same(score([network], pairs, options, torch.device("cpu")), expected)


def test_attention_is_returned_only_on_request(network):
    assert search([network], SRC, SearchOptions(beam=2, **SHORT))[0][0].attention is None


def test_exhaustive_beam_returns_every_sequence_once(network):
    options = SearchOptions(beam=400, n_best=400, **SHORT)
    assert [len(hypotheses) for hypotheses in search([network], SRC, options)] == [341, 21, 85]


model_of = functools.cache(make)  # the tests below use the same models again and again, and leave them unchanged


@functools.cache
@torch.no_grad()
def continuations(name: str, seed: int, row: int, ids: tuple[int, ...]) -> list[float]:
    """log p of the model, for each token, of the sequence that has one more token than ids."""
    logits = model_of(name, seed)(unpadded(SRC[row]), torch.tensor([[BOS, *ids]]))
    logp = without_pad_and_bos(logits).log_softmax(2)[0].tolist()
    before = sum(logp[t][token] for t, token in enumerate(ids))
    return [before + last for last in logp[-1]]


def narrow_beam(name: str, seed: int, row: int, options: SearchOptions) -> list[tuple[tuple[int, ...], float]]:
    """Beam search as a textbook explains it, with lists, without batches, states and the early stop."""
    limit = length_limit(unpadded(SRC[row]).size(1) - 1, 0, options)
    beam: list[tuple[int, ...]] = [()]
    ended: list[tuple[tuple[int, ...], float]] = []
    for length in range(1, limit + 1):
        candidates = []
        for ids in beam:
            totals = continuations(name, seed, row, ids)
            tokens = [EOS] if length == limit else [*ORDINARY, EOS]
            candidates += [(totals[token], (*ids, token)) for token in tokens]
        candidates.sort(reverse=True)
        for total, ids in candidates[: options.beam]:
            if ids[-1] == EOS:
                ended.append((ids[:-1], total / length**options.alpha))
        still_open = [(total, ids) for total, ids in candidates if ids[-1] != EOS][: options.beam]
        beam = [ids for _, ids in still_open]
        if ended and (options.beam == 1 or len(ended) >= options.patience * options.beam):
            break
    return sorted(ended, key=lambda pair: -pair[1])[: options.n_best]


@pytest.mark.parametrize("patience", [1.0, math.inf])
@pytest.mark.parametrize("beam", [1, 2, 3])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_narrow_beam_equals_the_textbook_loop(alpha, beam, patience):
    """This also shows that the early stop never changes the result, since the textbook loop has no early stop."""
    for name, seed in itertools.product(("pre", "post", "recurrent"), range(2)):
        options = SearchOptions(beam=beam, n_best=min(beam, 2), alpha=alpha, patience=patience, max_extra=3)
        for row, hypotheses in enumerate(search([model_of(name, seed)], SRC, options)):
            assert_same(hypotheses, narrow_beam(name, seed, row, options))


def test_search_stops_early_when_no_open_hypothesis_can_win():

    class Counting(Recurrent):
        steps = 0

        def step(self, prev, memory, state, attention=False):
            self.steps += 1
            logits, weights, state = super().step(prev, memory, state, attention)
            logits[:, EOS] += 4.0
            return logits, weights, state

    torch.manual_seed(0)
    model = Counting().eval()
    search([model], SRC, SearchOptions(beam=4, alpha=0.0, patience=math.inf, max_extra=50))
    assert 1 <= model.steps < 20
    # alpha = 2 rewards length so much that a longer hypothesis could always win.
    model.steps = 0
    search([model], SRC, SearchOptions(beam=4, alpha=2.0, patience=math.inf, max_extra=50))
    assert model.steps >= 50


@pytest.mark.parametrize(
    ("best_open", "settings", "expected"),
    [
        # Two hypotheses have ended, with scores -0.5 and -1. The length limit is 4.
        (-8.0, {"n_best": 1, "alpha": 1.0}, True),  # -8/4 < -0.5
        (-8.0, {"n_best": 2, "alpha": 1.5}, True),  # -8/8 = -1
        (-8.0, {"n_best": 2, "alpha": 1.6}, False),  # -8/9.2 > -1
        (-8.0, {"n_best": 1, "alpha": 1.6}, True),  # -8/9.2 < -0.5
        (-8.0, {"n_best": 3, "alpha": 1.0}, False),
        (-1.1, {"n_best": 1, "beam": 2}, False),
        (-1.1, {"n_best": 1, "beam": 2, "patience": 1}, True),  # as many as the beam have ended
        (-1.1, {"n_best": 1, "beam": 3, "patience": 1}, False),
        (-1.1, {"n_best": 1, "beam": 2, "patience": 1.5}, False),
        (-0.1, {"n_best": 1, "beam": 1}, True),  # greedy
        (-math.inf, {}, True),
        (math.nan, {}, True),
    ],
)
def test_sentence_is_done(best_open, settings, expected):
    ended = [Hypothesis((), score, score, (score,), True) for score in (-0.5, -1.0)]
    assert search_module._Sentence(3, 4, (), [], ended).done(best_open, SearchOptions(**settings)) == expected


@every_family
def test_greedy_search_equals_the_naive_loop(network):
    options = SearchOptions(beam=1, max_ratio=2.0, max_extra=3)
    for row, (hypothesis,) in zip(SRC, search([network], SRC, options), strict=True):
        src, ids, total = unpadded(row), [], 0.0
        with torch.no_grad():
            while not ids or ids[-1] != EOS:
                logp = without_pad_and_bos(network(src, torch.tensor([[BOS, *ids]]))).log_softmax(2)[0, -1]
                allowed = [EOS] if len(ids) + 1 == 2 * (src.size(1) - 1) + 3 else [*ORDINARY, EOS]
                ids.append(max(allowed, key=lambda token: logp[token].item()))
                total += logp[ids[-1]].item()
        assert hypothesis.ids == tuple(ids[:-1])
        assert hypothesis.score == pytest.approx(total / len(ids), abs=1e-5)


@every_family
def test_forbidden_unknown_piece_leaves_its_probability_to_the_others(network):
    for row, (hypothesis,) in zip(SRC, search([network], SRC, SearchOptions(forbidden=(UNK,))), strict=True):
        with torch.no_grad():
            logits = without_pad_and_bos(network(unpadded(row), torch.tensor([[BOS, *hypothesis.ids]])))[0]
        logits[:, UNK] = -math.inf
        logp = logits.log_softmax(1)
        assert UNK not in hypothesis.ids
        total = sum(logp[t, token].item() for t, token in enumerate((*hypothesis.ids, EOS)))
        assert hypothesis.score == pytest.approx(total / (len(hypothesis.ids) + 1), abs=1e-4)


@pytest.mark.parametrize("size", [7, 64, 700, 2560, 2561, 8000, 40063])
@pytest.mark.parametrize("k", [1, 2, 10])
def test_fast_topk_equals_topk(size, k):
    x = torch.randn(5, size, generator=torch.Generator().manual_seed(size))
    x[0, : size - k] = -math.inf
    x[1, k:] = -math.inf
    top, at = fast_topk(x, min(k, size))
    expected, _ = x.topk(min(k, size), 1)
    assert torch.equal(top, expected)
    assert torch.equal(x.gather(1, at), expected)
    assert all(len(set(row)) == len(row) for row in at.tolist())


@pytest.mark.parametrize(
    ("pieces", "prefix", "settings", "expected"),
    [
        (0, 0, {}, 10),
        (7, 0, {}, 24),
        (7, 30, {}, 31),
        (7, 0, {"max_ratio": 1.5, "max_extra": 0}, 10),
        (0, 0, {"max_extra": 0}, 1),
        (500, 0, {"max_length": 64}, 64),
    ],
)
def test_length_limit(pieces, prefix, settings, expected):
    assert length_limit(pieces, prefix, SearchOptions(**settings)) == expected


def test_diverged_model_gives_empty_translations(network):
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(math.nan)
    for options in (SearchOptions(), SearchOptions(beam=1), SearchOptions(sample=True, n_best=2, top_k=3)):
        assert [[h.ids for h in hypotheses] for hypotheses in search([network], SRC, options)] == [[()]] * 3


def test_model_in_training_mode_is_refused(network):
    with pytest.raises(ValueError, match="eval"):
        search([network.train()], SRC, SearchOptions())


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_ensemble_equals_brute_force_on_averaged_probabilities(penalty):
    models = [make("pre", 1), make("recurrent", 2), make("post", 3)]
    options = SearchOptions(beam=400, n_best=20, repetition_penalty=penalty, **SHORT)
    for row, hypotheses in zip(SRC, search(models, SRC, options), strict=True):
        assert_same(hypotheses, brute_force(models, row, options)[:20])


def test_ensemble_of_the_same_model_twice_equals_the_model(network):
    options = SearchOptions(beam=3, n_best=3, attention=True)
    once, twice = search([network], SRC, options), search([network, network], SRC, options)
    for a, b in zip(itertools.chain(*once), itertools.chain(*twice), strict=True):
        assert a.ids == b.ids
        assert a.score == pytest.approx(b.score, abs=1e-5)
        np.testing.assert_allclose(a.attention, b.attention, atol=1e-6)
