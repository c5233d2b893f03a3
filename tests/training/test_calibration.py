"""The estimates that a training fits at its end."""

from __future__ import annotations

import math
import random

import pytest
import torch

from nmt_cli.model.device import Compute
from nmt_cli.recipe.load import load_recipe
from nmt_cli.text.alignment import words_of
from nmt_cli.text.lines import read_lines
from nmt_cli.training.calibration import calibrate, leave_out
from nmt_cli.training.distributed import World
from nmt_cli.translate.translator import load


@pytest.fixture
def calibrated(model, trained):
    """calibrated(seconds) calibrates the small model on its validation lines."""
    recipe = load_recipe(model / "recipe.toml")
    compute = Compute(torch.device("cpu"), "fp32", "")
    return lambda seconds: calibrate(trained.model, recipe, trained.vocab, compute, World(0, 1), seconds)


def test_calibration_is_repeatable_and_time_limits_the_lines(calibrated, model):
    whole = calibrated(math.inf)
    assert whole.lines == len(list(read_lines(model.parent / "data/valid.target.txt")))
    assert whole == calibrated(math.inf)
    part = calibrated(0)
    assert part is None or part.lines < whole.lines


def test_translation_sees_the_figures_of_the_calibration(calibrated, model):
    """The share of good translations and the mean confidence are equal on the lines of the fit."""
    whole = calibrated(math.inf)
    sources = list(read_lines(model.parent / "data/valid.source.txt"))
    with load(model, engine="torch", workers=1) as translator:
        found = [one.confidence for one in translator.translate(sources, protect=False, split=False)]
    mean = sum(one.lines * one.confidence for one in whole.reliability) / whole.lines
    assert sum(found) / len(found) == pytest.approx(mean, abs=0.02)


def test_too_few_validation_lines_give_no_estimates(train_toy):
    result, _ = train_toy("train.steps=4")
    assert (result.run / "model/ctranslate2").exists() and not (result.run / "model/quality.json").exists()


def test_planted_omissions_leave_out_words_in_a_row(trained):
    for seed, text in enumerate(["Le chat dort.", "Le petit chat voit le grand chien dans le jardin.", "", "Oui"] * 20):
        ids = trained.vocab.target.encode(text)
        shorter = leave_out(ids, trained.vocab, random.Random(seed))
        words, rest = (trained.vocab.target.decode(one).split() for one in (ids, shorter))
        if len(words) < 4:
            assert shorter == ids
            continue
        assert 0.1 <= 1 - len(rest) / len(words) <= 0.6 and rest[-1] == words[-1]
        begin = next((n for n, word in enumerate(rest) if word != words[n]), len(rest))
        assert rest == words[:begin] + words[len(words) - len(rest) + begin :]
        assert len(words_of(trained.vocab.target.id_to_piece(shorter))) == len(rest)
