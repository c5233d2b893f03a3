"""train.shard: the weights, figures and files of a run in one process; either run can resume the other."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load_file
from support.toy_runs import TWO_PROCESSES, assert_same_run, assert_same_weights, sets

from nmt_cli.recipe.schema import ByteNet, Conv, DecoderOnly, Recipe, Rnn, Train, Transformer
from nmt_cli.store.folders import RunFolder
from nmt_cli.store.log import Valid, read_log

SHARDED = [*TWO_PROCESSES, *sets("train.shard=true")]
ONE = sets("train.processes=1")
OPTIONS = sets(
    "train.clip=2.1",  # some of the gradients are clipped
    *("model.dropout=0", "train.steps=4", "train.valid_every=2", "train.keep=10", "train.average=2"),
    *("train.ema=0.9", "train.epsilon=1e-6", "train.log_every=1"),
)


def assert_same_checkpoint(one: RunFolder, two: RunFolder, step: int) -> None:
    ours, theirs = one.checkpoint(step), two.checkpoint(step)
    for name in ("weights", "moving_average"):
        assert_same_weights(load_file(getattr(ours, name)), load_file(getattr(theirs, name)), 1e-6)
    ours, theirs = load_file(ours.optimizer), load_file(theirs.optimizer)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.shape == theirs[name].shape and np.allclose(tensor, theirs[name], atol=1e-6)


def test_a_sharded_run_is_that_of_one_process_and_each_resumes_the_other(nmt, toy, tmp_path):
    runs = {name: RunFolder(tmp_path / name) for name in ("sharded", "one", "again", "unsharded", "begun by one")}

    def train(name: str, how: list[str]) -> None:
        result = nmt("train", toy, "--out", runs[name].path, *OPTIONS, *how)
        assert result.code == 0 and "Warning" not in result.err, result.err

    def resume(name: str, origin: str, how: list[str]) -> None:
        shutil.copytree(runs[origin].path, runs[name].path, symlinks=True)
        shutil.rmtree(runs[name].checkpoint(4).path)
        train(name, how)

    # 1. The same weights, moments, averages, validations and exported model.
    train("sharded", SHARDED)
    train("one", ONE)
    assert_same_checkpoint(runs["sharded"], runs["one"], 4)
    logs = [[entry for entry in read_log(runs[name].path) if isinstance(entry, Valid)] for name in ("sharded", "one")]
    assert [entry.kind for entry in logs[0]] == [entry.kind for entry in logs[1]] == ["valid", "valid", "average"]
    assert np.allclose(*([(entry.loss, entry.bleu, entry.chrf) for entry in log] for log in logs), atol=1e-4)
    models = [sorted(path.name for path in runs[name].model.rglob("*")) for name in ("sharded", "one")]
    assert models[0] == models[1]

    # 2. A sharded run is resumed bit for bit. With another number of processes it is the same up to rounding.
    resume("again", "sharded", SHARDED)
    assert_same_run(runs["sharded"], runs["again"])
    resume("unsharded", "sharded", ONE)
    resume("begun by one", "one", SHARDED)
    for name in ("unsharded", "begun by one"):
        assert_same_checkpoint(runs["one"], runs[name], 4)


@pytest.mark.parametrize(
    ("model", "settings", "problem"),
    [
        (Transformer(), Train(optimizer="muon"), "muon"),
        (DecoderOnly(), Train(reward="gleu"), "reward"),
        (Rnn(), Train(), '"rnn"'),
        (Conv(), Train(), '"conv"'),
        (ByteNet(), Train(), '"bytenet"'),
        (DecoderOnly(), Train(), ""),
        (Transformer(experts=3), Train(precision="fp16", compile=True, checkpoint_activations=True), ""),
    ],
)
def test_settings_that_need_whole_weights_are_refused(model, settings, problem):
    recipe = Recipe(model=model, train=replace(settings, shard=True))
    found = [*recipe.problems(), *((f"train.{key}", text) for key, text in recipe.train.problems())]
    assert [key for key, _ in found] == ["train.shard"] * bool(problem) and problem in "".join(
        text for _, text in found
    )
