"""Small models for the tests of the search, and brute force: every sequence is enumerated and scored by `decode`.

`decode` has neither a beam nor a state, so it is an independent check of the search.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.model.base import Seq2Seq, select
from nmt_cli.model.build import build_model
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe import schema as recipe
from nmt_cli.search.contract import Hypothesis, SearchOptions, length_limit
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK

VOCAB = 7
ORDINARY = [UNK, 4, 5, 6]
SRC = torch.tensor([[4, 5, 6, EOS], [5, EOS, PAD, PAD], [6, 4, EOS, PAD]])
# The length limits of the three sentences are then 5, 3 and 4, which allow 341, 21 and 85 sequences.
SHORT = {"max_ratio": 1.0, "max_extra": 2}


class Recurrent(Seq2Seq):
    """The smallest model with everything that a search must handle: two states of different shape, and attention."""

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
        memory = select(
            memory, torch.arange(len(prev)) // (len(prev) // len(memory["keys"]))
        )  # K rows share a row of memory
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
        model.output.weight *= 3  # otherwise all tokens are almost equally probable
    return model


def family(config: recipe.Model, vocab: int = VOCAB) -> Seq2Seq:
    """A model of another family. All its weights are random, so that some tokens are much more probable than others."""
    model = build_model(config, vocab, vocab)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


FAMILIES: dict[str, recipe.Model] = {
    "bottleneck": recipe.Rnn(cell="gru", dim=8, attention="none", context="every", tie="none"),
    "rnn": recipe.Rnn(dim=8, attention="additive", decoder_layers=2, input_feeding=True, span="monotonic", radius=1),
    "heads": recipe.Rnn(dim=8, attention="scaled_dot", projections=True, heads=2),
    "predictive": recipe.Rnn(cell="rnn", dim=8, attention="general", span="predictive", radius=2),
    "before": recipe.Rnn(dim=8, attention="additive", order="before", decoder_layers=2, hard=True),
    "gnmt": recipe.Rnn(
        "rnn", "lstm", 8, 3, 3, "both_first", "residual", attention="additive", order="bottom", context_to_all=True
    ),
    "deep-att": recipe.Rnn("rnn", "lstm", 8, 2, 2, "interleaved", "fast_forward", attention="dot", order="bottom"),
    "conv": recipe.Conv("conv", 8, 3, 1, 2, 64),
    "bytenet": recipe.ByteNet("bytenet", 8, 3, 1, 2, cycle=2),
    "experts": recipe.Transformer("transformer", 8, 2, 8, 1, 1, tie="none", experts=3),
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


# For tests that check the models as much as the search.
every_family = pytest.mark.parametrize("network", MODELS, indirect=True)


def unpadded(row: Tensor) -> Tensor:
    """A row of SRC as a batch of one sentence without padding."""
    return row[None, : int((row != PAD).sum())]


def without_pad_and_bos(logits: Tensor) -> Tensor:
    """The search never writes PAD and BOS, and gives their probability to the other tokens."""
    logits[..., [PAD, BOS]] = -math.inf
    return logits


@torch.no_grad()
def token_logprobs(models: list[Seq2Seq], src: Tensor, ids: list[tuple[int, ...]], penalty: float = 1.0) -> Tensor:
    """(N,T+1): log p of each token and of EOS, for N sequences of the same length."""
    tgt = torch.tensor(ids, dtype=torch.long).view(len(ids), -1)
    tgt_in = F.pad(tgt, (1, 0), value=BOS)
    probs = []
    for model in models:
        memory = {name: x.expand(len(ids), *x.shape[1:]) for name, x in model.encode(src).items()}
        logits = model.decode(tgt_in, memory)[0]
        for n, t in itertools.product(range(len(ids)), range(tgt_in.size(1))) if penalty != 1 else ():
            for token in set(ids[n][:t]):
                logits[n, t, token] *= penalty if logits[n, t, token] < 0 else 1 / penalty
        probs.append(without_pad_and_bos(logits).softmax(2))
    logp = (sum(probs) / len(probs)).log()
    return logp.gather(2, F.pad(tgt, (0, 1), value=EOS)[:, :, None])[:, :, 0]


@torch.no_grad()
def coverage(model: Seq2Seq, src: Tensor, ids: list[tuple[int, ...]]) -> list[float]:
    """For N sequences of the same length: the sum over the words of the source of log(min(attention to the word, 1)).

    0 if the model has no attention.
    """
    memory = {name: x.expand(len(ids), *x.shape[1:]) for name, x in model.encode(src).items()}
    _, weights = model.decode(torch.tensor([[BOS, *i] for i in ids]), memory, attention=True)
    if not weights or "cross" not in weights:
        return [0.0] * len(ids)
    heads = weights["cross"][:, -1, :, :, :-1]  # (N,H,T,S) of the last layer, without EOS
    received = heads.mean(1).sum(1).tolist()
    return [sum(math.log(min(max(weight, 1e-9), 1.0)) for weight in row) for row in received]


def brute_force(
    models: list[Seq2Seq],
    row: Tensor,
    options: SearchOptions,
    allowed: Callable[[tuple[int, ...]], bool] = lambda ids: True,
    prefix: tuple[int, ...] = (),
) -> list[tuple[tuple[int, ...], float]]:
    """Every sequence within the length limit, best first, with its score."""
    src = unpadded(row)
    sequences = []
    limit = length_limit(src.size(1) - 1, len(prefix), options)
    for length in range(limit):
        ids = [ids for ids in itertools.product(ORDINARY, repeat=length) if ids[: len(prefix)] == prefix]
        ids = [i for i in ids if allowed(i)]
        if ids:
            # The log p of a prefix counts as 0.
            sums = token_logprobs(models, src, ids, options.repetition_penalty)[:, len(prefix) :].sum(1).tolist()
            divisor = (5 + length + 1) ** options.alpha / (5 + 1) ** options.alpha
            divisor = divisor if options.length_penalty == "gnmt" else (length + 1) ** options.alpha
            beta = options.coverage_penalty
            penalties = [beta * log for log in coverage(models[0], src, ids)] if beta else [0.0] * len(ids)
            sequences += [(i, s / divisor + penalty) for i, s, penalty in zip(ids, sums, penalties, strict=True)]
    return sorted(sequences, key=lambda pair: -pair[1])


def assert_same(hypotheses: list[Hypothesis], expected: list[tuple[tuple[int, ...], float]]) -> None:
    assert [h.ids for h in hypotheses] == [ids for ids, _ in expected]
    assert [h.score for h in hypotheses] == pytest.approx([score for _, score in expected], abs=1e-5)
