"""A run that is interrupted continues exactly, and only with the same recipe."""

from __future__ import annotations

import json
import shutil
import signal

import pytest
from support.checks import assert_user_error, wait_until
from support.records import write_again
from support.toy_runs import assert_same_run, losses, notes, sets, steps_saved, weights_hash

from nmt_cli.files import sha256_of
from nmt_cli.scoring.metrics import Scores
from nmt_cli.store.checkpoint import load_state
from nmt_cli.store.folders import CheckpointFolder, RunFolder
from nmt_cli.store.log import read_log
from nmt_cli.training.validation import Validation

EVERYTHING = sets(
    *("train.ema=0.9", "train.subword_sampling=0.1", "train.accumulate=2", "model.attention_dropout=0.1"),
    *("model.ff_dropout=0.1", "train.consistency=rdrop", "train.weight_decay=0.01", "train.clip=1", "model.experts=3"),
    *("train.augment.typos=0.5", "train.augment.no_final_mark=0.5"),
)
RECURRENT = sets(
    *("model.family=rnn", "model.dim=32", "model.encoder_layers=2", "model.decoder_layers=2", "model.dropout=0.2"),
    *("model.span=predictive", "model.input_feeding=true", "train.consistency=simcut"),
)
CONVOLUTIONAL = sets("model.family=conv", "model.dim=32", "model.encoder_layers=2", "model.decoder_layers=2")
DECODER = sets(
    *("model.family=decoder", "model.dim=32", "model.ff=64", "model.layers=2", "model.attention_dropout=0.1"),
    *("train.source_loss=0.5", "train.reward=gleu", "train.reward_after=0.3", "train.reward_samples=2"),
)


