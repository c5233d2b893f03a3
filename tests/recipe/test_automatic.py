"""The settings that nmt chooses: the rules of docs/automatic.md, by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from nmt_cli.recipe.automatic import SIZES, Candidate, Facts, choose_training, sizes_to_try, suits, vocab_size
from nmt_cli.recipe.load import load_recipe

DOCS = (Path(__file__).parent.parent.parent / "docs/automatic.md").read_text()


@pytest.mark.parametrize(
    ("characters", "different", "size"),
    [
        (200, 2, 500),  # the smallest vocabulary
        (4_000_000, 100, 4000),  # 2 * 2,000
        (1_000_000_000, 100, 32_000),  # the largest vocabulary
        (3000, 3000, 4500),  # 1.5 pieces for each character
    ],
)
def test_vocab_size_grows_with_the_square_root_of_the_text_and_covers_its_characters(characters, different, size):
    assert vocab_size(characters, different) == size


@pytest.mark.parametrize(
    ("stated", "tried"),
    [
        ({}, list(SIZES)),
        ({"dim": 512}, [SIZES[4]]),
        ({"dim": 300}, [{**SIZES[2], "dim": 300}]),
        ({"dim": 90}, [{**SIZES[0], "dim": 90, "heads": 2}]),  # 4 heads do not divide 90
        ({"decoder_layers": 1}, [{**size, "decoder_layers": 1} for size in SIZES]),
        ({"dropout": 0.5}, list(SIZES)),
    ],
)
def test_stated_keys_of_the_model_stay(stated, tried):
    assert sizes_to_try(stated) == tried


@pytest.mark.parametrize(
    ("parameters", "tokens", "minutes", "speed", "answer"),
    [
        (1_800_000, 479_000, 10, 5000, True),  # 3.8 parameters per token; 3,000,000 tokens in 10 minutes
        (3_000_000, 479_000, 10, 5000, False),  # 6.3 parameters per token
        (7_500_000, 1_500_000, 10, 2500, False),  # 1,500,000 tokens in 10 minutes are 0.2 per parameter
        (7_500_000, 1_500_000, 60, 2500, True),
        (7_500_000, 1_500_000, 0, 2500, True),  # no limit: 150 epochs
    ],
)
def test_a_model_suits_enough_data_and_enough_time(parameters, tokens, minutes, speed, answer):
    assert suits(Candidate(128, parameters, speed), Facts(tokens, minutes, 0, on_cpu=True)) is answer


@pytest.mark.parametrize(
    ("minutes", "limit", "expected"),
    [
        # 100,000 target tokens at 1,000 per second: 1 minute is 0.6 epochs, 60,000 tokens, 59 updates of 1024
        (1, 0, {"model.dropout": 0.05, "train.batch_tokens": 1024, "train.warmup": 10, "train.valid_lines": 100}),
        # 20 minutes are 12 epochs, 1,200,000 tokens, 1,172 updates of 1024
        (20, 0, {"model.dropout": 0.1, "train.batch_tokens": 1024, "train.warmup": 117, "train.valid_lines": 1000}),
        # 600 minutes would be 360 epochs: 150 are enough, 15,000,000 tokens, 7,324 updates of 2048
        (600, 0, {"model.dropout": 0.3, "train.batch_tokens": 2048, "train.warmup": 300, "train.epochs": 150.0}),
        # 5 epochs, stated by the user
        (0, 5, {"model.dropout": 0.1, "train.batch_tokens": 1024, "train.schedule": "linear", "train.patience": 0}),
        # no limit: validation ends the training
        (0, 0, {"model.dropout": 0.3, "train.schedule": "inverse_sqrt", "train.patience": 8, "train.ema": 0.997}),
    ],
)
def test_training_is_chosen_by_its_length(minutes, limit, expected):
    chosen = choose_training(Facts(100_000, minutes, limit, on_cpu=True), Candidate(128, 500_000, 1000))
    assert {key: chosen[key] for key in expected} == expected


def test_the_rate_falls_with_the_width_and_for_a_trained_model():
    def rate(dim: int, is_trained: bool = False) -> float:
        facts = Facts(100_000, 10, 0, on_cpu=True, is_trained=is_trained)
        return choose_training(facts, Candidate(dim, 500_000, 1000))["train.lr"]

    assert rate(128) == 0.008 and rate(512) == 0.004 and rate(128, is_trained=True) == 0.0016


@pytest.mark.parametrize("tokens", [500, 30_000, 1_000_000, 200_000_000])
@pytest.mark.parametrize("minutes", [0, 0.1, 5, 60, 6000])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_every_choice_is_a_valid_recipe_whose_warmup_is_at_most_a_tenth(tokens, minutes, on_cpu):
    model = Candidate(256, 1_000_000, 3000.0)
    facts = Facts(tokens, minutes, 0, on_cpu)
    chosen = choose_training(facts, model)
    train = load_recipe(None, {**chosen, "train.minutes": minutes, "train.auto": False}).train
    updates = model.epochs(facts) * tokens / train.batch_tokens
    assert train.warmup <= max(10, updates / 10)
    assert math.log2(train.batch_tokens).is_integer()


def test_the_docs_list_every_size():
    rows = [tuple(map(int, re.findall(r"\d+", row))) for row in re.findall(r"^\| \d+ \|.*$", DOCS, re.MULTILINE)]
    assert [tuple(size.values()) for size in SIZES] == rows
