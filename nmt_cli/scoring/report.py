"""The report of `nmt score` and nmt_cli.score: every number with its signature.

`nmt score --format json` prints these fields under these names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BleuParts:
    precisions: tuple[float, ...]  # precision of 1-grams to 4-grams, in percent
    brevity_penalty: float
    hypothesis_length: int  # tokens
    reference_length: int  # tokens


@dataclass(frozen=True)
class SystemScore:
    system: str
    metric: str  # sacrebleu's name: BLEU, chrF2, chrF2++, TER; or COMET
    score: float
    signature: str
    mean: float | None = None  # mean of the bootstrap resamples
    interval: float | None = None  # half the width of the 95 % confidence interval
    p: float | None = None  # p-value of the paired test against the first system
    parts: BleuParts | None = None


@dataclass(frozen=True)
class SentenceScores:
    metric: str
    signature: str
    scores: dict[str, list[float]]  # for each system, the score of every line


@dataclass(frozen=True)
class LengthBin:
    low: int  # the fewest words of a line in this bin
    high: int  # the most words
    lines: int  # the number of lines
    scores: dict[str, float]  # for each system, the score of these lines


@dataclass(frozen=True)
class LengthScores:
    metric: str
    signature: str
    measured: str  # the text whose words are counted: "source", or the name of the first reference
    bins: list[LengthBin]


@dataclass(frozen=True)
class WorstLine:
    """A line with its texts. Systems are the keys of `scores` and `translations`."""

    line: int  # the first line is 1
    scores: dict[str, float]
    source: str | None
    references: list[str]
    translations: dict[str, str]


@dataclass(frozen=True)
class WorstLines:
    metric: str
    signature: str
    lines: list[WorstLine]  # the worst first, by the mean of all systems


@dataclass(frozen=True)
class ScoreReport:
    """All results of one call. A part that was not asked for is None."""

    lines: int
    references: list[str]  # the names of the references
    tokenizer: str | None  # BLEU's tokenizer; None if no number of the report is BLEU
    tokenizer_reason: str | None
    paired: str | None  # the paired test: "bs" or "ar"
    scores: list[SystemScore]
    sentences: list[SentenceScores] | None  # one entry per metric
    by_length: LengthScores | None
    worst: WorstLines | None
    warnings: list[str]


def lower_is_better(metric: str) -> bool:
    return metric == "TER"