@pytest.mark.parametrize(("options", "more"), [([], 45), (EVERYTHING, 20)], ids=["plain", "everything"])
def test_resume_after_kill_9_is_exact(nmt, start_nmt, toy, tmp_path, options, more):
    """5 steps + kill -9 in the middle of an epoch + more steps than an epoch has left, with everything random."""
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    options = [*options, *sets("train.valid_every=5", "train.log_every=1")]
    running = start_nmt("train", toy, "--out", killed.path, *options, *sets("train.steps=100000", "train.patience=0"))
    wait_until(killed.checkpoint(5).path.exists)
    running.send_signal(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    saved = killed.saved_checkpoints()[-1]
    position = load_state(saved).position
    assert position.index > 0 or saved.step > 5  # a late kill may come between two epochs
    options += sets(f"train.steps={saved.step + more}")
    rest = nmt("train", toy, "--out", killed.path, *options)
    assert rest.code == 0 and f"continuing from step {saved.step}" in rest.err
    assert load_state(killed.saved_checkpoints()[-1]).position.epoch > position.epoch
    result = nmt("train", toy, "--out", whole.path, *options)
    assert result.code == 0, result.err
    assert_same_run(whole, killed)


@pytest.mark.parametrize(
    "options",
    [
        [*EVERYTHING, *sets("train.processes=2", "train.optimizer=muon")],
        # Three numbers have more than one order of rounding.
        pytest.param([*EVERYTHING, *sets("train.processes=3", "train.optimizer=muon")], marks=pytest.mark.torture),
        *(RECURRENT, CONVOLUTIONAL, DECODER),
    ],
    ids=["two processes with muon", "three processes with muon", "recurrent", "convolutional", "decoder"],
)
def test_resume_from_a_checkpoint_is_exact(nmt, toy, tmp_path, options):
    """A copy of a run, as kill -9 would have left it after step 4: later lines of the log are still there."""
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    options = [*options, *sets("train.keep=10", "train.steps=8", "train.valid_every=4", "train.log_every=1")]
    result = nmt("train", toy, "--out", whole.path, *options)
    assert result.code == 0, result.err
    shutil.copytree(whole.path, killed.path, symlinks=True)
    shutil.rmtree(killed.checkpoint(8).path)
    assert load_state(killed.checkpoint(4)).position.index > 0
    rest = nmt("train", toy, "--out", killed.path, *options)
    assert rest.code == 0 and "continuing from step 4" in rest.err
    assert_same_run(whole, killed)


def test_log_lines_after_the_last_checkpoint_are_removed(nmt, toy, tmp_path):
    nmt("train", toy, *sets("train.steps=10"))
    run = tmp_path / "runs/toy"
    log = run / "log.jsonl"
    last = [json.loads(line) for line in log.read_text().splitlines() if '"kind": "train"' in line][-1]
    log.write_text(log.read_text() + json.dumps({**last, "step": 15, "loss": 1.0}) + '\n{"kind": "tra')
    assert nmt("train", toy, *sets("train.steps=20")).code == 0
    assert [step for step, _ in losses(run, "train")] == [5, 10, 15, 20]
    assert losses(run, "train")[2][1] != 1.0


def test_a_damaged_log_is_noted_and_deletes_nothing(train_toy):
    """What is kept is known from state.json of the last checkpoint."""
    run = RunFolder(train_toy("train.steps=20", "train.keep=2")[0].run)
    first, second, *others = run.log.read_bytes().splitlines(keepends=True)
    run.log.write_bytes(first + b"\xff" + second[1:] + b"".join(others) + b"\0" * 100)
    _, events = train_toy("train.steps=30", "train.keep=2")
    assert f"lines 2, {len(others) + 3} of {run.log} cannot be read" in notes(events)
    assert run.log.read_bytes().startswith(first + b"\xff" + second[1:] + b"".join(others) + b'{"kind": "start"')
    assert set(steps_saved(run.path)) >= {20, 30}


def damage_state(folder: CheckpointFolder) -> None:
    folder.state.write_bytes(folder.state.read_bytes()[:100])


def damage_weights(folder: CheckpointFolder) -> None:
    folder.weights.write_bytes(folder.weights.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [damage_state, damage_weights])
def test_a_run_whose_last_checkpoints_are_damaged_goes_on_from_the_last_good_one(nmt, toy, tmp_path, damage):
    whole, damaged = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "damaged")
    assert nmt("train", toy, "--out", whole.path).code == 0
    shutil.copytree(whole.path, damaged.path, symlinks=True)
    assert steps_saved(damaged.path)[-3:] == [20, 30, 40]
    damage(damaged.checkpoint(40))
    damage(damaged.checkpoint(30))
    (damaged.checkpoints / "step-40.damaged-1").mkdir()
    result = nmt("train", toy, "--out", damaged.path)
    assert result.code == 0 and "continuing from step 20" in result.err
    said = " ".join(result.err.split())
    for name in ("step-30.damaged-1", "step-40.damaged-2"):
        assert f"it was renamed to {name}, and training continues from step 20" in said
        assert (damaged.checkpoints / name / "model.safetensors").exists()
    assert damaged.last.resolve().name == "step-40" and damaged.best.exists()
    assert_same_run(whole, damaged)


def test_a_run_without_an_intact_checkpoint_is_left_as_it_is(nmt, toy, tmp_path):
    run = RunFolder(tmp_path / "my runs/toy")
    assert nmt("train", toy, "--out", run.path, *sets("train.steps=20")).code == 0
    for folder in run.saved_checkpoints():
        damage_weights(folder)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    result = nmt("train", toy, "--out", run.path, *sets("train.steps=30"))
    assert_user_error(result, "no checkpoint of", "is intact", "step-20/model.safetensors is damaged")
    assert f"--from '{run.model}' --out NEW" in result.err
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    assert nmt("train", toy, "--from", run.model, "--out", "new", *sets("train.steps=5")).code == 0


def test_links_and_leftovers_of_a_killed_session_are_put_right(train_toy):
    run = RunFolder(train_toy("train.steps=20")[0].run)
    best = run.best.resolve().name
    for link in (run.best, run.last):
        link.unlink()
        link.symlink_to("step-5")
    left = [
        run.path / ".recipe.toml.tmp-123",
        run.checkpoints / ".last.tmp",
        run.checkpoint(20).path / ".state.json.tmp-1",
    ]
    for path in left:
        path.write_text("x")
    train_toy("train.steps=20")
    assert (run.best.resolve().name, run.last.resolve().name) == (best, "step-20")
    assert not any(path.exists() for path in left)


