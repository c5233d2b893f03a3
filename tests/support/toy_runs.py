"""Training runs on the toy corpus: the recipe, and what tests ask of a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from nmt_cli.files import sha256_of
from nmt_cli.store.folders import RunFolder
from nmt_cli.store.log import Note, read_log

RECIPE = """
[data]
train = ["../a.en", "../a.de"]
valid = ["../v.en", "../v.de"]
prepared = "../data"
[vocab]
size = 60
[model]
dim = 32
heads = 2
ff = 64
encoder_layers = 1
decoder_layers = 1
dropout = 0.2
[train]
batch_tokens = 128
warmup = 20
lr = 3e-3
steps = 40
valid_every = 10
valid_lines = 10
log_every = 5
precision = "fp32"
"""


def sets(*overrides: str) -> list[str]:
    """The command-line options that change keys of the recipe."""
    return [part for override in overrides for part in ("--set", override)]


TWO_PROCESSES = sets("train.processes=2")


def steps_saved(run: Path) -> list[int]:
    """The steps of the checkpoints of a run, oldest first."""
    return [folder.step for folder in RunFolder(run).saved_checkpoints()]


def weights_hash(run: Path) -> str:
    return sha256_of(RunFolder(run).saved_checkpoints()[-1].weights)


def losses(run: Path, kind: str) -> list[tuple[int, float]]:
    """Step and loss of the log entries of this kind."""
    return [(entry.step, entry.loss) for entry in read_log(run) if entry.kind == kind]


def notes(events: Iterable[object]) -> list[str]:
    """The notes among the events of a training."""
    return [event.text for event in events if isinstance(event, Note)]


def assert_same_run(one: RunFolder, two: RunFolder) -> None:
    """By hash of the last weights, moments and moving average; the logs have the same lines."""
    ours, theirs = (run.saved_checkpoints()[-1] for run in (one, two))
    for a, b in (
        (ours.weights, theirs.weights),
        (ours.optimizer, theirs.optimizer),
        (ours.moving_average, theirs.moving_average),
    ):
        assert a.exists() == b.exists() and (not a.exists() or sha256_of(a) == sha256_of(b))
    for kind in ("train", "valid"):
        assert losses(one.path, kind) == losses(two.path, kind)


def assert_same_weights(one: dict, two: dict, tolerance: float) -> None:
    """Up to rounding, where sums were taken in another order.

    A bias of the keys adds the same number to every score, so its gradient is 0 up to rounding. Adam turns the rounding
    into full steps in random directions: this bias differs, and nothing depends on it.
    """
    assert one.keys() == two.keys()
    for name in one:
        rows = {"qkv.bias": [0, 2], "keys_values.bias": [1]}.get(".".join(name.split(".")[-2:]))
        ours, theirs = (tensors[name].unflatten(0, (-1, 32))[rows] if rows else tensors[name] for tensors in (one, two))
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)
