"""How good is a translation? Two estimates from figures that the search has anyway: confidence and omission.

Both are logistic regressions with a handful of weights. `nmt train` fits them on validation lines at its end
(training/calibration.py) and writes them to the model folder. `nmt translate` applies them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli.errors import NmtError
from nmt_cli.files import read_json, replace_file

GOOD = 50.0  # a translation counts as good if its sentence chrF is above this
FALSE_ALARMS = 0.01  # the share of clean validation lines that are flagged as omissions
FEWEST_LINES = 50  # no estimate is fitted on fewer validation lines
FEWEST_OF_A_KIND = 10  # nor on fewer good translations, nor on fewer bad ones
NEEDED = f"{FEWEST_LINES} validation lines with {FEWEST_OF_A_KIND} good and {FEWEST_OF_A_KIND} bad translations"
OMISSION_FEATURES = ("logp", "length_ratio")  # coverage by attention brought nothing more (docs/translate.md)
BINS = 10  # of the reliability diagram
_FOLDS = 5  # of the cross-validation behind the reliability diagram

Features = Mapping[str, float]


def coverage_of(attention: np.ndarray, source: int, target: int) -> float | None:
    """How much of the source is attended to: the most attention of each source piece, averaged. From 0 to 1.

    `attention` has at least `target` rows and `source` columns. Its first row is left out, because CTranslate2 may have
    it wrong (ct2_engine.py). None if there is no other row.
    """
    weights = attention[1:target, :source]
    return float(weights.max(0).mean()) if weights.size else None


def features(source: int, target: int, logprob: float, coverage: float | None = None, given: int = 0) -> Features:
    """The figures of a translation of `target` pieces, `given` of them forced, of a source of `source` pieces."""
    figures = {
        "logp": logprob / (target + 1 - given),
        "source_length": math.log(source + 1),
        "length_ratio": math.log((target + 1) / (source + 1)),
    }
    return figures if coverage is None else {**figures, "coverage": coverage}


@dataclass(frozen=True)
class Logistic:
    """p = 1 / (1 + exp(-sum)), where sum = offset + sum of weight * (feature - mean) / scale."""

    offset: float
    means: dict[str, float]
    scales: dict[str, float]
    weights: dict[str, float]

    def __call__(self, figures: Features) -> float:
        """The probability. A feature that is missing counts as its mean."""
        total = self.offset
        for name, weight in self.weights.items():
            if name in figures:
                total += weight * (figures[name] - self.means[name]) / self.scales[name]
        return 0.5 + 0.5 * math.tanh(total / 2)  # the same as 1 / (1 + exp(-total)), without overflow


@dataclass(frozen=True)
class Bin:
    """A bar of the reliability diagram: the translations whose confidence is in one tenth of the range."""

    lines: int
    confidence: float  # mean
    good: float  # the share of good translations


@dataclass(frozen=True)
class Quality:
    """The content of quality.json."""

    good: float  # a translation counts as good if its sentence chrF is above this
    lines: int  # validation lines of the fit, without the damaged copies
    confidence: Logistic
    omission: Logistic
    omission_above: float  # translations of the model with a higher probability are flagged
    omission_above_given: float  # the same for given translations (--score-only)
    calibration_error: float  # the mean distance of confidence and share of good translations in `reliability`
    reliability: tuple[Bin, ...]  # each line was estimated by a fit on other lines

    @property
    def needs_coverage(self) -> bool:
        return "coverage" in self.confidence.weights

    def is_omission(self, figures: Features, given: bool = False) -> bool:
        """Whether the translation seems to leave something out. One that is long for its source is never flagged."""
        is_short = figures["length_ratio"] < self.confidence.means["length_ratio"]
        return is_short and self.omission(figures) > (self.omission_above_given if given else self.omission_above)


@dataclass(frozen=True)
class Observed:
    """A validation line: the figures of its translation, and of what it is compared with."""

    translation: Features
    chrf: float  # of the translation
    reference: Features
    omissions: tuple[Features, ...]  # the translation and the reference, with a part left out
    damaged: tuple[Features, float] | None = None  # the translation of a damaged copy of the source, and its chrF


def fit(lines: Sequence[Observed]) -> Quality | None:
    """The estimates. None if there are too few good translations or too few bad ones to tell them apart."""
    confidence = _fit_confidence(lines)
    if confidence is None:
        return None
    # Estimate each fifth of the lines by a fit on the others: figures of lines that were fitted would be too good.
    held_out = np.empty(len(lines))
    for fold in range(_FOLDS):
        others = _fit_confidence([line for n, line in enumerate(lines) if n % _FOLDS != fold]) or confidence
        held_out[fold::_FOLDS] = [others(line.translation) for line in lines[fold::_FOLDS]]
    error, bins = reliability(held_out, np.array([line.chrf for line in lines]) > GOOD)

    translations, references = [line.translation for line in lines], [line.reference for line in lines]
    omissions = [figures for line in lines for figures in line.omissions]
    clean = [*translations, *references]
    planted = np.array([0] * len(clean) + [1] * len(omissions))
    omission = fit_logistic(_table([*clean, *omissions], OMISSION_FEATURES), planted, OMISSION_FEATURES)
    above, above_given = (
        float(np.quantile([omission(figures) for figures in clean_lines], 1 - FALSE_ALARMS))
        for clean_lines in (translations, references)
    )
    return Quality(GOOD, len(lines), confidence, omission, above, above_given, error, bins)


def _fit_confidence(lines: Sequence[Observed]) -> Logistic | None:
    """The fit on the translations of the lines and of their damaged copies."""
    examples = [(line.translation, line.chrf) for line in lines] + [line.damaged for line in lines if line.damaged]
    chrf = np.array([value for _, value in examples])
    if min((chrf > GOOD).sum(), (chrf <= GOOD).sum()) < FEWEST_OF_A_KIND:
        return None
    names = max((tuple(figures) for figures, _ in examples), key=len)  # a translation of one piece has no coverage
    return fit_confidence(_table([figures for figures, _ in examples], names), chrf, names)


def fit_confidence(table: np.ndarray, chrf: np.ndarray, names: Sequence[str]) -> Logistic:
    """The probability that chrF is above GOOD.

    A regression of chrF finds the direction, because chrF tells more about a line than good or not. Logistic regression
    then turns the expected chrF into a probability (Platt 1999). Both are linear, so they are one set of weights.
    """
    means, scales = table.mean(0), table.std(0) + 1e-9
    z = (table - means) / scales
    weights = np.linalg.solve(z.T @ z + 10 * np.eye(len(names)), z.T @ (chrf - chrf.mean()))
    platt = fit_logistic((z @ weights)[:, None], chrf > GOOD, ["chrf"])
    slope = platt.weights["chrf"] / platt.scales["chrf"]
    return _logistic(platt.offset - slope * platt.means["chrf"], means, scales, slope * weights, names)


def fit_logistic(table: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> Logistic:
    """Logistic regression by Newton's method, with a small L2 penalty."""
    means, scales = table.mean(0), table.std(0) + 1e-9
    z = np.column_stack([np.ones(len(table)), (table - means) / scales])
    positive = labels.sum()
    # Platt's targets are a little less than 1 and more than 0: labels that are all the same give finite weights.
    targets = np.where(labels, (positive + 1) / (positive + 2), 1 / (len(labels) - positive + 2))
    penalty = np.diag([0.0] + [1.0] * len(names))
    weights = np.zeros(z.shape[1])
    for _ in range(100):
        p = 1 / (1 + np.exp(-np.clip(z @ weights, -30, 30)))
        hessian = (z * (p * (1 - p))[:, None]).T @ z + penalty + 1e-9 * np.eye(len(weights))
        step = np.linalg.solve(hessian, z.T @ (p - targets) + penalty @ weights)
        weights -= step / max(1.0, float(np.abs(step).max()))  # a full Newton step can overshoot far from the optimum
        if np.abs(step).max() < 1e-9:
            break
    return _logistic(weights[0], means, scales, weights[1:], names)


