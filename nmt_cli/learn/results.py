"""The parts of a claim and of its result. The terminal and the page draw the same data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nmt_cli.learn.lab import Lab

SEEDS = (1, 2, 3)
Figures = Mapping[str, float]  # what one seed measured, by name


@dataclass(frozen=True)
class Curves:
    """Curves over one axis, by name: (x, y) pairs. `powers`: y is drawn as a power of ten."""

    title: str
    axis: str
    curves: Mapping[str, Sequence[tuple[int, float]]]
    powers: bool = False


@dataclass(frozen=True)
class Bars:
    title: str
    bars: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class Maps:
    """Maps of weights, none negative, by name. All have the same rows and columns."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    maps: Mapping[str, Sequence[Sequence[float]]]


Picture = Curves | Bars | Maps


@dataclass(frozen=True)
class Measurement:
    """What one seed measured. The picture shows this seed."""

    figures: Figures
    picture: Picture


@dataclass(frozen=True)
class Claim:
    """A claim, the rule that decides whether it holds, and the experiment.

    `holds` is the rule as code: it sees the figures of all seeds. `rule` says the same in words.
    """

    name: str
    sentence: str
    rule: str
    lesson: str  # a paragraph for students: the reason, and how the experiment shows it
    measure: Callable[[Lab, int], Measurement]  # the experiment with one seed
    holds: Callable[[Sequence[Figures]], bool]


@dataclass(frozen=True)
class Result:
    """A claim that was run."""

    claim: Claim
    measurements: Mapping[int, Measurement]  # by seed
    held: bool

    @property
    def picture(self) -> Picture:
        return next(iter(self.measurements.values())).picture


def run(claim: Claim, lab: Lab, seeds: Sequence[int] = SEEDS) -> Result:
    measurements = {seed: claim.measure(lab, seed) for seed in seeds}
    return Result(claim, measurements, claim.holds([each.figures for each in measurements.values()]))
