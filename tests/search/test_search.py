"""Search against brute force: every sequence is enumerated and scored by `decode`, which knows no beam and no state."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nmt_cli.search.beam as search_module
from nmt_cli.errors import NmtError
from nmt_cli.model.base import Seq2Seq, select
from nmt_cli.model.build import build_model
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe import schema as recipe
from nmt_cli.search.beam import search, top_of
from nmt_cli.search.contract import Hypothesis, SearchOptions, length_limit, length_normalized
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK

VOCAB = 7
ORDINARY = [UNK, 4, 5, 6]
SRC = torch.tensor([[4, 5, 6, EOS], [5, EOS, PAD, PAD], [6, 4, EOS, PAD]])
SHORT = {"max_ratio": 1.0, "max_extra": 2}  # L = 5, 3, 4 for the sentences of SRC: 341, 21, 85 sequences


class Recurrent(Seq2Seq):
    """The least that has everything search may trip over: two states of different shape, and attention."""

    def __init__(self, vocab: int = VOCAB, dim: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.cell = nn.Linear(3 * dim, dim)
        self.output = nn.Linear(dim, vocab, bias=False)
        nn.init.normal_(self.output.weight, std=2)

    def encode(self, src, attention=False, keep=None):
        keys = self.embedding(src) * (src != PAD)[:, :, None]
        return {"keys": keys, "mask": src != PAD}

    def start(self, memory):
        keys = memory["keys"]
        return {"hidden": keys.sum(1), "age": keys.new_zeros(len(keys))}

    def advance(self, prev, memory, hidden, age):
        memory = select(memory, torch.arange(len(prev)) // (len(prev) // len(memory["keys"])))  # K rows share one
        scores = (memory["keys"] @ hidden[:, :, None])[:, :, 0].masked_fill(~memory["mask"], -math.inf)
        weights = scores.softmax(1)
        context = (weights[:, None] @ memory["keys"])[:, 0]
        hidden = torch.tanh(self.cell(torch.cat([self.embedding(prev), hidden, context], 1)) + age[:, None] / 10)
        return hidden, age + (prev == 4), weights

    def step(self, prev, memory, state, attention=False):
        hidden, age, weights = self.advance(prev, memory, **state)
        cross = {"cross": weights[:, None, None]} if attention else None
        return self.project(hidden), cross, {"hidden": hidden, "age": age}

    def features(self, tgt_in, memory, attention=False, keep=None):
        state = self.start(memory)
        hiddens, shares = [], []
        for prev in tgt_in.unbind(1):
            hidden, age, weights = self.advance(prev, memory, **state)
            state = {"hidden": hidden, "age": age}
            hiddens.append(hidden)
            shares.append(weights)
        return torch.stack(hiddens, 1), {"cross": torch.stack(shares, 1)[:, None, None]} if attention else None

    @property
    def output_weight(self):
        return self.output.weight


def transformer(norm: str = "pre", vocab: int = VOCAB) -> Transformer:
    config = recipe.Transformer(
        dim=8, heads=2, ff=16, encoder_layers=1, decoder_layers=2, norm=norm, max_positions=64, tie="none"
    )
    model = Transformer(config, vocab, vocab)
    with torch.no_grad():
        model.output.weight *= 3  # a model with opinions
    return model


def family(config: recipe.Model, vocab: int = VOCAB) -> Seq2Seq:
    """One of the other families, all of whose weights are random: a model with opinions."""
    model = build_model(config, vocab, vocab)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


FAMILIES: dict[str, recipe.Model] = {
    "bottleneck": recipe.Rnn(cell="gru", dim=8, attention="none", context="every", tie="none"),
    "rnn": recipe.Rnn(dim=8, attention="additive", decoder_layers=2, input_feeding=True, span="monotonic", radius=1),
    "heads": recipe.Rnn(dim=8, attention="scaled_dot", projections=True, heads=2),
    "predictive": recipe.Rnn(cell="rnn", dim=8, attention="general", span="predictive", radius=2),
    "conv": recipe.Conv("conv", 8, 3, 1, 2, 64),
    "decoder": recipe.DecoderOnly("decoder", 8, 2, 16, 2, max_positions=64),
}
MODELS: dict[str, Callable[[], Seq2Seq]] = {
    "pre": lambda: transformer("pre"),
    "post": lambda: transformer("post"),
    "recurrent": Recurrent,
    **{name: partial(family, config) for name, config in FAMILIES.items()},
}


def make(name: str, seed: int = 1) -> Seq2Seq:
    torch.manual_seed(seed)
    return MODELS[name]().eval()


@pytest.fixture(params=("pre", "post", "recurrent"))
def model(request) -> Seq2Seq:
    return make(request.param)


# For what may go wrong in a model as well as in the search.
every_model = pytest.mark.parametrize("model", MODELS, indirect=True)


# ---------------------------------------------------------------------------------------------------------------------
# The oracle


def unpadded(row: Tensor) -> Tensor:
    return row[None, : int((row != PAD).sum())]


def among_words(logits: Tensor) -> Tensor:
    """PAD and BOS are no words, and nothing is lost to them."""
    logits[..., [PAD, BOS]] = -math.inf
    return logits


@torch.no_grad()
def token_logprobs(models: list[Seq2Seq], src: Tensor, ids: list[tuple[int, ...]], penalty: float = 1.0) -> Tensor:
    """(N,T+1): log p of each token and of EOS, for N sequences of one length."""
    tgt = torch.tensor(ids, dtype=torch.long).view(len(ids), -1)
    tgt_in = F.pad(tgt, (1, 0), value=BOS)
    probs = []
    for model in models:
        memory = {name: x.expand(len(ids), *x.shape[1:]) for name, x in model.encode(src).items()}
        logits = model.decode(tgt_in, memory)[0]
        for n, t in itertools.product(range(len(ids)), range(tgt_in.size(1))):
            for token in set(ids[n][:t]):
                logits[n, t, token] *= penalty if logits[n, t, token] < 0 else 1 / penalty
        probs.append(among_words(logits).softmax(2))
    logp = (sum(probs) / len(probs)).log()
    return logp.gather(2, F.pad(tgt, (0, 1), value=EOS)[:, :, None])[:, :, 0]


def brute_force(
    models: list[Seq2Seq],
    row: Tensor,
    options: SearchOptions,
    allowed: Callable[[tuple[int, ...]], bool] = lambda ids: True,
    prefix: tuple[int, ...] = (),
) -> list[tuple[tuple[int, ...], float]]:
    """All sequences that end with EOS within the limit, best first, with their scores."""
    src = unpadded(row)
    found = []
    limit = length_limit(src.size(1) - 1, len(prefix), options)
    for length in range(limit):
        ids = [ids for ids in itertools.product(ORDINARY, repeat=length) if ids[: len(prefix)] == prefix]
        ids = [i for i in ids if allowed(i)]
        if ids:
            # a prefix is given, and costs nothing
            sums = token_logprobs(models, src, ids, options.repetition_penalty)[:, len(prefix) :].sum(1).tolist()
            found += [(i, total / (length + 1) ** options.alpha) for i, total in zip(ids, sums, strict=True)]
    return sorted(found, key=lambda pair: -pair[1])


def assert_same(found: list[Hypothesis], expected: list[tuple[tuple[int, ...], float]]) -> None:
    assert [h.ids for h in found] == [ids for ids, _ in expected]
    assert [h.score for h in found] == pytest.approx([score for _, score in expected], abs=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# Beam search


@every_model
@pytest.mark.parametrize("n_best", [1, 20])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
def test_exhaustive_beam_is_brute_force(model, alpha, n_best):
    options = SearchOptions(beam=400, n_best=n_best, alpha=alpha, **SHORT)
    for row, found in zip(SRC, search([model], SRC, options), strict=True):
        assert_same(found, brute_force([model], row, options)[:n_best])


@every_model
def test_every_part_of_a_hypothesis(model):
    options = SearchOptions(beam=400, n_best=15, alpha=0.6, attention=True, **SHORT)
    for row, found in zip(SRC, search([model], SRC, options), strict=True):
        src = unpadded(row)
        for hypothesis in found:
            logprobs = token_logprobs([model], src, [hypothesis.ids])[0].tolist()
            assert hypothesis.token_logprobs == pytest.approx(logprobs, abs=1e-5)
            assert hypothesis.logprob == pytest.approx(sum(logprobs), abs=1e-5)
            assert hypothesis.score == length_normalized(hypothesis.logprob, len(logprobs), 0.6)
            assert hypothesis.finished == (len(logprobs) < src.size(1) - 1 + 2)
            with torch.no_grad():
                _, weights = model.decode(torch.tensor([[BOS, *hypothesis.ids]]), model.encode(src), attention=True)
            if "cross" not in weights:
                assert hypothesis.attention is None
                continue
            expected = weights["cross"][0, -1].mean(0).numpy()
            np.testing.assert_allclose(hypothesis.attention[:, : src.size(1)], expected, atol=1e-5, rtol=0)
            assert not hypothesis.attention[:, src.size(1) :].any()


def test_attention_only_when_asked(model):
    assert search([model], SRC, SearchOptions(beam=2, **SHORT))[0][0].attention is None


def test_an_exhaustive_list_has_nothing_else(model):
    options = SearchOptions(beam=400, n_best=400, **SHORT)
    assert [len(found) for found in search([model], SRC, options)] == [341, 21, 85]


def narrow_beam(model: Seq2Seq, row: Tensor, options: SearchOptions) -> list[tuple[tuple[int, ...], float]]:
    """Beam search as one would explain it: lists, no batch, no state, and no stop by proof."""
    src = unpadded(row)
    limit = length_limit(src.size(1) - 1, 0, options)
    beam: list[tuple[int, ...]] = [()]
    ended: list[tuple[tuple[int, ...], float]] = []
    with torch.no_grad():
        memory = model.encode(src)
        for length in range(1, limit + 1):
            candidates = []
            for ids in beam:
                logp = among_words(model.decode(torch.tensor([[BOS, *ids]]), memory)[0]).log_softmax(2)[0]
                before = sum(logp[t, token].item() for t, token in enumerate(ids))
                tokens = [EOS] if length == limit else [*ORDINARY, EOS]
                candidates += [(before + logp[-1, token].item(), (*ids, token)) for token in tokens]
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
def test_narrow_beam(alpha, beam, patience):
    """Also: the stop by proof never changes what is found, since the loop above has none."""
    for name, seed in itertools.product(("pre", "post", "recurrent"), range(2)):
        model = make(name, seed)
        options = SearchOptions(beam=beam, n_best=min(beam, 2), alpha=alpha, patience=patience, max_extra=3)
        for row, found in zip(SRC, search([model], SRC, options), strict=True):
            assert_same(found, narrow_beam(model, row, options))


def test_stops_early_when_nothing_can_win():
    """... and not only at the limit, or it would not be worth the bound."""

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
    # With a length reward as strong as this a much longer hypothesis could always win.
    model.steps = 0
    search([model], SRC, SearchOptions(beam=4, alpha=2.0, patience=math.inf, max_extra=50))
    assert model.steps >= 50


@pytest.mark.parametrize(
    ("best_open", "settings", "expected"),
    [
        # Two have ended, with scores -0.5 and -1; those open may get 4 tokens.
        (-8.0, {"n_best": 1, "alpha": 1.0}, True),  # -8/4 < -0.5
        (-8.0, {"n_best": 2, "alpha": 1.5}, True),  # -8/8 = -1
        (-8.0, {"n_best": 2, "alpha": 1.6}, False),  # -8/9.2 > -1
        (-8.0, {"n_best": 1, "alpha": 1.6}, True),  # ... < -0.5
        (-8.0, {"n_best": 3, "alpha": 1.0}, False),
        (-1.1, {"n_best": 1, "beam": 2}, False),
        (-1.1, {"n_best": 1, "beam": 2, "patience": 1}, True),  # a full beam has ended
        (-1.1, {"n_best": 1, "beam": 3, "patience": 1}, False),
        (-1.1, {"n_best": 1, "beam": 2, "patience": 1.5}, False),
        (-0.1, {"n_best": 1, "beam": 1}, True),  # greedy
        (-math.inf, {}, True),
        (math.nan, {}, True),
    ],
)
def test_done(best_open, settings, expected):
    ended = [Hypothesis((), score, score, (score,), True) for score in (-0.5, -1.0)]
    assert search_module._Sentence(4, (), [], ended).done(best_open, SearchOptions(**settings)) == expected


@every_model
def test_greedy_is_the_naive_loop(model):
    options = SearchOptions(beam=1, max_ratio=2.0, max_extra=3)
    for row, (found,) in zip(SRC, search([model], SRC, options), strict=True):
        src, ids, total = unpadded(row), [], 0.0
        with torch.no_grad():
            while not ids or ids[-1] != EOS:
                logp = among_words(model(src, torch.tensor([[BOS, *ids]]))).log_softmax(2)[0, -1]
                allowed = [EOS] if len(ids) + 1 == 2 * (src.size(1) - 1) + 3 else [*ORDINARY, EOS]
                ids.append(max(allowed, key=lambda token: logp[token].item()))
                total += logp[ids[-1]].item()
        assert found.ids == tuple(ids[:-1])
        assert found.score == pytest.approx(total / len(ids), abs=1e-5)


@every_model
def test_the_mark_of_the_unknown_leaves_its_probability_to_the_others(model):
    for row, (found,) in zip(SRC, search([model], SRC, SearchOptions(forbidden=(UNK,))), strict=True):
        with torch.no_grad():
            logits = among_words(model(unpadded(row), torch.tensor([[BOS, *found.ids]])))[0]
        logits[:, UNK] = -math.inf
        logp = logits.log_softmax(1)
        assert UNK not in found.ids
        total = sum(logp[t, token].item() for t, token in enumerate((*found.ids, EOS)))
        assert found.score == pytest.approx(total / (len(found.ids) + 1), abs=1e-4)


# ---------------------------------------------------------------------------------------------------------------------
# Batches


def corpus(count: int, vocab: int, seed: int = 3) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 12, (count,), generator=generator).tolist()
    return [[*torch.randint(4, vocab, (n,), generator=generator).tolist(), EOS] for n in lengths]


def in_batches(models, lines, order, size, options, prefixes=None):
    """Translate lines in this order and batch size; the results in the order of the lines."""
    results: list[list[Hypothesis]] = [[] for _ in lines]
    for first in range(0, len(order), size):
        numbers = order[first : first + size]
        src = nn.utils.rnn.pad_sequence([torch.tensor(lines[n]) for n in numbers], batch_first=True)
        chosen = None if prefixes is None else [prefixes[n] for n in numbers]
        for n, found in zip(numbers, search(models, src, options, chosen, numbers), strict=True):
            results[n] = found
    return results


WAYS = {
    "greedy": SearchOptions(beam=1),
    "beam": SearchOptions(beam=4, n_best=3),
    "constrained": SearchOptions(beam=3, min_length=3, no_repeat_ngram=2, repetition_penalty=1.3, forbidden=(UNK,)),
    "sample": SearchOptions(sample=True, n_best=2),
    "top-p": SearchOptions(sample=True, top_p=0.8, top_k=30, temperature=0.7),
}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, WAYS[way], id=f"{name}-{way}")
        for name, way in [*itertools.product(("pre", "recurrent"), WAYS), *((name, "beam") for name in FAMILIES)]
    ],
)
def test_a_result_does_not_depend_on_its_batch(name, options):
    torch.manual_seed(5)
    vocab = 300  # enough for top_of to lay out columns
    if name in FAMILIES:
        model = family(FAMILIES[name], vocab).eval()
    else:
        model = (transformer(vocab=vocab) if name == "pre" else Recurrent(vocab)).eval()
    with torch.no_grad():
        model.output_weight[EOS] *= 2  # so that sentences leave at different times
    lines = corpus(64, vocab)
    order = list(range(len(lines)))
    prefixes = [lines[n][: n % 3] if n % 2 and len(lines[n]) > 3 else [] for n in order]
    shuffled = torch.randperm(len(lines), generator=torch.Generator().manual_seed(1)).tolist()
    one = in_batches([model], lines, order, 1, options, prefixes)
    assert len({h.ids for found in one for h in found}) > 12
    for batch_order, size in [(order, 7), (order, 64), (shuffled, 7), (shuffled, 64)]:
        other = in_batches([model], lines, batch_order, size, options, prefixes)
        assert [[h.ids for h in found] for found in other] == [[h.ids for h in found] for found in one]
        scores = [h.score for found in one for h in found]
        assert [h.score for found in other for h in found] == pytest.approx(scores, abs=1e-4)


def test_finished_sentences_leave_and_memory_stays():
    """Rows shrink as sentences end; the memory has one for each sentence, and is copied only when one leaves."""
    seen = []

    class Watched(Recurrent):
        def step(self, prev, memory, state, attention=False):
            seen.append((len(prev), len(memory["keys"]), memory["keys"].data_ptr()))
            logits, weights, state = super().step(prev, memory, state, attention)
            logits[:, EOS] -= 50  # until the limit
            return logits, weights, state

    torch.manual_seed(0)
    model = Watched().eval()
    src = torch.tensor([[4, 5, 6, 4, EOS], [5, 5, 5, 5, EOS], [6, 4, EOS, PAD, PAD]])
    search([model], src, SearchOptions(beam=2, patience=math.inf, alpha=2.0, max_ratio=2.0, max_extra=0))
    assert [rows for rows, _, _ in seen] == [3] + [6] * 3 + [4] * 4  # limits 8, 8, 4
    assert [rows for _, rows, _ in seen] == [3] * 4 + [2] * 4
    assert len({pointer for _, _, pointer in seen[:4]}) == 1
    assert len({pointer for _, _, pointer in seen[4:]}) == 1


def test_no_sentences(model):
    assert search([model], SRC[:0], SearchOptions()) == []


@every_model
def test_an_empty_source(model):
    (found,) = search([model], torch.tensor([[EOS]]), SearchOptions(beam=400, n_best=5, max_extra=4))
    assert_same(found, brute_force([model], torch.tensor([EOS]), SearchOptions(max_extra=4))[:5])


# ---------------------------------------------------------------------------------------------------------------------
# Constraints: the same log p, fewer sequences


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
def test_constraints(model, settings, allowed):
    options = SearchOptions(beam=400, n_best=12, **settings, **SHORT)
    for row, found in zip(SRC, search([model], SRC, options), strict=True):
        expected = brute_force([model], row, options, allowed)[:12]
        assert expected
        assert_same(found, expected)


def test_min_length_gives_way(model):
    """... to the maximum, and where no other token may follow."""
    for options in (
        SearchOptions(beam=3, min_length=50, **SHORT),
        SearchOptions(beam=3, min_length=50, max_extra=50, no_repeat_ngram=1),
        SearchOptions(beam=3, min_length=50, max_extra=50, forbidden=tuple(ORDINARY)),
    ):
        found = search([model], SRC, options)
        assert all(one and one[0].score > -math.inf for one in found)
    assert all(one[0].ids == () for one in found)


@every_model
def test_prefixes(model):
    prefixes = [(5, UNK), (), (6,)]
    options = SearchOptions(beam=400, n_best=10, **SHORT)
    found = search([model], SRC, options, prefixes)
    for row, prefix, one in zip(SRC, prefixes, found, strict=True):
        assert_same(one, brute_force([model], row, options, prefix=prefix)[:10])


def test_a_prefix_is_law(model):
    """Longer than the limit, with what is otherwise forbidden, repeated."""
    options = SearchOptions(beam=3, forbidden=(4,), no_repeat_ngram=1, min_length=20, **SHORT)
    prefix = [4, 4, 5, 4, 4, 4]
    (found,) = search([model], SRC[1:2, :2], options, [prefix])[0]
    assert found.ids == tuple(prefix)
    assert not found.finished
    logprobs = token_logprobs([model], SRC[1:2, :2], [tuple(prefix)])[0].tolist()
    assert found.token_logprobs == pytest.approx([0.0] * 6 + logprobs[6:], abs=1e-5)


@pytest.mark.parametrize("token", [PAD, BOS, EOS])
def test_a_prefix_without_special_marks(model, token):
    with pytest.raises(ValueError, match="must not contain PAD"):
        search([model], SRC, SearchOptions(), [[4, token], [], []])


# ---------------------------------------------------------------------------------------------------------------------
# Ensembles


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_ensemble_is_brute_force_on_averaged_probabilities(penalty):
    models = [make("pre", 1), make("recurrent", 2), make("post", 3)]
    options = SearchOptions(beam=400, n_best=20, repetition_penalty=penalty, **SHORT)
    for row, found in zip(SRC, search(models, SRC, options), strict=True):
        assert_same(found, brute_force(models, row, options)[:20])


def test_ensemble_of_one_model_twice(model):
    options = SearchOptions(beam=3, n_best=3, attention=True)
    once, twice = search([model], SRC, options), search([model, model], SRC, options)
    for a, b in zip(itertools.chain(*once), itertools.chain(*twice), strict=True):
        assert a.ids == b.ids
        assert a.score == pytest.approx(b.score, abs=1e-5)
        np.testing.assert_allclose(a.attention, b.attention, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# Sampling


def assert_drawn_from(counts: Counter, probs: dict, draws: int) -> None:
    """Chi-square at five standard deviations; rare outcomes are put together."""
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


def test_samples_follow_the_model(model):
    draws = 4000
    options = SearchOptions(sample=True, n_best=draws, max_ratio=0.0, max_extra=3)
    (found,) = search([model], SRC[1:2, :2], options)
    probs = {}
    for length in range(3):
        ids = list(itertools.product(ORDINARY, repeat=length))
        for i, logp in zip(ids, token_logprobs([model], SRC[1:2, :2], ids).tolist(), strict=True):
            free = logp if length < 2 else logp[:-1]  # at the limit EOS is no choice
            probs[i] = math.exp(sum(free))
    assert_drawn_from(Counter(h.ids for h in found), probs, draws)
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 3, 1.0), (1.0, 0, 0.7), (1.5, 4, 0.8)]
)
def test_truncated_sampling(temperature, top_k, top_p):
    """The first token, against the definition written with lists."""
    model, draws = make("pre", 4), 4000
    options = SearchOptions(
        sample=True, n_best=draws, temperature=temperature, top_k=top_k, top_p=top_p, max_ratio=0, max_extra=2
    )
    (found,) = search([model], SRC[:1], options)
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
    first = Counter((h.ids or (EOS,))[0] for h in found)
    assert_drawn_from(first, {token: weights[token] / total for token in kept}, draws)


def test_seeds(model):
    def draw(seed, number=0, n_best=4):
        return search([model], SRC[:1], SearchOptions(sample=True, n_best=n_best, seed=seed), None, [number])[0]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(1) != draw(1, number=1)
    assert draw(1, n_best=1)[0].ids in [h.ids for h in draw(1)]  # more samples leave the first as they are


def test_a_nearly_cold_sample_is_greedy(model):
    cold = search([model], SRC, SearchOptions(sample=True, temperature=1e-4))
    greedy = search([model], SRC, SearchOptions(beam=1))
    assert [one.ids for (one,) in cold] == [one.ids for (one,) in greedy]


# ---------------------------------------------------------------------------------------------------------------------
# Parts and edges


@pytest.mark.parametrize("size", [7, 64, 700, 2560, 2561, 8000, 40063])
@pytest.mark.parametrize("k", [1, 2, 10])
def test_top_of_is_topk(size, k):
    x = torch.randn(5, size, generator=torch.Generator().manual_seed(size))
    x[0, : size - k] = -math.inf
    x[1, k:] = -math.inf
    top, at = top_of(x, min(k, size))
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
def test_longest(pieces, prefix, settings, expected):
    assert length_limit(pieces, prefix, SearchOptions(**settings)) == expected


def test_a_diverged_model_says_nothing(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    for options in (SearchOptions(), SearchOptions(beam=1), SearchOptions(sample=True, n_best=2, top_k=3)):
        assert [[h.ids for h in found] for found in search([model], SRC, options)] == [[()]] * 3


def test_a_model_in_training_is_refused(model):
    with pytest.raises(ValueError, match="eval"):
        search([model.train()], SRC, SearchOptions())


@pytest.mark.parametrize(
    "wrong",
    [
        {"beam": 0},
        {"beam": 2, "n_best": 3},
        {"alpha": -0.1},
        {"patience": 0.0},
        {"temperature": 0.0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"forbidden": (EOS,)},
        {"repetition_penalty": 0.0},
    ],
)
def test_wrong_options(wrong):
    with pytest.raises(NmtError, match=list(wrong)[-1]):
        SearchOptions(**wrong)


def test_all_wrong_options_at_once():
    with pytest.raises(
        NmtError, match=r"beam must be at least 1, not 0; .*temperature must be above 0 and at most 1000, not -1"
    ):
        SearchOptions(beam=0, temperature=-1)
