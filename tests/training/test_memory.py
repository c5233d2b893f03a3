"""The prediction of memory, compared with what torch allocates, and its place in `nmt train --dry-run`."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from nmt_cli.recipe.schema import Conv, DecoderOnly, Recipe, Rnn, Train, Transformer
from nmt_cli.training.memory import predict_memory, propose_batch_tokens

LAYERS = {"encoder_layers": 2, "decoder_layers": 2}
SMALL = Transformer(dim=64, heads=4, ff=128, **LAYERS)
MODELS = {
    "transformer": (SMALL, Train(batch_tokens=600, ema=0.9)),
    "recomputed": (SMALL, Train(batch_tokens=600, optimizer="muon", checkpoint_activations=True)),
    "rnn": (Rnn(dim=64), Train(batch_tokens=600)),
    "conv": (Conv(dim=64, **LAYERS), Train(batch_tokens=600)),
    "decoder": (DecoderOnly(dim=64, heads=4, ff=128, layers=2), Train(batch_tokens=600)),
}
BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks/memory.py"


@pytest.mark.parametrize("name", MODELS)
def test_the_predicted_memory_is_that_of_an_update(name, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARK.parent)
    model, settings = MODELS[name]
    recipe = Recipe(model=model, train=settings)
    measured = runpy.run_path(str(BENCHMARK))["measured_peak"](recipe, 500, 19)
    assert predict_memory(recipe, (500, 500), 19).total == pytest.approx(measured, rel=0.15)


def test_less_memory_is_needed_with_recomputed_activations_and_in_bf16():
    activations = {
        key: predict_memory(Recipe(model=SMALL, train=Train(checkpoint_activations=key[0])), (99, 99), 19, True, key[1])
        for key in ((False, "fp32"), (True, "fp32"), (False, "bf16"))
    }
    plain, recomputed, bf16 = (memory.activations for memory in activations.values())
    assert recomputed < 0.6 * plain and bf16 < 0.8 * plain


def test_the_proposed_batch_fills_the_card_but_for_a_tenth():
    model = replace(SMALL, encoder_layers=1, decoder_layers=1)
    recipe = Recipe(model=model, train=Train())
    tokens = propose_batch_tokens(recipe, (99, 99), 19, "fp32", 100e6)
    filled = predict_memory(Recipe(model=model, train=Train(batch_tokens=tokens)), (99, 99), 19, True).total
    assert 80e6 < filled < 93e6
    assert propose_batch_tokens(recipe, (99, 99), 19, "fp32", 1e6) == 0


def test_a_dry_run_shows_memory_and_proposes_a_batch(nmt, toy):
    result = nmt("train", toy, "--dry-run", "--memory", "1GB")
    assert "# memory " in result.text and "fits into 1 GB" in result.text


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--memory", "24GB"], "--memory only works with --dry-run"), (["--memory", "much", "--dry-run"], "is no size")],
)
def test_a_wrong_memory_option_is_an_error(nmt, toy, options, message):
    result = nmt("train", toy, *options)
    assert result.code == 1 and message in result.err