def test_a_run_that_was_killed_after_its_last_checkpoint_is_finished(nmt, toy, tmp_path):
    """The average, the export and the link to the best checkpoint are made again."""
    run, options = RunFolder(tmp_path / "runs/toy"), sets("train.average=2")
    assert nmt("train", toy, *options).code == 0
    best = run.best.resolve().name
    averaged = sha256_of(run.model / "model.safetensors")
    lines = run.log.read_text().splitlines(keepends=True)
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds[-3:] == ["average", "note", "end"]  # the note: too few validation lines for a confidence
    run.log.write_text("".join(lines[:-3]))
    write_again(run.checkpoint(40).state, finished=False)
    shutil.rmtree(run.model / "ctranslate2")
    run.best.unlink()
    run.best.symlink_to("step-30" if best != "step-30" else "step-40")
    result = nmt("train", toy, *options)
    assert result.code == 0 and "already finished" not in result.err
    assert (run.model / "ctranslate2/model.bin").exists() and run.best.resolve().name == best
    assert sha256_of(run.model / "model.safetensors") == averaged
    assert [entry.kind for entry in read_log(run.path)][-4:] == ["start", "average", "note", "end"]
    assert "already finished" in nmt("train", toy, *options).err


def test_another_recipe_is_refused_and_the_keys_are_named(nmt, toy, tmp_path):
    command = ("train", toy, "--out", "my runs/toy")
    assert nmt(*command, *sets("train.steps=5")).code == 0
    before = weights_hash(tmp_path / "my runs/toy")
    result = nmt(*command, *sets("train.lr=5e-3", "model.dropout=0.3", "train.augment.typos=0.1"))
    assert_user_error(result, "model.dropout was 0.2 and is 0.3", "train.lr was 0.003 and is 0.005", "--force")
    assert "train.augment.typos was 0.0 and is 0.1" in " ".join(result.err.split())
    assert "--from 'my runs/toy' --out NEW" in result.err
    assert weights_hash(tmp_path / "my runs/toy") == before


def test_a_run_that_was_moved_continues_where_it_is(nmt, toy, tmp_path):
    assert nmt("train", toy, "--out", "old", *sets("train.steps=10")).code == 0
    shutil.copytree(tmp_path / "old", tmp_path / "new", symlinks=True)
    assert nmt("train", "new", *sets("train.steps=20")).code == 0
    assert steps_saved(tmp_path / "new")[-1] == 20 and steps_saved(tmp_path / "old")[-1] == 10
    assert nmt("train", "new", "--out", "newer", *sets("train.steps=5")).code == 0
    assert steps_saved(tmp_path / "newer")[-1] == 5


def test_another_metric_selects_its_own_best(nmt, toy, tmp_path):
    """A loss is never above a BLEU score: no later model would be the best."""
    assert nmt("train", toy, *sets("train.steps=10")).code == 0
    result = nmt("train", toy, *sets("train.steps=20", "train.metric=loss"))
    assert result.code == 0 and "no longer by bleu of 10 lines, beam 1" in " ".join(result.err.split())
    state = load_state(RunFolder(tmp_path / "runs/toy").checkpoint(20))
    assert state.best_value < 0 and state.best_step == 20
    same = sets("train.metric=loss", "train.valid_beam=2")  # the beam plays no part in a loss
    assert "no longer by" not in nmt("train", toy, *sets("train.steps=30"), *same).err


def test_the_best_model_is_measured_again_if_the_validation_lines_change(train_toy, monkeypatch):
    """A worse model must not replace it."""

    def bleu(*values: float) -> None:
        scores = iter(values)
        monkeypatch.setattr(Validation, "measure", lambda *args: (1.0, Scores(next(scores), 0.0, "")))

    bleu(20.0)
    result, _ = train_toy("train.steps=10")
    before = sha256_of(result.run / "model/model.safetensors")
    bleu(30.0, 25.0)
    train_toy("train.steps=20", "train.valid_lines=5")
    state = load_state(RunFolder(result.run).checkpoint(20))
    assert (state.best_value, state.best_step) == (30.0, 10) and state.validations_since_best == 1
    assert sha256_of(result.run / "model/model.safetensors") == before
