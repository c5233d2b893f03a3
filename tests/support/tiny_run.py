"""A run whose model has random weights, with a recipe and a log, for tests that only look at a model."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from nmt_cli.model.build import build_model
from nmt_cli.recipe.load import load_recipe
from nmt_cli.store.checkpoint import save_model
from nmt_cli.store.log import Start, to_table
from nmt_cli.text.vocab import learn, write_vocab

SENTENCE = "I like the green cat."
TEXT = ["I like the green cat.", "J'aime le chat vert.", "the dog, the cat", "我喜欢绿色的猫 🐈 (a - b)"] * 3
RECIPE = """
[data]
source_lang = "en"
target_lang = "fr"
[vocab]
size = 70
[model]
dim = 16
heads = 2
ff = 32
encoder_layers = 3
decoder_layers = 2
max_positions = 100
[data.clean]
max_tokens = 30
[translate]
beam = 3
"""
ABOUT = {
    "recipe": "toy", "step": 1200, "tokens": 34567, "minutes": 2.5, "flops": 1.25e12, "seed": 1, "data": "",
    "valid": {"loss": 1.5, "ppl": 4.48, "bleu": 31.25, "chrf": 50.5, "signature": "nrefs:1|tok:13a", "lines": 200},
}  # fmt: skip


def write_run(path: Path) -> None:
    """path/toy.toml, path/vocab and path/run, with two validations in the log."""
    (path / "toy.toml").write_text(RECIPE)
    recipe = load_recipe(path / "toy.toml")
    write_vocab(path / "vocab", {"joint": learn(iter(TEXT), recipe.vocab, "toy")}, recipe.data, recipe.vocab)
    torch.manual_seed(3)
    model = build_model(recipe.model, 70, 70)
    nn.init.normal_(model.output_weight, std=0.7)  # large weights make a confident model, which writes some words
    save_model(path / "run", model.state_dict(), recipe, path / "vocab", ABOUT)
    train = {"kind": "train", "epoch": 1.5, "tokens": 34567, "minutes": 2.5, "flops": 1.25e12}
    train |= {"ppl": 5.0, "lr": 1e-3, "gradient_norm": 1.0, "tokens_per_second": 1e3, "padding": 0.1, "budget_used": 1}
    start = Start(0, False, "run", "transformer", 1, 1, 1, "cpu", "fp32", "", 1, 2, 1, None, rate=2e11)
    updates = ({**train, "step": 300 * n, "loss": 5.0 / n, "memory_mb": 130 - 10 * n} for n in range(1, 5))
    log = [to_table(start), *updates]
    log += [
        {"kind": "valid", "step": 600 * n, "value": 15.625 * n, **ABOUT["valid"], "bleu": 15.625 * n}
        | {"seconds": 1.0, "best": n == 2}
        for n in (1, 2)
    ]
    log += [{"kind": "end", "step": 1200, "reason": "1,200 steps", "signal": 0}]
    (path / "run/log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in log))
