"""Results of a translation: the n best outputs of a line, with their scores, and the flags of the line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Output:
    """One of the n best translations of a line."""

    text: str
    score: float = 0.0  # logprob / length^alpha
    logprob: float = 0.0
    length: int = 0  # pieces, with the end mark; 0 if the model wrote nothing
    tokens: tuple[str, ...] = ()  # the pieces that the model wrote
    token_logprobs: tuple[float, ...] = ()  # of each piece and of the end mark; only with the option `tokens`
    alignment: tuple[tuple[int, int], ...] = ()  # (source word, target word), from 0; only with the option `align`


@dataclass(frozen=True)
class Translation:
    """A line and its n best translations, the best first. A blank line has none.

    Flags: split, loop, unfinished, restored, glossary, copied, unscored (docs/translate.md explains them).
    """

    line: int  # the number of the line in the input, from 1
    source: str
    n_best: tuple[Output, ...] = ()
    flags: tuple[str, ...] = ()
    parts: int = 1  # how many parts a long line was split into

    @property
    def best(self) -> Output:
        return self.n_best[0] if self.n_best else Output("")

    @property
    def text(self) -> str:
        return self.best.text

    @property
    def score(self) -> float:
        return self.best.score
