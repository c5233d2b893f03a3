"""The estimates of quality.json: fits against independent computations, and the file."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from nmt_cli.errors import NmtError
from nmt_cli.search.quality import (
    BINS,
    Observed,
    coverage_of,
    features,
    fit,
    fit_confidence,
    fit_logistic,
    read_quality,
    reliability,
    write_quality,
)

RNG = np.random.default_rng(1)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_logistic_regression_agrees_with_gradient_descent():
    table = RNG.normal(3, 2, (300, 2))
    labels = RNG.random(300) < sigmoid(table[:, 0] - 0.5 * table[:, 1])
    fitted = fit_logistic(table, labels, ["a", "b"])
    z = (table - table.mean(0)) / table.std(0)
    targets = np.where(labels, (labels.sum() + 1) / (labels.sum() + 2), 1 / ((~labels).sum() + 2))
    weights, offset = np.zeros(2), 0.0
    for _ in range(20000):
        error = sigmoid(z @ weights + offset) - targets
        weights -= 0.01 * (z.T @ error + weights) / 3
        offset -= 0.01 * error.sum() / 3
    assert list(fitted.weights.values()) == pytest.approx(weights, abs=1e-4)
    assert fitted.offset == pytest.approx(offset, abs=1e-4)
    row = {"a": table[0, 0], "b": table[0, 1]}
    assert fitted(row) == pytest.approx(sigmoid(z[0] @ weights + offset), abs=1e-4)


def test_confidence_finds_a_known_law():
    """chrF is linear in the features with logistic noise, so the true probability of chrF above 50 is known."""
    table = RNG.normal(0, 1, (5000, 3))
    total = table @ [1.5, -0.5, 0.0] + 0.7
    chrf = 50 + 6 * (total + RNG.logistic(size=5000))
    fitted = fit_confidence(table, chrf, ["a", "b", "c"])
    found = np.array([fitted(dict(zip("abc", row, strict=True))) for row in table])
    assert np.abs(found - sigmoid(total)).max() < 0.06
    assert np.abs(found - sigmoid(total)).mean() < 0.02


@pytest.mark.parametrize("chrf", [90.0, 10.0])
def test_lines_that_are_all_the_same_give_finite_estimates(chrf):
    fitted = fit_confidence(RNG.normal(0, 1, (60, 2)), np.full(60, chrf), ["a", "b"])
    assert (fitted({"a": 0.0, "b": 0.0}) > 0.95) == (chrf > 50)
    assert math.isfinite(fitted.offset)


@pytest.mark.parametrize("logp", [-1e9, -math.inf, 1e9])
def test_extreme_figures_give_a_probability(logp):
    fitted = fit_logistic(RNG.normal(0, 1, (60, 1)), np.arange(60) % 2 == 0, ["logp"])
    assert 0 <= fitted({"logp": logp}) <= 1


def test_missing_feature_counts_as_its_mean():
    table = RNG.normal(5, 1, (80, 2))
    fitted = fit_logistic(table, table[:, 0] > 5, ["a", "b"])
    assert fitted({"a": 6.0}) == pytest.approx(fitted({"a": 6.0, "b": table[:, 1].mean()}))


def test_calibration_error_by_brute_force():
    confidences, good = RNG.random(500), RNG.random(500) < 0.5
    confidences[:2] = (0.0, 1.0)
    total = 0.0
    for number in range(BINS):
        last = number == BINS - 1
        here = [n for n, p in enumerate(confidences) if number / BINS <= p < (number + 1) / BINS or (last and p == 1)]
        total += abs(sum(confidences[n] for n in here) - sum(bool(good[n]) for n in here)) / 500
    error, bins = reliability(confidences, good)
    assert error == pytest.approx(total) and sum(one.lines for one in bins) == 500 and len(bins) == BINS


def test_coverage_by_brute_force_leaves_out_the_first_row_and_the_padding():
    attention = RNG.dirichlet(np.ones(6), 4)  # 4 rows: the last one may be that of the end mark
    rows, source = attention[1:3].copy(), 4
    attention[0] = np.nan
    found = coverage_of(attention, source, 3)
    assert found == pytest.approx(sum(max(row[j] for row in rows) for j in range(source)) / source)
    assert coverage_of(attention, source, 1) is None


def test_features_of_a_forced_prefix_count_free_pieces_only():
    assert features(3, 5, -4.0, given=2)["logp"] == -1.0
    assert features(3, 5, -6.0)["length_ratio"] == math.log(6 / 4)
    assert features(3, 5, -6.0, 0.5)["coverage"] == 0.5


def observed(count: int = 200) -> list[Observed]:
    lines = []
    for number in range(count):
        logp = -RNG.exponential(0.5)
        translation = features(20, 20, 21 * logp, 0.5 + 0.1 * RNG.random() if number else None)
        shorter = tuple(features(20, 20 - RNG.integers(4, 10), 21 * logp - 30) for _ in range(2))
        lines.append(Observed(translation, 70 + 30 * logp + RNG.normal(0, 5), features(20, 21, 21 * logp), shorter))
    return lines


def test_fit_is_calibrated_and_finds_omissions():
    lines = observed(400)
    quality = fit(lines)
    assert quality.lines == 400 and quality.calibration_error < 0.1 and quality.needs_coverage
    assert sum(quality.is_omission(line.translation) for line in lines) <= 0.02 * len(lines)
    assert all(quality.is_omission(figures) for line in lines for figures in line.omissions)


def mastered(count: int, copies: bool) -> list[Observed]:
    """The lines of a model that translates all of them well. Every fourth has a damaged copy."""
    lines = []
    for number in range(count):
        source = int(RNG.integers(4, 20))
        figures = [
            features(source, target, -(target + 1) * RNG.uniform(*costs), coverage + RNG.normal(0, 0.1))
            for target, costs, coverage in (
                (source + RNG.integers(-1, 3), (0.05, 0.3), 0.6),
                (source // 2, (1.5, 2.0), 0.5),
                (RNG.integers(2, 25), (0.7, 1.4), 0.35),
            )
        ]
        damaged = (figures[2], RNG.uniform(5, 30)) if copies and number % 4 == 0 else None
        lines.append(Observed(figures[0], RNG.uniform(80, 100), figures[0], (figures[1],), damaged))
    return lines


def test_damaged_copies_teach_a_good_model_what_bad_is():
    quality = fit(mastered(200, copies=True))
    assert quality.lines == sum(one.lines for one in quality.reliability) == 200
    assert quality.confidence(features(12, 12, -2.0, 0.6)) > 0.95
    assert quality.confidence(features(8, 12, -14.0, 0.4)) < 0.1
    assert quality.calibration_error < 0.05


@pytest.mark.parametrize("lines", [mastered(200, copies=False), mastered(36, copies=True)])
def test_too_few_bad_lines_give_no_estimates(lines):
    assert fit(lines) is None


def test_too_few_good_lines_give_no_estimates():
    assert fit([replace(line, chrf=5.0) for line in mastered(200, copies=True)]) is None


def test_a_long_translation_is_no_omission():
    quality = fit(mastered(200, copies=True))
    assert quality.is_omission(features(10, 5, -18.0)) and not quality.is_omission(features(10, 14, -45.0))


def test_file_holds_the_estimates_and_is_read_back(tmp_path):
    quality, path = fit(observed()), tmp_path / "quality.json"
    write_quality(path, quality)
    again = read_quality(path)
    figures = features(12, 14, -9.0, 0.5)
    assert again.confidence(figures) == pytest.approx(quality.confidence(figures), abs=1e-4)
    assert again.lines == 200 and len(again.reliability) == BINS
    assert read_quality(tmp_path / "none.json") is None


def break_weights(table):
    table["confidence"]["weights"].pop("logp")


DAMAGES = [
    lambda table: table.pop("omission"),
    lambda table: table.update(lines="many"),
    lambda table: table.update(reliability=3),
    lambda table: table["confidence"].update(weights=[1, 2]),
    lambda table: table["confidence"]["scales"].update(logp=0),
    break_weights,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_is_an_error_that_names_it(tmp_path, damage):
    path = tmp_path / "quality.json"
    write_quality(path, fit(observed()))
    table = json.loads(path.read_text())
    damage(table)
    path.write_text(json.dumps(table))
    with pytest.raises(NmtError, match=r"quality\.json is damaged"):
        read_quality(path)