def _logistic(
    offset: float, means: np.ndarray, scales: np.ndarray, weights: np.ndarray, names: Sequence[str]
) -> Logistic:
    columns = [dict(zip(names, column.tolist(), strict=True)) for column in (means, scales, weights)]
    return Logistic(float(offset), *columns)


def _table(rows: Sequence[Features], names: Sequence[str]) -> np.ndarray:
    """(rows, features). A feature that is missing in a row counts as the mean of the others."""
    table = np.array([[row.get(name, np.nan) for name in names] for row in rows])
    return np.where(np.isnan(table), np.nanmean(table, 0), table)


def reliability(confidences: np.ndarray, good: np.ndarray) -> tuple[float, tuple[Bin, ...]]:
    """The expected calibration error, and the bins of equal width that it is computed from."""
    numbers = np.minimum((confidences * BINS).astype(int), BINS - 1)
    bins = []
    for number in range(BINS):
        here = numbers == number
        count = int(here.sum())
        means = (float(confidences[here].mean()), float(good[here].mean())) if count else ((number + 0.5) / BINS, 0.0)
        bins.append(Bin(count, *means))
    error = sum(one.lines * abs(one.confidence - one.good) for one in bins) / len(confidences)
    return error, tuple(bins)


def write_quality(path: Path, quality: Quality) -> None:
    replace_file(path, json.dumps(_rounded(asdict(quality)), indent=1) + "\n")


def read_quality(path: Path) -> Quality | None:
    """The estimates of a model. None if it has no such file: an older model, or one with too few validation lines."""
    if not path.exists():
        return None
    table = read_json(path, "the model's")
    try:
        return from_json(table)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        hint = "delete the file and use --no-verify: the model then translates without confidence"
        raise NmtError(f"{path} is damaged, or written by another version of nmt: {error}", hint) from None


def from_json(table: dict[str, Any]) -> Quality:
    logistics = [_read_logistic(table[name]) for name in ("confidence", "omission")]
    names = ("good", "omission_above", "omission_above_given", "calibration_error")
    numbers = {name: float(table[name]) for name in names}
    bins = tuple(Bin(int(one["lines"]), float(one["confidence"]), float(one["good"])) for one in table["reliability"])
    return Quality(
        lines=int(table["lines"]), confidence=logistics[0], omission=logistics[1], reliability=bins, **numbers
    )


def _read_logistic(table: dict[str, Any]) -> Logistic:
    columns = [{str(k): float(v) for k, v in table[name].items()} for name in ("means", "scales", "weights")]
    if len({frozenset(column) for column in columns}) != 1 or not all(columns[1].values()):
        raise ValueError("the features of means, scales and weights differ")
    return Logistic(float(table["offset"]), *columns)


def _rounded(value: Any) -> Any:
    """Six digits are enough, and the file stays readable."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
