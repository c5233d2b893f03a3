"""Results do not depend on the batch, and finished sentences leave the batch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from support.search_oracle import (
    FAMILIES,
    SRC,
    Recurrent,
    assert_same,
    brute_force,
    every_family,
    family,
    transformer,
)
from torch import nn

from nmt_cli.search.beam import search
from nmt_cli.search.contract import Hypothesis, SearchOptions
from nmt_cli.text.vocab import EOS, PAD, UNK


def corpus(count: int, vocab: int, seed: int = 3) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 12, (count,), generator=generator).tolist()
    return [[*torch.randint(4, vocab, (n,), generator=generator).tolist(), EOS] for n in lengths]


def in_batches(models, lines, order, size, options, prefixes=None):
    """Translate the lines in this order and batch size. Return the results in the order of the lines."""
    results: list[list[Hypothesis]] = [[] for _ in lines]
    for first in range(0, len(order), size):
        numbers = order[first : first + size]
        src = nn.utils.rnn.pad_sequence([torch.tensor(lines[n]) for n in numbers], batch_first=True)
        chosen = None if prefixes is None else [prefixes[n] for n in numbers]
        for n, hypotheses in zip(numbers, search(models, src, options, chosen, numbers), strict=True):
            results[n] = hypotheses
    return results


SETTINGS = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4, "n_best": 3},
    "constrained": {"beam": 3, "min_length": 3, "no_repeat_ngram": 2, "repetition_penalty": 1.3, "forbidden": (UNK,)},
    "sample": {"sample": True, "n_best": 2},
    "top-p": {"sample": True, "top_p": 0.8, "top_k": 30, "temperature": 0.7},
}
# Some of these models write until the length limit, so a low limit makes the search short.
OPTIONS = {name: SearchOptions(**settings, max_ratio=1.5, max_extra=3) for name, settings in SETTINGS.items()}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, OPTIONS[kind], id=f"{name}-{kind}")
        for name, kind in [*itertools.product(("pre", "recurrent"), OPTIONS), *((name, "beam") for name in FAMILIES)]
    ],
)
def test_result_does_not_depend_on_the_batch(name, options):
    torch.manual_seed(5)
    vocab = 300  # large enough for the fast path of fast_topk
    if name in FAMILIES:
        model = family(FAMILIES[name], vocab).eval()
    else:
        model = (transformer(vocab=vocab) if name == "pre" else Recurrent(vocab)).eval()
    with torch.no_grad():
        model.output_weight[EOS] *= 2  # sentences end at different times
    lines = corpus(12, vocab)
    order = list(range(len(lines)))
    prefixes = [lines[n][: n % 3] if n % 2 and len(lines[n]) > 3 else [] for n in order]
    shuffled = torch.randperm(len(lines), generator=torch.Generator().manual_seed(1)).tolist()
    alone = in_batches([model], lines, order, 1, options, prefixes)
    assert len({h.ids for hypotheses in alone for h in hypotheses}) > 8
    for batch_order, size in [(order, 5), (shuffled, 12)]:
        batched = in_batches([model], lines, batch_order, size, options, prefixes)
        assert [[h.ids for h in hypotheses] for hypotheses in batched] == [
            [h.ids for h in hypotheses] for hypotheses in alone
        ]
        scores = [h.score for hypotheses in alone for h in hypotheses]
        assert [h.score for hypotheses in batched for h in hypotheses] == pytest.approx(scores, abs=1e-4)


def test_finished_sentences_leave_the_batch_and_memory_is_copied_only_then():
    seen = []

    class Watched(Recurrent):
        def step(self, prev, memory, state, attention=False):
            seen.append((len(prev), len(memory["keys"]), memory["keys"].data_ptr()))
            logits, weights, state = super().step(prev, memory, state, attention)
            logits[:, EOS] -= 50  # no sentence ends before its length limit
            return logits, weights, state

    torch.manual_seed(0)
    model = Watched().eval()
    src = torch.tensor([[4, 5, 6, 4, EOS], [5, 5, 5, 5, EOS], [6, 4, EOS, PAD, PAD]])
    search([model], src, SearchOptions(beam=2, patience=math.inf, alpha=2.0, max_ratio=2.0, max_extra=0))
    assert [rows for rows, _, _ in seen] == [3] + [6] * 3 + [4] * 4  # the length limits are 8, 8 and 4
    assert [rows for _, rows, _ in seen] == [3] * 4 + [2] * 4
    assert len({pointer for _, _, pointer in seen[:4]}) == 1
    assert len({pointer for _, _, pointer in seen[4:]}) == 1


def test_empty_batch(network):
    assert search([network], SRC[:0], SearchOptions()) == []


@every_family
def test_empty_source(network):
    (hypotheses,) = search([network], torch.tensor([[EOS]]), SearchOptions(beam=400, n_best=5, max_extra=4))
    assert_same(hypotheses, brute_force([network], torch.tensor([EOS]), SearchOptions(max_extra=4))[:5])
