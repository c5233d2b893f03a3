"""The contract of an engine: Request objects go in, Hypothesis objects come out. This module needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np

from nmt_cli.errors import NmtError
from nmt_cli.recipe.schema import MOST_BEAM, Recipe
from nmt_cli.text.vocab import EOS, UNK, Vocab

Pair = tuple[Sequence[int], Sequence[int]]  # ids of a source and of its target


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search. Commands start from options_of(recipe) and replace single fields."""

    beam: int = 5  # hypotheses kept for each sentence
    n_best: int = 1  # hypotheses returned for each sentence; with `sample`, samples drawn
    alpha: float = 1.0  # score = sum(log p) / length^alpha + coverage penalty; sum and length count EOS
    length_penalty: Literal["power", "gnmt"] = "power"  # gnmt: ((5 + length) / 6)^alpha takes the place of length^alpha
    coverage_penalty: float = 0.0  # beta of `coverage_penalty`
    # Stop when patience * beam hypotheses have ended (Kasai et al. 2022). inf: stop when no open one can win.
    patience: float = math.inf
    max_ratio: float = 2.0  # longest output = max_ratio * source pieces + max_extra, EOS included
    max_extra: int = 10
    max_length: int = 0  # upper limit of the longest output, for models with limited positions; 0: no limit
    min_length: int = 0  # tokens before EOS; the longest output takes precedence
    forbidden: tuple[int, ...] = ()  # ids that are never written; PAD and BOS are always forbidden
    no_repeat_ngram: int = 0  # never repeat an n-gram of this many tokens (Paulus et al. 2017); 0: off
    # Above 1, lowers the logits of tokens already written (Keskar et al. 2019, computed as in CTranslate2). 1: off.
    repetition_penalty: float = 1.0
    sample: bool = False  # draw samples instead of searching; `beam` and `patience` are then ignored
    temperature: float = 1.0  # for sampling; a value below 1 sharpens the distribution
    top_k: int = 0  # sample among the k most probable tokens (Fan et al. 2018); 0: among all tokens
    top_p: float = 1.0  # sample among the fewest tokens whose probabilities reach this sum (Holtzman et al. 2019)
    seed: int = 1  # for sampling
    attention: bool = False  # also return cross-attention, which costs time
    generate: bool = False  # continue the prefix as a text of the source language; only decoder-only models can

    def __post_init__(self) -> None:
        checks = [
            ("beam", f"from 1 to {MOST_BEAM}", 1 <= self.beam <= MOST_BEAM),
            ("n_best", f"from 1 to {MOST_BEAM}", 1 <= self.n_best <= MOST_BEAM),
            ("n_best", f"at most beam = {self.beam}", self.sample or self.n_best <= self.beam),
            ("alpha", "from 0 to 10", 0 <= self.alpha <= 10),
            ("length_penalty", "power or gnmt", self.length_penalty in ("power", "gnmt")),
            ("coverage_penalty", "from 0 to 10", 0 <= self.coverage_penalty <= 10),
            ("patience", "above 0 and at most 1000", 0 < self.patience <= 1000 or self.patience == math.inf),
            ("max_ratio", "from 0 to 1000", 0 <= self.max_ratio <= 1000),
            ("forbidden", "without the end mark", EOS not in self.forbidden),
            ("repetition_penalty", "above 0", self.repetition_penalty > 0),
            ("temperature", "above 0 and at most 1000", 0 < self.temperature <= 1000),
            ("top_p", "above 0 and at most 1", 0 < self.top_p <= 1),
        ]
        for name in ("max_extra", "max_length", "min_length", "no_repeat_ngram", "top_k"):
            checks.append((name, "0 or more", getattr(self, name) >= 0))
        problems = [f"{name} must be {rule}, not {getattr(self, name)}" for name, rule, valid in checks if not valid]
        if problems:
            raise NmtError("; ".join(problems), "nmt translate --help explains the options of the search")

    def ended_to_stop(self, patience: float) -> int:
        """The number of ended hypotheses at which a search with this patience stops; CTranslate2 rounds the same."""
        return max(self.n_best, math.floor(patience * self.beam + 0.5))

    @property
    def width(self) -> int:
        """K: the number of hypotheses for each sentence."""
        return self.n_best if self.sample else self.beam


def options_of(recipe: Recipe, beam: int | None = None) -> SearchOptions:
    """The search options of a recipe, for every command and the validation. `beam` replaces the recipe's beam."""
    settings = recipe.translate
    return SearchOptions(
        beam=settings.beam if beam is None else beam,
        alpha=settings.alpha,
        length_penalty=settings.length_penalty,
        coverage_penalty=settings.coverage_penalty,
        max_ratio=settings.max_ratio,
        max_extra=settings.max_extra,
        max_length=recipe.model.max_positions,
        forbidden=(UNK,),  # a translation must not contain the unknown piece
    )


def sampling_options(samples: int, longest: int, seed: int) -> SearchOptions:
    """Options that draw samples of at most `longest` pieces, EOS included, from the model as it is."""
    return SearchOptions(sample=True, n_best=samples, max_ratio=0.0, max_extra=longest, seed=seed)


