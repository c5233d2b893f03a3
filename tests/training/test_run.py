"""A run of `nmt train`: its files, its settings, and the errors of its user."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest
from support.checks import assert_user_error, on_terminal
from support.toy_runs import losses, sets, steps_saved

from nmt_cli.recipe.load import load_recipe
from nmt_cli.store.checkpoint import load_model
from nmt_cli.store.folders import RunFolder
from nmt_cli.store.log import read_log


def test_a_run_leaves_the_files_that_the_readme_lists(nmt, toy, tmp_path):
    result = nmt("train", toy)
    assert result.code == 0, result.err
    run = tmp_path / "runs/toy"
    run_folder = RunFolder(run)
    best = max((entry for entry in read_log(run) if entry.kind == "valid"), key=lambda entry: entry.value)
    assert steps_saved(run) == sorted({20, 30, 40, best.step})  # train.keep = 3, and the best
    assert {path.name for path in run_folder.checkpoint(40).path.iterdir()} == {
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    }
    assert (run / "vocab/joint.model").read_bytes() == (run / "model/vocab/joint.model").read_bytes()
    assert (run / "checkpoints/last").resolve().name == "step-40"
    assert (run / "checkpoints/best").resolve().name == f"step-{best.step}"
    assert {path.name for path in (run / "model").iterdir()} == {
        "model.safetensors",
        "recipe.toml",
        "vocab",
        "about.json",
        "ctranslate2",
    }
    assert load_recipe(run / "recipe.toml").train.batch_tokens == 128
    assert [step for step, _ in losses(run, "train")] == list(range(5, 41, 5))
    assert [step for step, _ in losses(run, "valid")] == [10, 20, 30, 40]
    assert not any(path.name.startswith(".") and path.name != ".lock" for path in run.rglob("*"))
    assert losses(run, "train")[-1][1] < losses(run, "train")[0][1] - 0.5
    trained = load_model(run)
    assert trained.about["valid"]["bleu"] == best.bleu and "tok:13a" in trained.about["valid"]["signature"]
    for part in ("40 steps", "FLOPs", "MB at most", "training loss", "validation BLEU"):
        assert part in result.text
    assert "model in " in result.err
    assert all(f"nmt {verb}" in result.err.split("next:")[1] for verb in ("translate", "score", "inspect"))
    assert "\x1b" not in result.err + result.text


def test_another_run_folder_has_the_same_data(nmt, toy, prepared, tmp_path):
    """--out names the folder that training writes to."""
    recipe = tmp_path / "own.toml"
    recipe.write_text(toy.read_text().replace(f'prepared = "{prepared}/data"\n', ""))
    result = nmt("prepare", recipe)
    assert result.code == 0 and f"next: nmt train {recipe}" in result.err
    for name, out in ((recipe, "one"), (recipe, "one"), ("one", "two")):
        result = nmt("train", name, "--out", out, *sets("train.steps=3"))
        assert result.code == 0, result.err
    assert load_recipe(tmp_path / "two/recipe.toml").prepared_folder == tmp_path / "data/own"
    result = nmt("prepare", recipe, "--out", "elsewhere")
    assert "next: nmt train elsewhere" in result.err


def test_leftovers_of_killed_sessions_are_replaced(nmt, toy, tmp_path):
    """Half a checkpoint, and the vocabulary of data that were prepared again since."""
    run = tmp_path / "runs/toy"
    for name in ("checkpoints/.step-20.tmp-123", "vocab"):
        (run / name).mkdir(parents=True)
    (run / "vocab/joint.model").write_bytes(b"another")
    (run / "log.jsonl").touch()
    assert nmt("train", toy, *sets("train.steps=5")).code == 0
    assert not (run / "checkpoints/.step-20.tmp-123").exists()
    assert (run / "vocab/joint.model").read_bytes() == (run / "model/vocab/joint.model").read_bytes()


def test_a_disk_without_links_is_not_an_error(train_toy, monkeypatch):
    def symlink_to(*arguments: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(Path, "symlink_to", symlink_to)
    result, _ = train_toy("train.keep=1")
    assert steps_saved(result.run) == sorted({40, result.best.step})


def test_another_vocabulary_than_that_of_the_prepared_data_is_refused(nmt, toy, tmp_path):
    result = nmt("train", toy, *sets("vocab.size=70", "train.steps=2"))
    assert_user_error(result, "were prepared with vocab.size = 60, not 70", "leave the key out")
    assert not (tmp_path / "runs").exists()


def test_two_vocabularies_of_one_size_are_not_tied(nmt, toy, tmp_path, prepared):
    """A piece would share its embedding with an unrelated piece of the other vocabulary."""
    files = ("--source", prepared / "a.en", "--target", prepared / "a.de", "--vocab-size", "45")
    small = sets("model.dim=16", "model.heads=2", "model.ff=16", "train.steps=1")
    two = sets("vocab.joint=false", "model.tie=target", "train.steps=1")
    assert nmt("prepare", *files, "--out", "two", *two).code == 0
    assert nmt("prepare", *files, "--out", "again", *sets("vocab.reuse=two")).code == 0
    assert_user_error(nmt("train", "again", *small), 'model.tie = "all" needs one vocabulary')
    assert nmt("train", "again", *small, *sets("model.tie=target")).code == 0


MISTAKES = [
    (["none-such"], "there is no recipe none-such\n"),
    (["data/nothere"], "there is no recipe data/nothere, and no folder of this name"),
    (["text.en"], "prepare it first: nmt prepare --source text.en --target"),
    (["toy.toml", *sets("train.stpes=5")], "did you mean train.steps?"),
    (["toy.toml", *sets("data.prepared=nowhere")], "there are no prepared data in nowhere"),
    (["toy.toml", *sets("train.device=cuda")], "this machine has no device cuda"),
    (["toy.toml", "--from", "nowhere"], "there is no model nowhere"),
    (["toy.toml", "--from", "empty"], "empty is not a model"),
    (["toy.toml", *sets("train.max_length=1")], "every training pair has more than 1 pieces on a side"),
    (["toy.toml", *sets("train.tensorboard=true")], "needs TensorBoard"),
    (["toy.toml", *sets("train.steps=inf")], "train.steps: must be a finite number, not inf"),
    (["toy.toml", *sets('model.family=["rnn"]')], "model.family: must be one of transformer"),
    (["toy.toml", *sets("train.seed=18446744073709551616")], "train.seed: must be at most"),
    (["toy.toml", "--out", "a", *sets("train.out=b")], "--out and --set train.out are both given"),
    (["toy.toml", "--out", "a", *sets('train={out="b"}')], "--out and --set train.out are both given"),
    (["toy.toml", "--minutes", "7", *sets("train.minutes=3")], "--minutes and --set train.minutes are both given"),
    (["toy.toml", "--minutes", "7", "--dry-run", *sets("train.minutes=7")], "--minutes and --set train.minutes are"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes_are_user_errors(nmt, toy, tmp_path, options, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.en").write_text("I like cats.\n")
    assert_user_error(nmt("train", *options, env={"NMT_TEST_HIDE": "tensorboard"}), message)
    assert not (tmp_path / "runs/toy/checkpoints").exists()


def test_tensorboard_has_the_figures_of_the_log(nmt, toy, tmp_path):
    """Each figure once, although the run has two sessions."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for steps in (20, 40):
        assert nmt("train", toy, *sets("train.tensorboard=true", f"train.steps={steps}")).code == 0
    run = tmp_path / "runs/toy"
    board = events.EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    for kind, key in (("train", "loss"), ("train", "lr"), ("train", "tokens"), ("valid", "loss"), ("valid", "bleu")):
        logged = [(entry.step, getattr(entry, key)) for entry in read_log(run) if entry.kind == kind]
        shown = [(event.step, event.value) for event in board.Scalars(f"{kind}/{key}")]
        assert [step for step, _ in shown] == [step for step, _ in logged]
        assert [value for _, value in shown] == pytest.approx([value for _, value in logged], rel=1e-5)


