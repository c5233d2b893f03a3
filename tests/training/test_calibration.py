"""The estimates that a training fits at its end."""

from __future__ import annotations

import math
import random

import pytest
import torch
from support.small_language import TEST

from nmt_cli.model.device import Compute
from nmt_cli.recipe import schema as recipe
from nmt_cli.recipe.load import load_recipe
from nmt_cli.store.log import Note
from nmt_cli.text.alignment import words_of
from nmt_cli.text.lines import read_lines
from nmt_cli.text.vocab import learn, load_vocab, write_vocab
from nmt_cli.training.calibration import calibrate, damaged, leave_out
from nmt_cli.training.distributed import World
from nmt_cli.translate.translator import load


@pytest.fixture(scope="module")
def calibrated(model, trained):
    """calibrated(seconds) calibrates the small model on its validation lines."""
    recipe = load_recipe(model / "recipe.toml")
    compute = Compute(torch.device("cpu"), "fp32", "")
    return lambda seconds: calibrate(trained.model, recipe, trained.vocab, compute, World(0, 1), seconds)


@pytest.fixture(scope="module")
def whole(calibrated):
    """The estimates from all validation lines."""
    return calibrated(math.inf)


def test_calibration_is_repeatable_and_time_limits_the_lines(calibrated, whole, model, monkeypatch):
    assert whole.lines == len(list(read_lines(model.parent / "data/valid.target.txt")))
    part = calibrated(0)
    assert part is None or part.lines < whole.lines
    monkeypatch.setattr("nmt_cli.training.calibration.LINES", 80)
    few = calibrated(math.inf)
    assert few.lines == 80 and few == calibrated(math.inf)


def test_translation_sees_the_figures_of_the_calibration(whole, model):
    """The share of good translations and the mean confidence are equal on the lines of the fit."""
    sources = list(read_lines(model.parent / "data/valid.source.txt"))
    with load(model, engine="torch", workers=1) as translator:
        found = [one.confidence for one in translator.translate(sources, protect=False, split=False)]
    mean = sum(one.lines * one.confidence for one in whole.reliability) / whole.lines
    assert sum(found) / len(found) == pytest.approx(mean, abs=0.02)


def test_too_few_validation_lines_give_no_estimates(train_toy):
    result, events = train_toy("train.steps=4")
    assert any("the model gives no confidence" in event.text for event in events if isinstance(event, Note))
    assert (result.run / "model/ctranslate2").exists() and not (result.run / "model/quality.json").exists()


def test_every_fourth_line_has_a_copy_whose_words_are_replaced(trained):
    lines = [source for source, _ in TEST[:200]]
    sources = trained.vocab.source.encode(lines)
    copies = trained.vocab.source.decode(damaged(sources, trained.vocab, 0, random.Random(1)))
    assert len(copies) == 50
    known = {word for line in lines for word in line.split()}
    shares = []  # of the words of a copy that stayed in their places, and of words that no line has
    for line, copy in zip(lines[::4], copies, strict=True):
        before, after = line.split(), copy.split()
        same = sum(a == b for a, b in zip(before, after, strict=False))
        shares.append((same / len(before), sum(word not in known for word in after) / len(after)))
        assert 0 < len(after) <= len(before)
    kept, unknown = (sum(column) / 50 for column in zip(*shares, strict=True))
    assert 0.1 < kept < 0.5 and 0.3 < unknown < 0.7
    assert max(map(len, damaged(sources, trained.vocab, 8, random.Random(1)))) == 7  # the end mark needs a position


def test_damaged_copies_of_a_script_without_spaces(tmp_path):
    settings = recipe.Vocab(size=40)
    write_vocab(
        tmp_path / "vocab",
        {"joint": learn(iter(["猫がいる。", "犬は家にいる。"] * 9), settings, "", False)},
        recipe.Data(),
        settings,
    )
    vocab = load_vocab(tmp_path / "vocab")
    copies = damaged(vocab.source.encode(["猫がいる。", ""] * 20), vocab, 0, random.Random(1))
    texts = vocab.source.decode(copies)
    assert len(texts) == 10 and len(set(texts)) > 5 and not any(" " in text for text in texts)


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