@dataclass(frozen=True)
class Hypothesis:
    ids: tuple[int, ...]  # without EOS
    score: float  # logprob / length^alpha, plus the coverage penalty
    logprob: float  # the sum of token_logprobs
    # One for each id and one for EOS. The CTranslate2 engine leaves them empty unless Request.tokens is set.
    token_logprobs: tuple[float, ...]
    finished: bool  # False: the length limit ended the hypothesis
    # (T+1,S): cross-attention of the last layer, averaged over heads and models; None unless it was requested.
    attention: np.ndarray | None = field(default=None, compare=False)
    # How much of the source is attended to (quality.py); None unless it was requested, or if there is no attention.
    coverage: float | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Request:
    """One sentence to translate."""

    source: tuple[int, ...]  # ids without EOS
    prefix: tuple[int, ...] = ()  # ids that the translation must begin with
    given: int = 0  # the first pieces of the prefix, whose log p counts as 0; the log p of its other pieces counts
    number: int = 0  # the line's number; samples depend on this number and the seed only, not on the batch
    attention: bool = False  # return attention
    tokens: bool = False  # return token_logprobs
    coverage: bool = False  # return coverage, which is cheaper than attention


def with_prefixes(request: Request, vocab: Vocab) -> Request:
    """The request with the ids that the vocabulary puts before every source and target, such as codes of languages."""
    source, target = vocab.source_prefix, vocab.target_prefix
    if not source and not target:
        return request
    given = len(target) + request.given
    return replace(request, source=(*source, *request.source), prefix=(*target, *request.prefix), given=given)


def without_prefixes(hypothesis: Hypothesis, vocab: Vocab) -> Hypothesis:
    """The answer to a request with prefixes, as if it had none. Its score keeps counting them."""
    source, target = len(vocab.source_prefix), len(vocab.target_prefix)
    if not source and not target:
        return hypothesis
    attention = None if hypothesis.attention is None else hypothesis.attention[target:, source:]
    ids, logprobs = hypothesis.ids[target:], hypothesis.token_logprobs[target:]
    return replace(hypothesis, ids=ids, token_logprobs=logprobs, attention=attention)


class Engine(Protocol):
    name: str
    batch_tokens: int  # the size of a batch, in source pieces with padding, at which this engine is fast

    def translate(self, requests: Sequence[Request], options: SearchOptions) -> list[list[Hypothesis]]:
        """The n best hypotheses of each request, best first. All requests ask for the same things."""

    def score(self, pairs: Sequence[Pair], options: SearchOptions) -> list[Hypothesis]:
        """Score given targets: one hypothesis for each pair, with attention if the options ask for it."""


def scored_target(ids: Sequence[int], token_logprobs: Sequence[float], options: SearchOptions) -> Hypothesis:
    """A given target as a hypothesis. `token_logprobs` has one entry for each id and one for EOS."""
    total = sum(token_logprobs)
    score = length_normalized(total, len(token_logprobs), options)
    return Hypothesis(tuple(ids), score, total, tuple(token_logprobs), finished=True)


def rescored(engine: Engine, request: Request, hypothesis: Hypothesis, options: SearchOptions) -> Hypothesis:
    """The hypothesis with the log p of each piece and of EOS, and with a score that counts all but the given pieces."""
    (scored,) = engine.score([(request.source, hypothesis.ids)], options)
    scored = without_given(scored, request.given, options)
    return replace(hypothesis, score=scored.score, logprob=scored.logprob, token_logprobs=scored.token_logprobs)


def without_given(scored: Hypothesis, given: int, options: SearchOptions) -> Hypothesis:
    """A scored target whose first `given` pieces have log p = 0. The length keeps counting them."""
    of_given = sum(scored.token_logprobs[:given])
    return replace(
        scored,
        score=scored.score - length_normalized(of_given, len(scored.token_logprobs), options),
        logprob=scored.logprob - of_given,
        token_logprobs=(*([0.0] * given), *scored.token_logprobs[given:]),
    )


def length_limit(source_pieces: int, prefix_pieces: int, options: SearchOptions) -> int:
    """L: the largest number of tokens that a translation may have, EOS included. The prefix and EOS always fit."""
    limit = int(options.max_ratio * source_pieces) + options.max_extra + (prefix_pieces if options.generate else 0)
    if options.max_length:
        limit = min(limit, options.max_length)
    return max(limit, prefix_pieces + 1)


def length_normalized(logprob: float, length: int, options: SearchOptions) -> float:
    """The score of a hypothesis, without coverage penalty. `length` counts EOS. "gnmt" is eq. 14 of Wu et al. 2016."""
    return logprob / ((5 + length) / 6 if options.length_penalty == "gnmt" else length) ** options.alpha


def coverage_penalty(attention: np.ndarray, source: int, beta: float) -> float:
    """Wu et al. 2016, eq. 14: beta * sum over the source pieces of log(min(a, 1)), where a is the attention that the
    piece gets from all steps, EOS included. attention (T+1,S). Less than 1e-9 counts as 1e-9."""
    received = attention[:, :source].astype(np.float64).sum(0)
    return float(beta * np.log(received.clip(1e-9, 1)).sum())


def joined_score(parts: Sequence[tuple[float, float, int]], options: SearchOptions) -> float:
    """The score of a text in parts (score, log p, length): log p, length and coverage penalty are sums."""
    if len(parts) == 1:
        return parts[0][0]
    logprob, length = sum(logprob for _, logprob, _ in parts), sum(length for _, _, length in parts)
    score = length_normalized(logprob, length, options) if length else 0.0
    if options.coverage_penalty:
        score += sum(score - length_normalized(logprob, length, options) for score, logprob, length in parts if length)
    return score
