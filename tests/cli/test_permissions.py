"""The modes of files that nmt writes, and files that nmt must not read.

Root may read every file. The server of support/forked.py drops that privilege, so `nmt` obeys modes in these tests.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.checks import assert_user_error
from support.toy_corpus import corpus

import nmt_cli
from nmt_cli.export.ctranslate2 import to_ctranslate2
from nmt_cli.export.hf import to_hf
from nmt_cli.recipe.load import load_recipe
from nmt_cli.store.checkpoint import load_model


@pytest.fixture
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("umask", [0o002, 0o027], ids=oct, indirect=True)
def test_all_files_and_folders_follow_the_umask(umask, toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = load_recipe(toy).data
    prepared = tmp_path / "data"
    # The vocabulary is copied from folders with other modes.
    nmt_cli.prepare(
        toy, out=prepared, source=settings.train[0].source, target=settings.train[0].target,
        set={"vocab.reuse": str(settings.prepared)},
    )  # fmt: skip
    for path in (prepared / "vocab").iterdir():
        path.chmod(0o600)
    run = nmt_cli.train(toy, set={"data.prepared": str(prepared), "train.steps": 2, "train.ema": 0.9}).run
    for path in (prepared / "vocab").iterdir():
        path.chmod(0o666 & ~umask)
    trained = load_model(run)
    to_hf(trained, tmp_path / "hf")
    to_ctranslate2(trained, tmp_path / "ct2")
    written = [path for folder in (prepared, run, tmp_path / "hf", tmp_path / "ct2") for path in folder.rglob("*")]
    assert {path.name for path in written} >= {"model.safetensors", "averaged.safetensors", "model.bin", "log.jsonl"}
    for path in written:
        assert path.stat().st_mode & 0o777 == (0o777 if path.is_dir() else 0o666) & ~umask, path


MODEL = "run/model"
DENIED = [
    ("a.en", ["prepare", "--source", "a.en", "--target", "a.de", "--out", "out"]),
    ("folder", ["prepare", "--source", "folder/a.en", "--target", "a.de", "--out", "out"]),
    ("toy.toml", ["prepare", "toy.toml"]),
    ("folder", ["prepare", "folder/toy.toml"]),
    ("toy.toml", ["train", "toy.toml"]),
    ("data", ["train", "data"]),
    ("data/meta.json", ["train", "data"]),
    ("data/train.source.ids", ["train", "data"]),
    ("data/vocab/joint.model", ["train", "data"]),
    ("data/vocab", ["prepare", "--source", "a.en", "--target", "a.de", "--out", "out", "--set", "vocab.reuse=data"]),
    ("run", ["translate", "run"]),
    (MODEL, ["translate", "run"]),
    (f"{MODEL}/recipe.toml", ["translate", "run"]),
    (f"{MODEL}/about.json", ["translate", "run"]),
    (f"{MODEL}/vocab/joint.model", ["translate", "run"]),
    (f"{MODEL}/ctranslate2", ["translate", "run"]),
    (f"{MODEL}/ctranslate2/model.bin", ["translate", "run"]),
    (f"{MODEL}/model.safetensors", ["translate", "run", "--engine", "torch"]),
    ("run/checkpoints", ["train", "run"]),
    ("a.en", ["translate", "run", "a.en"]),
    ("folder", ["translate", "run", "folder/a.en"]),
    ("a.en", ["translate", "run", "--glossary", "a.en"]),
    ("run", ["inspect", "run"]),
    (f"{MODEL}/model.safetensors", ["inspect", "run"]),
    ("run/log.jsonl", ["inspect", "run"]),
    ("toy.toml", ["inspect", "toy.toml", "--show", "schedule"]),
    ("a.en", ["score", "a.en", "--ref", "a.de"]),
    ("folder", ["score", "a.en", "--ref", "folder/a.en"]),
    ("run", ["export", "run", "--to", "hf", "--out", "hf"]),
    (f"{MODEL}/model.safetensors", ["export", "run", "--to", "hf", "--out", "hf"]),
    ("folder", ["export", "run", "--to", "hf", "--out", "folder/hf"]),
]


@pytest.fixture(scope="module")
def place(forked, model, prepared, tmp_path_factory):
    """A folder with a run, prepared data, a recipe and text."""
    if forked is None:
        pytest.skip("no fork on this system")
    place = tmp_path_factory.mktemp("denied")
    shutil.copytree(model, place / "run", ignore=shutil.ignore_patterns("checkpoints"))
    (place / "run/checkpoints").mkdir()
    shutil.copytree(prepared / "data", place / "data")
    (place / "folder").mkdir()
    for folder in (place, place / "folder"):
        for name, text in zip(("a.en", "a.de"), corpus(20, 1000), strict=True):
            (folder / name).write_text(text)
        (folder / "toy.toml").write_text('[data]\ntrain = ["a.en", "a.de"]\n[vocab]\nsize = 60\n')
    return place


def files_in(folder: Path) -> list[Path]:
    """All files except the lock that training holds while it reads its data."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


@pytest.mark.parametrize(("name", "command"), DENIED, ids=[f"{command[0]} {name}" for name, command in DENIED])
def test_what_nmt_must_not_read_is_not_called_missing(nmt_in, place, name, command):
    path = place / name
    mode = path.stat().st_mode
    before = files_in(place)
    path.chmod(0)
    try:
        result = nmt_in(place, *command, stdin=b"one\n")
    finally:
        path.chmod(mode)
    assert_user_error(result, "Permission denied", name, "permissions")
    assert files_in(place) == before
