"""The settings that nmt chooses: the rules of docs/automatic.md, by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from nmt_cli.recipe.automatic import SIZES, Candidate, Facts, choose_training, sizes_to_try, suits, vocab_size
from nmt_cli.recipe.load import load_recipe

TOKENS = 100_000  # on both sides of the data, in one pass
FLOPS = 3e11  # of one pass
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
        ({"heads": 128}, [{**size, "heads": 128} for size in SIZES if size["dim"] in (128, 256, 384, 512, 1024)]),
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
        (66_000_000, 12_000_000, 0, 600, True),  # no limit: 51,840,000 tokens in a day
        (66_000_000, 12_000_000, 0, 500, False),  # 43,200,000 tokens in a day are 0.65 per parameter
    ],
)
def test_a_model_suits_enough_data_and_enough_time(parameters, tokens, minutes, speed, answer):
    assert suits(Candidate(128, parameters, speed, FLOPS), Facts(tokens, tokens, minutes, 0, on_cpu=True)) is answer


@pytest.mark.parametrize(("limit", "answer"), [({}, True), ({"flops": 20 * FLOPS}, True), ({"flops": FLOPS}, False)])
def test_a_model_suits_enough_operations(limit, answer):
    """2,000,000 target tokens, or 100,000, for 500,000 parameters."""
    facts = Facts(TOKENS, TOKENS, 0, 0, on_cpu=True, **limit)
    assert suits(Candidate(128, 500_000, 1000, FLOPS), facts) is answer


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
    facts = Facts(TOKENS, TOKENS, minutes, limit, on_cpu=True)
    chosen = choose_training(facts, Candidate(128, 500_000, 1000, FLOPS))
    assert {key: chosen[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        # 150 epochs, 15,000,000 tokens, are 916 updates of 16,384
        ({"batch_tokens": 16_384}, {"train.batch_tokens": 16_384, "train.warmup": 91, "train.ema": 0.978}),
        # ... 1,831 updates of 4 batches of 2048
        ({"accumulate": 4}, {"train.batch_tokens": 2048, "train.warmup": 183, "train.ema": 0.989}),
        # ... 916 updates of 16 batches of 1024: 2048 would give 458
        ({"accumulate": 16}, {"train.batch_tokens": 1024, "train.warmup": 91, "train.ema": 0.978}),
        # ... 229 updates
        ({"batch_tokens": 16_384, "accumulate": 4}, {"train.warmup": 22, "train.ema": 0.913}),
        # 600 updates of 1024 are 6.1 epochs: 2048 would not give 1,000 updates
        ({"steps": 600}, {"train.batch_tokens": 1024, "train.warmup": 60, "model.dropout": 0.1, "train.ema": 0.967}),
        # 1,500 updates of 2048 are 30.7 epochs
        ({"steps": 1500}, {"train.batch_tokens": 2048, "train.warmup": 150, "model.dropout": 0.2, "train.ema": 0.987}),
        # 600 updates of 4096 are 24.6 epochs
        ({"steps": 600, "batch_tokens": 4096}, {"train.warmup": 60, "model.dropout": 0.2}),
        # A batch has the pairs of one pass: 100 updates are 100 epochs.
        ({"steps": 100, "batch_tokens": 1_000_000}, {"model.dropout": 0.3, "train.epochs": 0.0}),
        # 3 epochs, 300,000 tokens, 293 updates of 1024
        ({"flops": 3 * FLOPS}, {"model.dropout": 0.05, "train.warmup": 29, "train.schedule": "linear"}),
        ({"flops": 1000 * FLOPS}, {"model.dropout": 0.3, "train.epochs": 150.0, "train.patience": 0}),
    ],
)
def test_training_is_chosen_by_the_stated_batches_and_limits(stated, expected):
    facts = Facts(TOKENS, TOKENS, 0, 0, on_cpu=True, **stated)
    chosen = choose_training(facts, Candidate(128, 500_000, 1000, FLOPS))
    assert {key: chosen[key] for key in expected} == expected


def test_the_longer_side_fills_the_batches_of_stated_steps():
    """1,000 updates of 1024 are 20.5 epochs of 50,000 tokens, and 10.2 of 100,000."""
    model = Candidate(128, 500_000, 1000, FLOPS)
    limited = [Facts(50_000, longer, 0, 0, on_cpu=True, steps=1000, batch_tokens=1024) for longer in (50_000, TOKENS)]
    assert [model.epochs(facts) for facts in limited] == [pytest.approx(20.48), pytest.approx(10.24)]


def test_stated_steps_on_a_gpu_are_updates_of_large_batches():
    facts = Facts(TOKENS, TOKENS, 0, 0, on_cpu=False, steps=100)
    assert Candidate(128, 500_000, 1000, FLOPS).epochs(facts) == pytest.approx(16.384)


def test_adam_gets_a_quarter_of_the_rate():
    model, facts = Candidate(128, 1_000_000, 5000, FLOPS), Facts(TOKENS, TOKENS, 10, 0, on_cpu=True, optimizer="adam")
    assert choose_training(facts, model)["train.lr"] == 2e-3  # 0.008 / 4


def test_the_rate_falls_with_the_width_and_for_a_trained_model():
    def rate(dim: int, is_trained: bool = False) -> float:
        facts = Facts(TOKENS, TOKENS, 10, 0, on_cpu=True, is_trained=is_trained)
        return choose_training(facts, Candidate(dim, 500_000, 1000, FLOPS))["train.lr"]

    assert rate(128) == 0.008 and rate(512) == 0.004 and rate(128, is_trained=True) == 0.0016


@pytest.mark.parametrize("tokens", [500, 30_000, 1_000_000, 200_000_000])
@pytest.mark.parametrize("minutes", [0, 0.1, 5, 60, 6000])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_every_choice_is_a_valid_recipe_whose_warmup_is_at_most_a_tenth(tokens, minutes, on_cpu):
    model = Candidate(256, 1_000_000, 3000.0, FLOPS)
    facts = Facts(tokens, tokens, minutes, 0, on_cpu)
    chosen = choose_training(facts, model)
    train = load_recipe(None, {**chosen, "train.minutes": minutes, "train.auto": False}).train
    updates = model.epochs(facts) * tokens / train.batch_tokens
    assert train.warmup <= max(10, updates / 10)
    assert math.log2(train.batch_tokens).is_integer()


def test_the_docs_list_every_size():
    rows = [tuple(map(int, re.findall(r"\d+", row))) for row in re.findall(r"^\| \d+ \|.*$", DOCS, re.MULTILINE)]
    assert [tuple(size.values()) for size in SIZES] == rows
