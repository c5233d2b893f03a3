"""New data for a trained run: nmt prepare RUN, then nmt train --from RUN."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.checks import assert_user_error
from support.prepared import meta
from support.toy_corpus import corpus
from support.toy_runs import sets

from nmt_cli.recipe.load import load_recipe
from nmt_cli.store.checkpoint import load_model
from nmt_cli.text.vocab import load_vocab


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
    assert nmt("prepare", *files[:5], "foreign", "--vocab-size", "60").code == 0
    refused = nmt("train", toy, "--from", "parent", "--out", "c2", *sets("data.prepared=foreign"))
    assert_user_error(refused, "another vocabulary", "vocab.reuse=parent\n")
    shutil.copytree(tmp_path / "parent/model", tmp_path / "my parent")
    refused = nmt("train", toy, "--from", "my parent", "--out", "c2", *sets("data.prepared=foreign"))
    assert_user_error(refused, "another vocabulary", "--set vocab.reuse='my parent'\n")
    # Another model is refused, even if its weights have the same shapes.
    for change in ("model.ff=32", "model.heads=4", "model.activation=gelu"):
        refused = nmt("train", toy, "--from", "parent", "--out", "c3", *sets(change))
        assert_user_error(refused, "parent is another model", change.split("=")[0])
    # --force renames nothing if the new run is refused.
    for options in (("--from", "parent", *sets("model.heads=4")), ("--from", "parent"), ("--from", "nowhere")):
        assert nmt("train", toy, "--out", "parent", "--force", *options).code == 1
        assert (tmp_path / "parent/model/model.safetensors").exists()
    # A run that cannot begin leaves no folder.
    (tmp_path / "parent/model/model.safetensors").write_bytes(b"")
    refused = nmt("train", toy, "--from", "parent", "--out", "new/c4")
    assert_user_error(refused, "model.safetensors is damaged")
    assert not (tmp_path / "new").exists()


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
    result = nmt(*tune, *sets("train.steps=15"), "--dry-run")
    assert result.code == 0, result.err
    result = nmt(*tune, *sets("train.steps=15"))
    assert result.code == 0 and "continuing from step 10" in result.err, result.err


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def run(nmt, toy, prepared, tmp_path):
    """runs/old, trained on data/old; and b.en and b.de, 200 other pairs."""
    shutil.copytree(prepared / "data", tmp_path / "data/old")
    for name, text in zip(("b.en", "b.de"), corpus(200, 7000), strict=True):
        (tmp_path / name).write_text(text)
    result = nmt("train", toy, "--out", "runs/old", *sets("data.prepared=data/old", "train.steps=2"))
    assert result.code == 0, result.err
    return tmp_path / "runs/old"


@pytest.mark.parametrize(
    ("data_exist", "force"),
    [
        # Two ways to lose the data of the run: --force replaces folders, and a folder that is missing may be written.
        pytest.param(True, ("--force",), id="data exist, force"),
        pytest.param(False, (), id="no data, plain"),
        pytest.param(True, (), id="data exist, plain", marks=pytest.mark.torture),
        pytest.param(False, ("--force",), id="no data, force", marks=pytest.mark.torture),
    ],
)
def test_prepare_with_the_recipe_of_a_run_writes_only_to_out(nmt, run, tmp_path, data_exist, force):
    if not data_exist:
        (tmp_path / "data/old").rename(tmp_path / "moved")
    before = contents(tmp_path)
    new = ("prepare", "runs/old/recipe.toml", "--source", "b.en", "--target", "b.de", *sets("vocab.reuse=runs/old"))
    assert_user_error(nmt(*new, *force), "--out must name the folder")
    assert contents(tmp_path) == before
    for out in (("--out", "data/new"), sets("data.prepared=data/set")):
        result = nmt(*new, *out, *force)
        assert result.code == 0, result.err
    after = contents(tmp_path)
    assert {path: after[path] for path in before} == before
    written = {path.relative_to(tmp_path).parts[:2] for path in after.keys() - before}
    assert written == {("data", "new"), ("data", "set")}
    # Neither the training pairs nor the validation pairs of the run are in the new data.
    inputs = meta(tmp_path / "data/new")["inputs"]
    assert ([corpus["lines"] for corpus in inputs["train"]], inputs["valid"], inputs["test"]) == ([200], [], [])
    assert meta(tmp_path / "data/new")["report"]["held_out"] == 20
    assert "# run    runs/new   new" in nmt("train", "data/new", "--dry-run").text


def test_more_data_are_added_to_those_of_a_run(nmt, run, tmp_path):
    """The commands of docs/training.md."""
    before = contents(tmp_path)
    more = ("prepare", "--source", "b.en", "--target", "b.de", "--add-to", "runs/old")
    assert_user_error(nmt(*more), "--out must name the folder")
    result = nmt(*more, "--out", "data/more")
    assert result.code == 0, result.err
    assert "400 training pairs of runs/old and 200 new ones, with the vocabulary of runs/old" in result.err
    assert "next: nmt train data/more --from runs/old --out runs/more" in result.err
    inputs = meta(tmp_path / "data/more")["inputs"]
    old = meta(tmp_path / "data/old")["inputs"]
    assert [each["sha256"] for each in inputs["valid"]] == [each["sha256"] for each in old["valid"]]
    assert [each["lines"] for each in inputs["train"]] == [400, 200]
    assert load_vocab(tmp_path / "data/more/vocab").same_pieces(load_vocab(run / "vocab"))
    trained = nmt("train", "data/more", "--from", "runs/old", "--out", "runs/more", *sets("train.steps=2"))
    assert trained.code == 0, trained.err
    assert load_model(tmp_path / "runs/more").about["from"] == str(run)
    after = contents(tmp_path)
    assert {path: after[path] for path in before} == before


def test_more_data_are_added_to_those_of_a_run_that_names_only_its_prepared_data(nmt, write, tmp_path):
    """The corpora, the cleaning rules and the held-out pairs are those of the prepared data."""
    for name, first in (("a", 1000), ("b", 7000)):
        for side, text in zip(("en", "de"), corpus(300, first), strict=True):
            write(f"{name}.{side}", text)
    old = ("prepare", "--source", "a.en", "--target", "a.de", "--out", "old", "--vocab-size", 60)
    assert nmt(*old, *sets("data.clean.max_ratio=7")).code == 0
    tiny = sets("model.dim=16", "model.heads=2", "model.ff=16", "train.batch_tokens=64", "train.steps=1")
    recipe = write("tiny.toml", '[data]\nprepared = "old"\n[train]\nprecision = "fp32"\n')
    result = nmt("train", recipe, "--out", "run", *tiny)
    assert result.code == 0, result.err
    more = ("prepare", "--source", "b.en", "--target", "b.de", "--add-to", "run")
    result = nmt(*more, "--out", "more")
    assert result.code == 0, result.err
    assert "300 training pairs of run and 300 new ones, with the vocabulary of run" in result.err
    assert load_recipe(tmp_path / "more/recipe.toml").data.clean.max_ratio == 7
    for side in ("source", "target"):
        name = f"valid.{side}.txt"
        assert (tmp_path / "more" / name).read_bytes() == (tmp_path / "old" / name).read_bytes()
    shutil.rmtree(tmp_path / "old")
    assert_user_error(nmt(*more, "--out", "other"), "run does not name its training corpora", "prepared data exist")


def test_held_out_pairs_stay_held_out_when_data_are_added(nmt, tmp_path):
    for name, first in (("a", 1000), ("b", 7000)):
        for side, text in zip(("en", "de"), corpus(300, first), strict=True):
            (tmp_path / f"{name}.{side}").write_text(text)
    assert nmt("prepare", "--source", "a.en", "--target", "a.de", "--out", "old", "--vocab-size", 60).code == 0
    more = ("prepare", "--source", "b.en", "--target", "b.de", "--add-to", "old", "--out", "more")
    result = nmt(*more)
    assert result.code == 0, result.err
    assert result.err.endswith("written to more; next: nmt train more\n")
    report = meta(tmp_path / "more")["report"]
    assert (report["read"], report["dropped"]["overlap"], report["held_out"]) == (600, 30, 0)
    for side in ("source", "target"):
        name = f"valid.{side}.txt"
        assert (tmp_path / "more" / name).read_bytes() == (tmp_path / "old" / name).read_bytes()
    # Other validation text may be named.
    valid = nmt(
        *more[:-1], "other", "--valid-source", "b.en", "--valid-target", "b.de", "--set", "data.clean.overlap=false"
    )
    assert valid.code == 0, valid.err
    assert meta(tmp_path / "other")["report"]["splits"]["valid"]["sentences"] == 300
    refused = nmt(*more[:-1], "old", "--force")
    assert_user_error(refused, "old/valid.source.txt is in the folder to write, old")


def test_held_out_pairs_do_not_become_training_pairs_without_the_rule_on_overlap(nmt, tmp_path):
    for name, first in (("a", 1000), ("b", 7000)):
        for side, text in zip(("en", "de"), corpus(300, first), strict=True):
            (tmp_path / f"{name}.{side}").write_text(text)
    old = ("prepare", "--source", "a.en", "--target", "a.de", "--out", "old", "--vocab-size", "60")
    assert nmt(*old, "--set", "data.clean.overlap=false").code == 0
    result = nmt("prepare", "--source", "b.en", "--target", "b.de", "--add-to", "old", "--out", "more")
    assert result.code == 0, result.err
    assert meta(tmp_path / "more")["report"]["dropped"]["overlap"] == 30


def test_text_from_standard_input_cannot_be_added_to(nmt, tmp_path):
    """Standard input holds something else by now, or nothing."""
    sides = [corpus(300, first) for first in (1000, 7000)]
    tsv = ["".join(f"{x}\t{y}\n" for x, y in zip(*map(str.splitlines, side), strict=True)) for side in sides]
    options = ("--source-lang", "en", "--target-lang", "de", "--vocab-size", "60")
    assert nmt("prepare", "--tsv", "-", *options, "--out", "old", stdin=tsv[0].encode()).code == 0
    (tmp_path / "b.tsv").write_text(tsv[1])
    refused = nmt("prepare", "--tsv", "b.tsv", "--add-to", "old", "--out", "more", stdin=b"")
    assert_user_error(refused, "old was prepared from standard input, which cannot be read again")


ADD_TO_MISTAKES = [
    ("piped", "piped was prepared from /dev/fd/987, which cannot be read again"),
    ("model", "model does not name its training corpora"),
    ("nowhere", "there is no recipe nowhere"),
    ("gone", "the validation pairs of gone are gone: there is no file"),
]


@pytest.mark.parametrize(("name", "message"), ADD_TO_MISTAKES)
def test_mistakes_of_add_to_are_user_errors(nmt, tmp_path, name, message):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/recipe.toml").write_text("[vocab]\nsize = 60\n")
    (tmp_path / "piped").mkdir()
    (tmp_path / "piped/recipe.toml").write_text('[data]\ntrain = ["/dev/fd/987", "a.de"]\nprepared = "data"\n')
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone/recipe.toml").write_text('[data]\ntrain = ["a.en", "a.de"]\nprepared = "data"\n')
    result = nmt("prepare", "--source", "b.en", "--target", "b.de", "--add-to", name, "--out", "out")
    assert_user_error(result, message)
    assert not (tmp_path / "out").exists()
