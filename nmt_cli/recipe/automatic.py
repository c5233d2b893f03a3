"""Choose the settings that the user does not state, by pure functions of the data, the time and the machine.

`nmt prepare` asks for the size of the vocabulary, `nmt train` for everything else. docs/automatic.md shows the rules as
tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Sizes of a Transformer, from small to large. The last two are those of the paper.
SIZES = (
    {"dim": 128, "heads": 4, "ff": 256, "encoder_layers": 4, "decoder_layers": 4},
    {"dim": 192, "heads": 4, "ff": 512, "encoder_layers": 4, "decoder_layers": 4},
    {"dim": 256, "heads": 4, "ff": 1024, "encoder_layers": 3, "decoder_layers": 3},
    {"dim": 384, "heads": 6, "ff": 1536, "encoder_layers": 4, "decoder_layers": 4},
    {"dim": 512, "heads": 8, "ff": 2048, "encoder_layers": 6, "decoder_layers": 6},
    {"dim": 1024, "heads": 16, "ff": 4096, "encoder_layers": 6, "decoder_layers": 6},
)
MOST_PARAMETERS = 6  # largest number of parameters for each target token of the training data
FEWEST_TOKENS = 0.7  # fewest target tokens that training must read in its time, for each parameter of the model
LONGEST = 24 * 60  # without a stated limit, a model must read its FEWEST_TOKENS in this many minutes
MOST_EPOCHS = 150  # a training without another limit ends after this many passes over the data
DROPOUT = ((4, 0.05), (12, 0.1), (50, 0.2))  # (most epochs, dropout); with more epochs the dropout is 0.3
UPDATES_OF_LARGE_BATCHES = 1000  # a CPU trains with the larger batches if they give at least this many updates
ACCELERATOR_BATCH = 16_384  # tokens; an accelerator is idle with small batches
MOST_UPDATES_OF_WARMUP = 300
FINE_TUNING = 0.2  # factor of the learning rate for a model that is trained already
ADAM = 0.25  # factor of the learning rate for the optimizer adam


@dataclass(frozen=True)
class Facts:
    """The facts about a training, apart from its model. A limit of 0 is no limit."""

    target_tokens: int  # in one pass over the training data
    longer_tokens: int  # of the longer side of each pair, which fills the batches
    minutes: float  # the time given
    epochs: float  # the passes over the data that train.epochs and train.tokens allow
    on_cpu: bool
    is_trained: bool = False  # training starts from the weights of a model
    steps: int = 0
    flops: float = 0.0
    batch_tokens: int = 0  # as the user states; 0: to be chosen
    accumulate: int = 1  # batches of an update
    optimizer: str = "muon"

    @property
    def has_limit(self) -> bool:
        return bool(self.minutes or self.epochs or self.steps or self.flops)


@dataclass(frozen=True)
class Candidate:
    """A model that could be trained, and the cost of its training here."""

    dim: int
    parameters: int
    tokens_per_second: float  # target tokens
    flops_per_epoch: float

    def epochs(self, facts: Facts) -> float:
        """The passes over the data that the limits allow."""
        return self._epochs(facts, self.batch_tokens(facts))

    def batch_tokens(self, facts: Facts) -> int:
        """The tokens of a batch. On a CPU the larger size counts if it gives enough updates."""
        if facts.batch_tokens:
            return facts.batch_tokens
        if not facts.on_cpu:
            return ACCELERATOR_BATCH
        small, large = 1024, 2048
        updates = self._epochs(facts, large) * facts.target_tokens / (large * facts.accumulate)
        return large if updates >= UPDATES_OF_LARGE_BATCHES else small

    def _epochs(self, facts: Facts, batch_tokens: int) -> float:
        limits = [
            MOST_EPOCHS,
            facts.epochs,
            60 * facts.minutes * self.tokens_per_second / facts.target_tokens,
            facts.flops / self.flops_per_epoch,
            facts.steps / updates_per_epoch(facts.longer_tokens, batch_tokens, facts.accumulate),
        ]
        return min(limit for limit in limits if limit)


def updates_per_epoch(longer_tokens: int, batch_tokens: int, accumulate: int) -> float:
    """The updates of one pass over the data. A batch has pairs of one pass, but the batches of an update may not."""
    return max(1.0, longer_tokens / batch_tokens) / accumulate


def vocab_size(characters: int, different: int) -> int:
    """The number of pieces for a text: twice the square root of its characters, from 500 to 32,000, in hundreds.

    Each different character is a piece, so a text with many of them gets more pieces.
    """
    wanted = min(32_000, max(500, 2 * math.sqrt(characters)))
    return 100 * math.ceil(max(wanted, 1.5 * different) / 100)


def sizes_to_try(stated: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The sizes that agree with the [model] keys that the user states, from small to large."""
    sizes: list[dict[str, Any]] = [dict(size) for size in SIZES]
    if "dim" in stated:  # take the size of the nearest width, and as many of its heads as divide the width
        size = min(sizes, key=lambda size: abs(math.log(size["dim"] / stated["dim"])))
        sizes = [{**size, "heads": math.gcd(stated["dim"], size["heads"])}]
    sizes = [{**size, **{key: value for key, value in stated.items() if key in size}} for size in sizes]
    return [size for size in sizes if size["dim"] % size["heads"] == 0]


def suits(model: Candidate, facts: Facts) -> bool:
    """Whether there are enough data for this model, and enough time to train it."""
    enough_data = model.parameters <= MOST_PARAMETERS * facts.target_tokens
    tokens = model.epochs(facts) * facts.target_tokens
    if not facts.has_limit:
        tokens = min(tokens, 60 * LONGEST * model.tokens_per_second)
    return enough_data and tokens >= FEWEST_TOKENS * model.parameters


def choose_training(facts: Facts, model: Candidate) -> dict[str, Any]:
    """The keys of a training, for the model that was chosen."""
    epochs, batch = model.epochs(facts), model.batch_tokens(facts)
    updates = max(1, round(epochs * facts.target_tokens / (batch * facts.accumulate)))
    peak = 8e-3 * math.sqrt(128 / model.dim)
    peak *= (FINE_TUNING if facts.is_trained else 1) * (ADAM if facts.optimizer == "adam" else 1)
    return {
        "model.dropout": next((dropout for most, dropout in DROPOUT if epochs <= most), 0.3),
        "train.batch_tokens": batch,
        "train.optimizer": "muon",
        "train.lr": float(f"{peak:.2g}"),
        "train.warmup": min(MOST_UPDATES_OF_WARMUP, max(10, updates // 10)),
        "train.schedule": "linear" if facts.has_limit else "inverse_sqrt",
        "train.ema": round(min(0.999, max(0.9, 1 - 20 / updates)), 3),
        "train.steps": 0,
        "train.epochs": 0.0 if facts.has_limit and epochs < MOST_EPOCHS else float(MOST_EPOCHS),
        "train.patience": 0 if facts.has_limit else 8,
        "train.valid_every": 1_000_000,
        "train.valid_minutes": round(min(10.0, max(0.5, facts.minutes / 4)), 2) if facts.minutes else 5.0,
        "train.valid_lines": round(min(1000, max(100, 100 * facts.minutes))) if facts.minutes else 1000,
    }
