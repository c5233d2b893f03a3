"""nmt train --from RUN."""

from __future__ import annotations

import shutil

import torch
from safetensors.torch import load_file
from support.checks import assert_user_error
from support.toy_corpus import corpus
from support.toy_runs import sets

from nmt_cli.store.checkpoint import load_model


def test_fine_tuning_starts_from_the_weights_of_a_run_with_the_same_model(nmt, toy, tmp_path, prepared):
    assert nmt("train", toy, "--out", "parent", *sets("train.steps=20")).code == 0
    # Other data with the same vocabulary.
    english, german = corpus(200, 7000)
    (tmp_path / "b.en").write_text(english)
    (tmp_path / "b.de").write_text(german)
    files = ("--source", "b.en", "--target", "b.de", "--out", "other", "--set", "data.hold_out=5")
    assert nmt("prepare", *files, "--set", "vocab.reuse=parent").code == 0
    result = nmt(
        "train",
        toy,
        "--from",
        "parent",
        "--out",
        "child",
        *sets("data.prepared=other", "train.steps=1", "train.lr=1e-12"),
    )
    assert result.code == 0, result.err
    parent = load_file(tmp_path / "parent/model/model.safetensors")
    child = load_file(tmp_path / "child/checkpoints/last/model.safetensors")
    assert all(torch.allclose(parent[name], child[name], atol=1e-6) for name in parent)
    assert load_model(tmp_path / "child").about["from"] == str(tmp_path / "parent")
    # The run remembers its parent.
    same = ("train", toy, "--out", "child", *sets("data.prepared=other", "train.steps=1", "train.lr=1e-12"))
    assert_user_error(nmt(*same, "--from", "child"), "it started from", "parent")
    # Another vocabulary is refused.
    assert nmt("prepare", *files[:5], "foreign", "--vocab-size", "50").code == 0
    refused = nmt("train", toy, "--from", "parent", "--out", "c2", *sets("data.prepared=foreign"))
    assert_user_error(refused, "another vocabulary", "vocab.reuse=parent")
    # Another model is refused, even if its weights have the same shapes.
    for change in ("model.ff=32", "model.heads=4", "model.activation=gelu"):
        refused = nmt("train", toy, "--from", "parent", "--out", "c3", *sets(change))
        assert_user_error(refused, "parent is another model", change.split("=")[0])
    # --force renames nothing if the new run is refused.
    for options in (("--from", "parent", *sets("model.heads=4")), ("--from", "parent"), ("--from", "nowhere")):
        assert nmt("train", toy, "--out", "parent", "--force", *options).code == 1
        assert (tmp_path / "parent/model/model.safetensors").exists()


def test_the_commands_of_the_docs_fine_tune(nmt, toy, tmp_path):
    assert nmt("train", toy, "--out", "old", *sets("train.steps=5")).code == 0
    for name, text in zip(("new.en", "new.de"), corpus(200, 7000), strict=True):
        (tmp_path / name).write_text(text)
    files = ("--source", "new.en", "--target", "new.de", "--out", "data/new")
    result = nmt("prepare", "old/recipe.toml", *files, *sets("vocab.reuse=old"))
    assert result.code == 0, result.err
    tune = ("train", "data/new", "--from", "old", "--out", "new", *sets("train.lr=1e-4", "train.valid_every=5"))
    result = nmt(*tune, *sets("train.steps=10"))
    assert result.code == 0, result.err
    shutil.rmtree(tmp_path / "old")  # a run does not need the run that it started from
    result = nmt(*tune, *sets("train.steps=15"))
    assert result.code == 0 and "continuing from step 10" in result.err, result.err
