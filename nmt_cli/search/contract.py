"""What an engine is to `nmt translate`: ids in, hypotheses out. torch_engine.py and ct2_engine.py are the two.

No torch here: the fast engine starts without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from nmt_cli.errors import NmtError
from nmt_cli.recipe.schema import Recipe
from nmt_cli.text.vocab import EOS, UNK


@dataclass(frozen=True)
class SearchOptions:
    """How to search. The defaults are plain beam search; beam = 1 is greedy."""

    beam: int = 5  # hypotheses kept for each sentence
    n_best: int = 1  # ... and returned; with `sample`, how many are drawn
    alpha: float = 1.0  # score = sum(log p) / length^alpha, EOS counted in both
    patience: float = math.inf  # stop at so many times the beam of ended ones (Kasai 2022); inf: when none open can win
    max_ratio: float = 2.0  # longest output = max_ratio * source pieces + max_extra, EOS included
    max_extra: int = 10
    max_length: int = 0  # ... and never more than this, for models that know so many positions; 0: no such limit
    min_length: int = 0  # tokens before EOS; gives way to the maximum
    forbidden: tuple[int, ...] = ()  # never written; nor are PAD and BOS
    no_repeat_ngram: int = 0  # no n tokens in a row twice (Paulus et al. 2017); 0: off
    repetition_penalty: float = 1.0  # on the logits of tokens written before (Keskar et al. 2019, as in CTranslate2)
    sample: bool = False  # draw instead of searching; `beam`, `patience` are not used
    temperature: float = 1.0  # of the draw: below 1 sharper
    top_k: int = 0  # draw among the k most probable (Fan et al. 2018); 0: all
    top_p: float = 1.0  # ... and the fewest that together have this probability (Holtzman et al. 2019)
    seed: int = 1  # of the draw
    attention: bool = False  # also return cross-attention, for alignments; costs time

    def __post_init__(self) -> None:
        problems = [f"{name} must be {wanted}, not {getattr(self, name)}" for name, wanted in self._problems()]
        if problems:
            raise NmtError("; ".join(problems), "look at the options of the search")

    def _problems(self) -> list[tuple[str, str]]:
        checks = [
            ("beam", "at least 1", self.beam >= 1),
            ("n_best", "at least 1", self.n_best >= 1),
            ("n_best", f"at most beam = {self.beam}", self.sample or self.n_best <= self.beam),
            ("alpha", "from 0 to 10", 0 <= self.alpha <= 10),
            ("patience", "above 0 and at most 1000", 0 < self.patience <= 1000 or self.patience == math.inf),
            ("max_ratio", "from 0 to 1000", 0 <= self.max_ratio <= 1000),
            ("max_extra", "0 or more", self.max_extra >= 0),
            ("max_length", "0 or more", self.max_length >= 0),
            ("min_length", "0 or more", self.min_length >= 0),
            ("forbidden", "without the end mark", EOS not in self.forbidden),
            ("no_repeat_ngram", "0 or more", self.no_repeat_ngram >= 0),
            ("repetition_penalty", "above 0", self.repetition_penalty > 0),
            ("temperature", "above 0 and at most 1000", 0 < self.temperature <= 1000),
            ("top_k", "0 or more", self.top_k >= 0),
            ("top_p", "above 0 and at most 1", 0 < self.top_p <= 1),
        ]
        return [(name, wanted) for name, wanted, fine in checks if not fine]

    def enough(self, patience: float) -> int:
        """Ended hypotheses with which a search of this patience stops; rounded as in CTranslate2."""
        return max(self.n_best, math.floor(patience * self.beam + 0.5))

    @property
    def width(self) -> int:
        """K: the hypotheses of a sentence."""
        return self.n_best if self.sample else self.beam


def options_of(recipe: Recipe, beam: int | None = None) -> SearchOptions:
    """The search of a trained model, as its recipe sets it. Every command and validation start from these options.

    The unknown piece is never part of a translation. `beam` replaces the recipe's.
    """
    settings = recipe.translate
    return SearchOptions(
        beam=settings.beam if beam is None else beam,
        alpha=settings.alpha,
        max_ratio=settings.max_ratio,
        max_length=recipe.model.max_positions,
        forbidden=(UNK,),
    )


@dataclass(frozen=True)
class Hypothesis:
    ids: tuple[int, ...]  # without EOS
    score: float  # logprob / length^alpha
    logprob: float  # sum of token_logprobs
    token_logprobs: tuple[float, ...]  # of each id, then of EOS; the fast engine has them only if asked
    finished: bool  # False: the maximum length ended it
    # (T+1,S), if asked for: cross-attention of the last layer, averaged over heads and models.
    attention: np.ndarray | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Request:
    """A sentence to translate. `number` is that of its line: what is sampled for it depends on nothing else."""

    source: tuple[int, ...]  # without EOS
    prefix: tuple[int, ...] = ()  # how the translation has to begin
    given: int | None = (
        None  # pieces of the prefix that cost nothing, None: all; the cost of others is told, not searched
    )
    number: int = 0
    attention: bool = False
    tokens: bool = False  # log p of each token is wanted too

    @property
    def free(self) -> int:
        return len(self.prefix) if self.given is None else self.given


class Engine(Protocol):
    name: str
    batch_tokens: int  # source pieces in a batch with which it is fast, padding included

    def translate(self, requests: Sequence[Request], options: SearchOptions) -> list[list[Hypothesis]]:
        """The n best of each. The requests are one batch, of like lengths, and all want the same things."""

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], alpha: float) -> list[Hypothesis]:
        """Given targets, as if they had been found."""


def rescored(engine: Engine, request: Request, best: Hypothesis, options: SearchOptions) -> Hypothesis:
    """With the log p of each piece, EOS and the part of a prefix that was not given included."""
    (scored,) = engine.score([(request.source, best.ids)], options.alpha)
    logprobs = (*([0.0] * request.free), *scored.token_logprobs[request.free :])
    total = sum(logprobs)
    score = length_normalized(total, len(logprobs), options.alpha)
    return replace(best, score=score, logprob=total, token_logprobs=logprobs)


def length_limit(pieces: int, prefix: int, options: SearchOptions) -> int:
    """L: tokens that a translation of so many source pieces may have, EOS included. A prefix always has room."""
    limit = int(options.max_ratio * pieces) + options.max_extra
    if options.max_length:
        limit = min(limit, options.max_length)
    return max(limit, prefix + 1)


def length_normalized(logprob: float, length: int, alpha: float) -> float:
    """The score: of so many tokens, EOS counted."""
    return logprob / length**alpha