def test_a_second_training_in_the_same_run_is_refused(nmt, toy, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / "runs/toy").mkdir(parents=True)
    with (tmp_path / "runs/toy/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert_user_error(nmt("train", toy), "another nmt train is already running in")


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "with --force"])
@pytest.mark.parametrize("name", ["recipe.toml", "vocab/source.model", "model/notes.txt"])
def test_a_folder_that_is_no_run_is_not_replaced(nmt, toy, tmp_path, name, force):
    """It may hold a recipe that somebody wrote, prepared data or an imported model."""
    (file := tmp_path / "exp1" / name).parent.mkdir(parents=True)
    file.write_text("mine")
    result = nmt("train", toy, "--out", "exp1", *force)
    assert_user_error(result, f"exp1 holds {name.partition('/')[0]} but no log.jsonl, so it is not a run of nmt train")
    assert [path for path in (tmp_path / "exp1").rglob("*") if path.is_file()] == [file] and file.read_text() == "mine"


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "with --force"])
def test_a_run_that_was_killed_while_it_began_is_begun_again(nmt, toy, tmp_path, force):
    code = """
import os
from nmt_cli.training import session
session.copy_vocab_files = lambda *folders: os._exit(9)
"""
    options = sets("train.steps=2")
    assert nmt("train", toy, *options, env={"NMT_TEST_CODE": code}).code == 9
    run = RunFolder(tmp_path / "runs/toy")
    assert run.recipe.exists() and not run.vocab.exists() and not run.checkpoints.exists()
    result = nmt("train", run.path if not force else toy, *options, *force)
    assert result.code == 0, result.err
    assert steps_saved(run.path) == [2]


def test_lines_longer_than_learned_positions_are_left_out(nmt, toy, tmp_path):
    """Of training and of validation. The toy sentences have up to 11 pieces."""
    learned = sets("model.positions=learned", "model.max_positions=10", "data.clean.max_tokens=0", "train.steps=20")
    result = nmt("train", toy, *learned, *sets("train.subword_sampling=0.3"))
    assert result.code == 0, result.err
    assert re.search(r"\d+ validation lines are left out: they have more pieces than the model", result.err)
    (start,) = (entry for entry in read_log(tmp_path / "runs/toy") if entry.kind == "start")
    assert 0 < start.pairs < 400 and 0 < start.valid_lines < 10


def test_dry_run_draws_a_curve_that_fits_into_a_narrow_terminal(forked, tmp_path):
    lines = on_terminal(forked, "stdout", 60, "train", "demo", "--dry-run", cwd=tmp_path)
    assert {len(line) for line in lines if "──" in line} == {60} and all(
        len(line) <= 60 for line in lines if "│" in line
    )


def test_dry_run_writes_nothing(nmt, toy, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    result = nmt("train", toy, "--dry-run")
    assert result.code == 0 and sorted(tmp_path.rglob("*")) == before
    assert "target_embedding 1,920" in result.text and "learning rate, inverse_sqrt" in result.text  # 60 x 32
