"""`nmt train` through the real command: exact resume, several processes, stops, and what it refuses."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.checks import assert_children_die, assert_user_error, on_terminal
from support.toy_corpus import corpus

from nmt_cli.data import batches
from nmt_cli.data.batches import BatchStream, MicroBatch, ParallelData, Position, lay_out, make_batch, share
from nmt_cli.errors import NmtError
from nmt_cli.files import exclusive, new_folder, sha256_of
from nmt_cli.model.build import build_model
from nmt_cli.model.device import Compute
from nmt_cli.recipe.load import load_recipe, parse_overrides
from nmt_cli.recipe.schema import Train, Transformer
from nmt_cli.store.checkpoint import average, checkpoints, load_model, load_state, save_tensors
from nmt_cli.store.log import End, Note, Valid, read_log
from nmt_cli.store.run_folder import replaced_run
from nmt_cli.text.vocab import BOS, EOS, PAD, load_vocab
from nmt_cli.training.distributed import World
from nmt_cli.training.events import AlreadyFinished
from nmt_cli.training.optimizer import make_optimizers, orthogonal
from nmt_cli.training.schedule import learning_rate
from nmt_cli.training.trainer import Trainer
from nmt_cli.training.validation import in_parts

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


@pytest.fixture(scope="session")
def prepared(nmt_in, tmp_path_factory):
    """A folder with a toy corpus, prepared once; each test trains in a folder of its own beside it."""
    folder = tmp_path_factory.mktemp("toy")
    for name, lines, first in (("a", 400, 1000), ("v", 20, 5000)):
        for side, text in zip(("en", "de"), corpus(lines, first), strict=True):
            (folder / f"{name}.{side}").write_text(text)
    (folder / "x").mkdir()
    (folder / "x/x.toml").write_text(RECIPE)
    assert nmt_in(folder, "prepare", "x/x.toml").code == 0
    return folder


@pytest.fixture
def toy(prepared, tmp_path):
    """The recipe on the toy corpus, to be run in tmp_path; its run is tmp_path/runs/toy."""
    text = RECIPE.replace("../", f"{prepared}/")
    path = tmp_path / "toy.toml"
    path.write_text(text)
    return path


def measured(trainer: Trainer, value: float) -> Valid:
    return Valid(trainer.state.step, value, None, None, None, None, None, lines=1, seconds=0.0, best=False)


def weights_hash(run: Path) -> str:
    return sha256_of(checkpoints(run)[-1] / "model.safetensors")


def figures(run: Path, kind: str) -> list[tuple]:
    return [(entry.step, entry.loss) for entry in read_log(run) if entry.kind == kind]


def sets(*overrides: str) -> list[str]:
    return [part for override in overrides for part in ("--set", override)]


EVERYTHING = sets(
    *("train.ema=0.9", "train.subword_sampling=0.1", "train.accumulate=3", "model.attention_dropout=0.1"),
    *("model.ff_dropout=0.1", "train.consistency=rdrop", "train.weight_decay=0.01", "train.clip=1"),
)

LONG = sets("train.steps=200", "train.valid_every=100", "train.keep=2")
HELPED = sets("train.processes=2")
MUON = sets("train.optimizer=muon")


def test_a_run_leaves_what_it_promises(nmt, toy, tmp_path):
    result = nmt("train", toy)
    assert result.code == 0, result.err
    run = tmp_path / "runs/toy"
    best = max((entry for entry in read_log(run) if entry.kind == "valid"), key=lambda entry: entry.value)
    kept = {"step-20", "step-30", "step-40", f"step-{best.step}"}  # keep = 3, beside the best
    assert {path.name for path in checkpoints(run)} == kept
    assert {path.name for path in checkpoints(run)[-1].iterdir()} == {
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
    assert [step for step, _ in figures(run, "train")] == list(range(5, 41, 5))
    assert [step for step, _ in figures(run, "valid")] == [10, 20, 30, 40]
    assert not any(path.name.startswith(".") and path.name != ".lock" for path in run.rglob("*"))
    losses = [loss for _, loss in figures(run, "train")]
    assert losses[-1] < losses[0] - 0.5  # it learns
    trained = load_model(run)
    assert trained.about["valid"]["bleu"] == best.bleu and "tok:13a" in trained.about["valid"]["signature"]
    for part in ("40 steps", "FLOPs", "MB at most", "training loss", "validation BLEU"):
        assert part in result.text
    assert "model in " in result.err
    assert all(f"nmt {verb}" in result.err.split("next:")[1] for verb in ("translate", "score", "inspect"))
    assert "\x1b" not in result.err + result.text


def test_what_a_person_sees(toy, tmp_path):
    """A line that changes: step, loss, rate, speed, padding, time to go, best BLEU; and one for each validation."""
    shown = on_terminal("stderr", 120, "train", toy, *sets("train.steps=300", "train.valid_every=100"), cwd=tmp_path)
    pattern = r"step \d+/300  epoch [\d.]+  loss [\d.]+  lr \S+  [\d,]+ tok/s  pad [\d.]+%  ETA [\d:]+  best [\d.]+"
    assert any(re.fullmatch(pattern, line.strip()) for line in shown), [line for line in shown if line.strip()]
    assert sum("BLEU" in line and "chrF" in line and " valid " in line for line in shown) == 3
    narrow = on_terminal("stderr", 60, "train", toy, *sets("train.steps=400"), cwd=tmp_path)
    assert max(map(len, narrow)) <= 60 and any("tok/s" in line and "  best " in line for line in narrow)


RECURRENT = sets(
    *("model.family=rnn", "model.dim=32", "model.encoder_layers=2", "model.decoder_layers=2", "model.dropout=0.2"),
    *("model.span=predictive", "model.input_feeding=true", "train.consistency=simcut"),
)
CONVOLUTIONAL = sets("model.family=conv", "model.dim=32", "model.encoder_layers=2", "model.decoder_layers=2")
DECODER = sets("model.family=decoder", "model.dim=32", "model.ff=64", "model.layers=2", "model.attention_dropout=0.1")


@pytest.mark.parametrize(
    "options",
    [[], [*EVERYTHING, *LONG], [*EVERYTHING, *HELPED, *MUON], RECURRENT, CONVOLUTIONAL, DECODER],
    ids=["plain", "everything", "helped", "recurrent", "convolutional", "decoder"],
)
def test_resume_is_exact(nmt, toy, tmp_path, options):
    """40 steps = some + kill -9 in mid-epoch + the rest, by hash of the weights; the log has neither gap nor repeat.
    With everything, 200 = 100 + kill -9 + 100."""
    whole = nmt("train", toy, "--out", "whole", *options)
    assert whole.code == 0, whole.err
    command = [sys.executable, "-m", "nmt_cli", "train", str(toy), "--out", "killed", *options]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    steps, first = (200, 100) if "train.steps=200" in options else (40, 10)
    while not (tmp_path / f"killed/checkpoints/step-{first}").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    saved = checkpoints(tmp_path / "killed")[-1]
    assert first <= int(saved.name[5:]) < steps and load_state(saved).position.index > 0
    rest = nmt("train", toy, "--out", "killed", *options)
    assert rest.code == 0 and "continuing from step" in rest.err
    assert weights_hash(tmp_path / "killed") == weights_hash(tmp_path / "whole")
    for name in ("averaged", "optimizer"):
        path = f"checkpoints/last/{name}.safetensors"
        if (tmp_path / "whole" / path).exists():
            assert sha256_of(tmp_path / "killed" / path) == sha256_of(tmp_path / "whole" / path)
    for kind in ("train", "valid"):
        assert figures(tmp_path / "killed", kind) == figures(tmp_path / "whole", kind)


def test_a_cut_log_line_is_taken_back(nmt, toy, tmp_path):
    nmt("train", toy, *sets("train.steps=10"))
    log = tmp_path / "runs/toy/log.jsonl"
    last = [json.loads(line) for line in log.read_text().splitlines() if '"kind": "train"' in line][-1]
    log.write_text(log.read_text() + json.dumps({**last, "step": 15, "loss": 1.0}) + '\n{"kind": "tra')
    assert nmt("train", toy, *sets("train.steps=20")).code == 0
    assert [step for step, _ in figures(tmp_path / "runs/toy", "train")] == [5, 10, 15, 20]
    assert figures(tmp_path / "runs/toy", "train")[2][1] != 1.0


@pytest.mark.parametrize("helped", [[], HELPED], ids=["alone", "helped"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_same_command_goes_on(nmt, toy, tmp_path, number, helped):
    command = [sys.executable, "-m", "nmt_cli", "train", str(toy), *sets("train.steps=100000", "train.patience=0")]
    command += helped
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    run = tmp_path / "runs/toy"
    deadline = time.monotonic() + 120
    while not checkpoints(run) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "saved; the same command continues" in err and "Traceback" not in err
    step = int(checkpoints(run)[-1].name[5:])
    assert json.loads((run / "checkpoints/last/state.json").read_text())["step"] == step
    assert nmt("train", toy, *sets(f"train.steps={step + 5}", "train.patience=0")).code == 0
    assert checkpoints(run)[-1].name == f"step-{step + 5}"


def test_a_second_ctrl_c_quits_at_once(toy, tmp_path):
    """The first waits for the end of the update, or here of a validation that takes long."""
    slow = sets("train.steps=100000", "train.valid_every=1", "train.valid_beam=50", "train.valid_lines=0")
    command = [sys.executable, "-m", "nmt_cli", "train", str(toy), *slow, *sets("train.keep=1")]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not checkpoints(tmp_path / "runs/toy") and time.monotonic() < deadline:
        time.sleep(0.01)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT) and "Traceback" not in err  # a shell says 130 to both


def test_a_run_killed_at_its_very_end_is_finished(nmt, toy, tmp_path):
    """After the last checkpoint there is still an average to take, a model to export, and a name to give."""
    run, options = tmp_path / "runs/toy", sets("train.average=2")
    assert nmt("train", toy, *options).code == 0
    best = (run / "checkpoints/best").resolve().name
    whole = (run / "log.jsonl").read_text().splitlines(keepends=True)
    averaged = sha256_of(run / "model/model.safetensors")
    kinds = [json.loads(line)["kind"] for line in whole]
    assert kinds[-2:] == ["average", "end"]
    (run / "log.jsonl").write_text("".join(whole[:-2]))
    shutil.rmtree(run / "model/ctranslate2")
    (run / "checkpoints/best").unlink()
    (run / "checkpoints/best").symlink_to("step-30" if best != "step-30" else "step-40")
    result = nmt("train", toy, *options)
    assert result.code == 0 and "already finished" not in result.err
    assert (run / "model/ctranslate2/model.bin").exists() and (run / "checkpoints/best").resolve().name == best
    assert sha256_of(run / "model/model.safetensors") == averaged
    assert [entry.kind for entry in read_log(run)][-3:] == ["start", "average", "end"]
    assert "already finished" in nmt("train", toy, *options).err


STOPS = [
    ("train.steps=7", "7 steps", lambda last: last.step == 7),
    ("train.epochs=2", "2 epochs", lambda last: last.epoch == 2),
    ("train.tokens=3000", "3,000 tokens", lambda last: 3000 <= last.tokens < 3200),
    ("train.minutes=0.02", "0.02 minutes", lambda last: 0.02 <= last.minutes < 0.5),
]


@pytest.mark.parametrize(("limit", "reason", "check"), STOPS)
def test_stops(make_trainer, limit, reason, check):
    base = ("train.steps=0", "train.valid_every=1000", "train.log_every=1", "train.patience=1")
    trainer, entries = make_trainer(*base, limit)
    trainer.fit()
    assert isinstance(entries[-1], End) and entries[-1].reason == reason
    assert check([entry for entry in read_log(trainer.run) if entry.kind == "train"][-1])
    assert (trainer.run / "model/model.safetensors").exists()
    again, entries = make_trainer(*base, limit)
    again.fit()
    assert entries[-1] == AlreadyFinished(reason)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "constant", "cosine", "linear", "wsd"])
def test_patience_stops_with_every_schedule(make_trainer, schedule):
    """With a rate of nearly nothing the first validation stays the best."""
    slow = ("train.lr=1e-12", "train.valid_every=2", "train.patience=3", "train.metric=loss", "train.steps=1000")
    trainer, entries = make_trainer(*slow, f"train.schedule={schedule}")
    trainer.fit()
    assert entries[-1].reason == "no better in 3 validations" and trainer.state.step < 40


def test_another_recipe_is_refused_and_the_keys_are_named(nmt, toy, tmp_path):
    assert nmt("train", toy, *sets("train.steps=5")).code == 0
    before = weights_hash(tmp_path / "runs/toy")
    result = nmt("train", toy, *sets("train.lr=5e-3", "model.dropout=0.3"))
    assert_user_error(result, "model.dropout was 0.2 and is 0.3", "train.lr was 0.003 and is 0.005", "--force")
    assert weights_hash(tmp_path / "runs/toy") == before
    assert nmt("train", toy, *sets("train.lr=5e-3", "train.steps=3"), "--force").code == 0
    assert [path.name for path in checkpoints(tmp_path / "runs/toy")] == ["step-3"]


def test_the_vocabulary_is_that_of_the_prepared_data(nmt, toy, tmp_path):
    """And so says the recipe of the run, whatever was wished."""
    result = nmt("train", toy, *sets("vocab.size=70", "train.steps=2"))
    assert result.code == 0 and "prepared with vocab.size = 60: that counts, not 70" in " ".join(result.err.split())
    for folder in ("", "model/"):
        assert load_recipe(tmp_path / f"runs/toy/{folder}recipe.toml").vocab.size == 60


def test_two_vocabularies_of_one_size_are_not_tied(nmt, toy, tmp_path, prepared):
    """A piece of one would share its embedding with whatever has its number in the other."""
    files = ("--source", prepared / "a.en", "--target", prepared / "a.de", "--vocab-size", "45")
    two = sets("vocab.joint=false", "model.tie=target", "train.steps=1")
    assert nmt("prepare", *files, "--out", "two", *two).code == 0
    assert nmt("prepare", *files, "--out", "again", *sets("vocab.reuse=two")).code == 0
    assert_user_error(nmt("train", "again", *sets("train.steps=1")), 'model.tie = "all" needs one vocabulary')
    assert nmt("train", "again", *sets("train.steps=1", "model.tie=target")).code == 0


def test_force_removes_nothing_for_what_is_then_refused(nmt, toy, tmp_path):
    assert nmt("train", toy, *sets("train.steps=5")).code == 0
    run = tmp_path / "runs/toy"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert_user_error(
        nmt("train", toy, "--force", *sets("train.max_length=1")), "no training pair has at most 1 pieces"
    )
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert "already finished" in nmt("train", toy, *sets("train.steps=5")).err


@pytest.mark.parametrize("begun", [False, True])
def test_a_kill_while_force_is_at_work(nmt, toy, tmp_path, begun):
    """The old run is there again, unless the new one had come to a checkpoint."""
    run = tmp_path / "runs/toy"
    assert nmt("train", toy, *sets("train.steps=5")).code == 0
    with pytest.raises(RuntimeError), replaced_run(run):
        shutil.copytree(run, tmp_path / "killed", symlinks=True)
        raise RuntimeError
    if begun:
        shutil.copytree(tmp_path / "killed/.replaced", tmp_path / "killed", symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(run)
    (tmp_path / "killed").rename(run)
    result = nmt("train", run, *sets("train.steps=10"))
    assert result.code == 0 and "continuing from step 5" in result.err and not (run / ".replaced").exists()


def test_another_run_folder_has_the_same_data(nmt, toy, prepared, tmp_path):
    """As the README has it: --out is for what training writes."""
    own = tmp_path / "own.toml"
    own.write_text(toy.read_text().replace(f'prepared = "{prepared}/data"\n', ""))
    result = nmt("prepare", own)
    assert result.code == 0 and f"next: nmt train {own}" in result.err
    for name, out in ((own, "one"), (own, "one"), ("one", "two")):
        result = nmt("train", name, "--out", out, *sets("train.steps=3"))
        assert result.code == 0, result.err
    assert load_recipe(tmp_path / "two/recipe.toml").prepared_folder == tmp_path / "data/own"
    result = nmt("prepare", own, "--out", "elsewhere")
    assert "next: nmt train elsewhere" in result.err


def test_training_goes_on_when_nobody_reads_about_it(toy, tmp_path):
    script = f"{sys.executable} -m nmt_cli train {toy} 2>&1 >out.txt | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines()[-1] == "0" and done.stderr == ""
    assert "40 steps" in (tmp_path / "out.txt").read_text() and (tmp_path / "runs/toy/model").exists()


def test_what_killed_sessions_left(nmt, toy, tmp_path):
    """Half a checkpoint, and the vocabulary of data that were prepared anew."""
    run = tmp_path / "runs/toy"
    for name in ("checkpoints/.step-20.tmp-123", "vocab"):
        (run / name).mkdir(parents=True)
    (run / "vocab/joint.model").write_bytes(b"another")
    assert nmt("train", toy, *sets("train.steps=5")).code == 0
    assert not (run / "checkpoints/.step-20.tmp-123").exists()
    assert (run / "vocab/joint.model").read_bytes() == (run / "model/vocab/joint.model").read_bytes()


def test_a_disk_without_links_is_no_obstacle(make_trainer, tmp_path, monkeypatch):
    def symlink_to(*arguments: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(Path, "symlink_to", symlink_to)
    trainer, _ = make_trainer("train.keep=1")
    trainer.fit()
    kept = {path.name for path in checkpoints(tmp_path / "runs/toy")}
    assert kept == {"step-40", f"step-{trainer.state.best_step}"}


def test_half_of_torchruns_environment_is_none(nmt, toy):
    assert nmt("train", toy, *sets("train.steps=2"), env={"WORLD_SIZE": "2"}).code == 0


def test_another_metric_finds_its_own_best(nmt, toy, tmp_path):
    """A loss is never above a BLEU: nothing would be best any more."""
    assert nmt("train", toy, *sets("train.steps=10")).code == 0
    result = nmt("train", toy, *sets("train.steps=20", "train.metric=loss"))
    assert result.code == 0 and "no longer by bleu of 10 lines, beam 1" in " ".join(result.err.split())
    state = load_state(checkpoints(tmp_path / "runs/toy")[-1])
    assert state.best < 0 and state.best_step == 20
    same = sets("train.metric=loss", "train.valid_beam=2")  # which plays no part in a loss
    assert "no longer by" not in nmt("train", toy, *sets("train.steps=30"), *same).err


@pytest.mark.parametrize("known", [True, False], ids=["", "older version"])
def test_the_best_model_is_measured_anew_by_another_yardstick(make_trainer, tmp_path, known):
    """So that a worse one does not take its place."""
    trainer, _ = make_trainer("train.steps=10")
    trainer.measure = lambda weights: measured(trainer, 20.0)
    trainer.fit()
    before = sha256_of(tmp_path / "runs/toy/model/model.safetensors")
    file = tmp_path / "runs/toy/checkpoints/step-10/state.json"
    if not known:
        file.write_text(json.dumps({**json.loads(file.read_text()), "yardstick": ""}))
    trainer, _ = make_trainer("train.steps=20", "train.valid_lines=5")
    values = iter([30.0, 25.0])
    trainer.measure = lambda weights: measured(trainer, next(values))
    trainer.fit()
    state = load_state(checkpoints(tmp_path / "runs/toy")[-1])
    assert (state.best, state.best_step) == (30.0, 10) and state.stale == 1
    assert sha256_of(tmp_path / "runs/toy/model/model.safetensors") == before


def test_weights_that_have_diverged_are_not_kept(make_trainer, tmp_path):
    trainer, _ = make_trainer("train.steps=40", "train.valid_every=5", "train.keep=1")
    plain = trainer.update

    def update() -> bool:
        if trainer.state.step == 12:
            trainer.parameters[0].data.fill_(math.inf)
        return plain()

    trainer.update = update
    with pytest.raises(NmtError, match="it diverged"):
        trainer.fit()
    kept = checkpoints(tmp_path / "runs/toy")
    assert (tmp_path / "runs/toy/checkpoints/last").resolve().name == "step-10"
    assert all(tensor.isfinite().all() for path in kept for tensor in load_file(path / "model.safetensors").values())


def test_a_run_that_ends_while_it_diverges_is_no_success(nmt, toy, tmp_path):
    result = nmt("train", toy, *sets("train.schedule=constant", "train.lr=1e30", "train.steps=6"))
    assert result.code == 1 and result.out == b"" and "it diverged\nhint: lower train.lr" in result.err
    assert not (tmp_path / "runs/toy/model").exists()


def test_without_validation_lines(nmt, toy, tmp_path, prepared):
    """The last weights are kept, or the average; and patience alone would never end."""
    files = ("--source", prepared / "a.en", "--target", prepared / "a.de", "--vocab-size", "60", "--out", "bare")
    assert nmt("prepare", *files, *sets("data.hold_out=0")).code == 0
    small = sets("model.dim=32", "model.ff=64", "train.batch_tokens=128", "train.precision=fp32")
    endless = nmt("train", "bare", *small, *sets("train.steps=0", "train.patience=3"))
    assert_user_error(endless, "nothing would ever stop the training", "validation lines")
    options = (*small, *sets("train.valid_every=10", "train.average=2"))
    assert nmt("train", "bare", *options, *sets("train.steps=20")).code == 0
    run = tmp_path / "runs/bare"
    parts = [load_file(run / f"checkpoints/step-{step}/model.safetensors") for step in (10, 20)]
    for name, tensor in load_file(run / "model/model.safetensors").items():
        torch.testing.assert_close(tensor, (parts[0][name] + parts[1][name]) / 2)
    longer = nmt("train", "bare", *options, *sets("train.steps=30"))
    assert longer.code == 0 and "best 20" not in longer.err


MISTAKES = [
    (["none-such"], "there is no recipe none-such"),
    (["toy.toml", *sets("train.stpes=5")], "did you mean train.steps?"),
    (["toy.toml", *sets("data.prepared=nowhere")], "there are no prepared data in nowhere"),
    (["toy.toml", *sets("train.device=cuda")], "the device cuda is not there"),
    (["toy.toml", "--from", "nowhere"], "there is no model nowhere"),
    (["toy.toml", "--from", "empty"], "empty is not a model"),
    (["toy.toml", *sets("train.max_length=1")], "no training pair has at most 1 pieces"),
    (["toy.toml", *sets("train.tensorboard=true")], "needs TensorBoard"),
    (["toy.toml", *sets("train.steps=inf")], "train.steps: must be a finite number, not inf"),
    (["toy.toml", *sets('model.family=["rnn"]')], "model.family: must be one of transformer"),
    (["toy.toml", *sets("train.seed=18446744073709551616")], "train.seed: must be at most"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes(nmt, toy, tmp_path, options, message):
    (tmp_path / "empty").mkdir()
    hidden = {}
    if "TensorBoard" in message:
        (tmp_path / "tensorboard.py").write_text("raise ImportError")  # as if it were not installed
        hidden = {"PYTHONPATH": str(tmp_path)}
    assert_user_error(nmt("train", *options, env=hidden), message)
    assert not (tmp_path / "runs/toy/checkpoints").exists()


def test_tensorboard_has_the_figures_of_the_log(nmt, toy, tmp_path):
    """... once each, although the run was interrupted and went on."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for steps in (20, 40):
        assert nmt("train", toy, *sets("train.tensorboard=true", f"train.steps={steps}")).code == 0
    run = tmp_path / "runs/toy"
    board = events.EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    for kind, key in (("train", "loss"), ("train", "lr"), ("valid", "loss"), ("valid", "bleu")):
        logged = [(entry.step, getattr(entry, key)) for entry in read_log(run) if entry.kind == kind]
        shown = [(event.step, event.value) for event in board.Scalars(f"{kind}/{key}")]
        assert [step for step, _ in shown] == [step for step, _ in logged]
        assert [value for _, value in shown] == pytest.approx([value for _, value in logged], rel=1e-5)


def test_two_at_once_are_refused(nmt, toy, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / "runs/toy").mkdir(parents=True)
    with (tmp_path / "runs/toy/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert_user_error(nmt("train", toy), "another nmt train is already running in")


def test_fine_tuning(nmt, toy, tmp_path, prepared):
    assert nmt("train", toy, "--out", "parent", *sets("train.steps=20")).code == 0
    # other data, the same vocabulary
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
    # with another parent it would be another child
    same = ("train", toy, "--out", "child", *sets("data.prepared=other", "train.steps=1", "train.lr=1e-12"))
    assert_user_error(nmt(*same, "--from", "child"), "was begun from", "parent")
    # another vocabulary is refused
    assert nmt("prepare", *files[:5], "foreign", "--vocab-size", "50").code == 0
    refused = nmt("train", toy, "--from", "parent", "--out", "c2", *sets("data.prepared=foreign"))
    assert_user_error(refused, "another vocabulary", "vocab.reuse=parent")
    # another model too
    for change in ("model.ff=32", "model.heads=4", "model.activation=gelu"):
        refused = nmt("train", toy, "--from", "parent", "--out", "c3", *sets(change))
        assert_user_error(refused, "parent is another model", change.split("=")[0])
    # and nothing is removed for what is then refused
    for options in (("--from", "parent", *sets("model.heads=4")), ("--from", "parent"), ("--from", "nowhere")):
        assert nmt("train", toy, "--out", "parent", "--force", *options).code == 1
        assert (tmp_path / "parent/model/model.safetensors").exists()


def test_fine_tuning_as_the_docs_say(nmt, toy, tmp_path):
    assert nmt("train", toy, "--out", "old", *sets("train.steps=5")).code == 0
    for name, text in zip(("new.en", "new.de"), corpus(200, 7000), strict=True):
        (tmp_path / name).write_text(text)
    files = ("--source", "new.en", "--target", "new.de", "--out", "data/new")
    result = nmt("prepare", "old/recipe.toml", *files, *sets("vocab.reuse=old"))
    assert result.code == 0, result.err
    tune = ("train", "data/new", "--from", "old", "--out", "new", *sets("train.lr=1e-4", "train.valid_every=5"))
    result = nmt(*tune, *sets("train.steps=10"))
    assert result.code == 0, result.err
    shutil.rmtree(tmp_path / "old")  # what began it is not needed to go on
    result = nmt(*tune, *sets("train.steps=15"))
    assert result.code == 0 and "continuing from step 10" in result.err, result.err


def test_a_run_that_was_moved_goes_on_where_it_is(nmt, toy, tmp_path):
    assert nmt("train", toy, "--out", "old", *sets("train.steps=10")).code == 0
    shutil.copytree(tmp_path / "old", tmp_path / "new", symlinks=True)
    assert nmt("train", "new", *sets("train.steps=20")).code == 0
    assert checkpoints(tmp_path / "new")[-1].name == "step-20" and checkpoints(tmp_path / "old")[-1].name == "step-10"
    assert nmt("train", "new", "--out", "newer", *sets("train.steps=5")).code == 0
    assert checkpoints(tmp_path / "newer")[-1].name == "step-5"


def test_what_is_longer_than_learned_positions_is_left_out(nmt, toy, tmp_path):
    """Of training and of validation, rather than ending it: the toy's sentences have up to 11 pieces."""
    learned = sets("model.positions=learned", "model.max_positions=10", "data.clean.max_tokens=0", "train.steps=20")
    result = nmt("train", toy, *learned, *sets("train.subword_sampling=0.3"))
    assert result.code == 0, result.err
    assert re.search(r"\d+ validation lines have more pieces than the model has positions", result.err)
    (start,) = (entry for entry in read_log(tmp_path / "runs/toy") if entry.kind == "start")
    assert 0 < start.pairs < 400 and 0 < start.valid_lines < 10


def test_the_last_update_is_made_too(nmt, toy, tmp_path):
    """A schedule that ends at 0 has not reached it in its last update."""
    options = sets("train.schedule=linear", "train.steps=10", "train.warmup=0", "train.lr=1e-3", "train.log_every=1")
    assert nmt("train", toy, *options).code == 0
    rates = [entry.lr for entry in read_log(tmp_path / "runs/toy") if entry.kind == "train"]
    assert rates == pytest.approx([1e-3 * (1 - step / 10) for step in range(10)])


def assert_same_weights(one: dict, two: dict, tolerance: float) -> None:
    """Up to rounding, where sums were taken in another order.

    A bias of the keys adds the same to every score, so its gradient is 0 up to rounding, and Adam makes of the rounding
    a full step in a random direction: it differs, and nothing depends on it.
    """
    assert one.keys() == two.keys()
    for name in one:
        rows = {"qkv.bias": [0, 2], "keys_values.bias": [1]}.get(".".join(name.split(".")[-2:]))
        ours, theirs = (tensors[name].unflatten(0, (-1, 32))[rows] if rows else tensors[name] for tensors in (one, two))
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)


def torchrun(tmp_path: Path, processes: int, *args: object, restarts: int = 0) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    command += ["--max-restarts", str(restarts), "--master-port", str(20000 + os.getpid() % 10000)]
    command += ["-m", "nmt_cli", "train", *map(str, args)]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("accumulate", [2, 1], ids=["whole micro-batches", "parts of one"])
@pytest.mark.parametrize("helped", [False, True], ids=["torchrun", "helped"])
def test_two_processes_are_one_with_the_same_batch(nmt, toy, tmp_path, accumulate, helped):
    options = sets("model.dropout=0", f"train.accumulate={accumulate}", "train.steps=10", "train.average=2")
    options += sets("train.subword_sampling=0.1")
    assert nmt("train", toy, "--out", "one", *options).code == 0
    if helped:
        assert "2 processes of " in nmt("train", toy, "--out", "two", *options, *HELPED).err
    else:
        done = torchrun(tmp_path, 2, toy, "--out", "two", *options)
        assert done.returncode == 0, done.stderr
    one, two = (load_file(tmp_path / run / "checkpoints/last/model.safetensors") for run in ("one", "two"))
    assert_same_weights(one, two, 1e-6)
    assert [entry.processes for entry in read_log(tmp_path / "two") if entry.kind == "start"] == [2]
    ours, theirs = figures(tmp_path / "two", "train"), figures(tmp_path / "one", "train")
    assert [step for step, _ in ours] == [step for step, _ in theirs]
    assert np.allclose([loss for _, loss in ours], [loss for _, loss in theirs], atol=1e-5)
    # they validate together, too
    ours, theirs = ([entry for entry in read_log(tmp_path / run) if isinstance(entry, Valid)] for run in ("two", "one"))
    assert [entry.kind for entry in ours] == [entry.kind for entry in theirs]
    for key in ("loss", "bleu", "chrf", "lines"):
        assert np.allclose(
            [getattr(entry, key) for entry in ours], [getattr(entry, key) for entry in theirs], atol=1e-4
        )


DEATHS = [
    (3, "os.kill(os.getpid(), 9)", "it was killed"),
    (2, "import nmt_cli.training.loss as l; l.TrainingLoss.forward = None", "TypeError: 'NoneType' object is not"),
]


@pytest.mark.parametrize(("processes", "death", "why"), DEATHS, ids=["killed", "failed"])
def test_a_helper_that_dies_is_an_error(toy, tmp_path, monkeypatch, processes, death, why):
    """One of them; the last checkpoint stands."""
    run = tmp_path / "runs/toy"
    (tmp_path / "sitecustomize.py").write_text(  # every Python process of the test imports it
        f"""
import os, sys, threading, time
def watch():
    while not os.path.exists({str(run / "checkpoints/step-10")!r}):
        time.sleep(0.01)
    try:
        os.open({str(tmp_path / "first")!r}, os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    {death}
if "--multiprocessing-fork" in sys.orig_argv:
    threading.Thread(target=watch, daemon=True).start()
"""
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, "-m", "nmt_cli", "train", str(toy)]
    command += sets(f"train.processes={processes}", "train.steps=100000")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert f"error: a helping process is gone: {why}" in done.stderr and "train.processes=1" in done.stderr
    assert "Traceback" not in done.stderr and "\n\n" not in done.stderr
    assert (run / "checkpoints/step-10/state.json").exists()


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_ctrl_c_while_helpers_start(toy, tmp_path, seconds):
    """It goes to all processes of the terminal, long before they have met."""
    command = [sys.executable, "-m", "nmt_cli", "train", str(toy), *HELPED]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("no /proc to see when the helper is there")
    deadline = time.monotonic() + 60
    while not children.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in err


@pytest.mark.parametrize("seconds", [0.0, 6.0])
def test_helpers_end_with_their_leader(toy, tmp_path, seconds):
    """However it dies, and wherever they are."""
    command = [sys.executable, "-m", "nmt_cli", "train", str(toy), *HELPED, *sets("train.steps=100000")]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    assert_children_die(process, seconds, signal.SIGKILL)


def test_a_killed_worker_goes_on_from_the_last_checkpoint(toy, tmp_path, monkeypatch):
    """torchrun starts all again; the run is as if nothing had happened."""
    marker = tmp_path / "killed"
    killer = tmp_path / "sitecustomize.py"  # every Python process of the test imports it
    killer.write_text(
        f"""
import os, threading, time
def watch():
    while not os.path.exists({str(tmp_path / "runs/toy/checkpoints/step-10")!r}):
        time.sleep(0.01)
    if not os.path.exists({str(marker)!r}):
        open({str(marker)!r}, "w").close()
        os.kill(os.getpid(), 9)
if os.environ.get("RANK") == "1":
    threading.Thread(target=watch, daemon=True).start()
"""
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = torchrun(tmp_path, 2, toy, "--force", restarts=2)  # which counts once
    assert done.returncode == 0, done.stderr
    assert marker.exists()
    starts = [entry for entry in read_log(tmp_path / "runs/toy") if entry.kind == "start"]
    assert [entry.resumed for entry in starts] == [False, True] and starts[1].step >= 10
    assert [step for step, _ in figures(tmp_path / "runs/toy", "train")] == list(range(5, 41, 5))
    killer.unlink()
    assert torchrun(tmp_path, 2, toy, "--out", "whole").returncode == 0
    assert weights_hash(tmp_path / "runs/toy") == weights_hash(tmp_path / "whole")


# ---------------------------------------------------------------------------------------------------------------------
# Mishaps, in this process, where they can be arranged


@pytest.fixture
def make_trainer(toy):
    from nmt_cli.training.trainer import Trainer

    def make(*overrides: str):
        entries: list = []
        recipe = load_recipe(toy, parse_overrides(overrides))
        recipe.run_folder.mkdir(parents=True, exist_ok=True)
        return Trainer(recipe, World(), torch.device("cpu"), None, entries.append), entries

    return make


def test_out_of_memory_halves_the_micro_batch_with_the_same_result(make_trainer, tmp_path):
    def weights(most_rows: int) -> dict:
        options = ("model.dropout=0", "train.steps=4", "train.accumulate=2")
        trainer, entries = make_trainer(f"train.out={tmp_path}/{most_rows}", *options)
        plain, calls = trainer.loss, count()

        def limited(src, tgt_in, tgt_out):
            # the first micro-batch passes, and its gradient must not count twice
            if next(calls) and len(src) > most_rows:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return plain(src, tgt_in, tgt_out)

        trainer.loss = limited
        trainer.fit()
        notes = [entry.text for entry in entries if isinstance(entry, Note)]
        assert bool(notes) == (most_rows < 100) and all("out of memory" in note for note in notes)
        return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}

    assert_same_weights(weights(100), weights(4), 1e-5)


def test_out_of_memory_with_one_row_is_an_error(make_trainer):
    trainer, _ = make_trainer()

    def never(*args):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    trainer.loss = never
    with pytest.raises(NmtError, match="even with one sentence at a time"):
        trainer.fit()


def test_other_errors_are_not_taken_for_it(make_trainer):
    trainer, _ = make_trainer()

    def broken(*args):
        raise RuntimeError("a bug")

    trainer.loss = broken
    with pytest.raises(RuntimeError, match="a bug"):
        trainer.fit()


def test_non_finite_updates_are_skipped_and_counted(make_trainer):
    trainer, entries = make_trainer("train.steps=12")
    plain, calls = trainer.loss, []

    def sometimes(src, tgt_in, tgt_out):
        calls.append(1)
        loss, nll, count = plain(src, tgt_in, tgt_out)
        return (loss * float("nan") if len(calls) in (3, 5) else loss), nll, count

    trainer.loss = sometimes
    trainer.fit()
    assert trainer.state.skipped == 2
    assert sum(isinstance(entry, Note) and "not finite" in entry.text for entry in entries) == 2
    assert all(torch.isfinite(p).all() for p in trainer.parameters)


def test_many_non_finite_updates_in_a_row_stop_with_a_reason(make_trainer, tmp_path):
    from nmt_cli.errors import NmtError

    trainer, _ = make_trainer("train.steps=100")
    plain = trainer.loss

    def later(src, tgt_in, tgt_out):
        loss, nll, count = plain(src, tgt_in, tgt_out)
        return (loss * float("inf") if trainer.state.step >= 12 else loss), nll, count

    trainer.loss = later
    with pytest.raises(NmtError, match="10 times in a row") as caught:
        trainer.fit()
    assert "train.clip" in caught.value.hint
    last = checkpoints(tmp_path / "runs/toy")[-1]  # of step 20, but with the weights of step 12: the rest was skipped
    assert all(torch.isfinite(tensor).all() for tensor in load_file(last / "model.safetensors").values())


def test_validation_by_minutes(make_trainer):
    """On a clock that goes on by 20 seconds whenever someone looks at it."""
    trainer, entries = make_trainer("train.valid_every=1000", "train.valid_minutes=2", "train.steps=20")
    clock = count(0.0, 20.0)
    trainer.now = lambda: next(clock)
    trainer.fit()
    validated = [entry.step for entry in entries if isinstance(entry, Valid)]
    assert 3 <= len(validated) < 20 and validated[-1] == 20


def test_clipping_scales_the_whole_gradient(make_trainer):
    """Plain descent at a rate of 1 shows the gradient that was used: as long as it may be, and in its old direction."""
    moved = {}
    for clip in (0.0, 0.05, 1e9):
        trainer, _ = make_trainer(f"train.clip={clip}", "train.schedule=constant", "train.lr=1", "train.warmup=0")
        trainer.optimizers = [torch.optim.SGD(trainer.parameters, lr=0.0)]
        before = torch.cat([p.detach().flatten().clone() for p in trainer.parameters])
        trainer.update()
        moved[clip] = before - torch.cat([p.detach().flatten() for p in trainer.parameters])
    assert moved[0.0].norm() > 0.1
    assert moved[0.05].norm() == pytest.approx(0.05, rel=1e-3)
    torch.testing.assert_close(moved[0.05] / 0.05, moved[0.0] / moved[0.0].norm(), atol=1e-4, rtol=0)
    torch.testing.assert_close(moved[1e9], moved[0.0])


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_weight_decay_is_on_matrices_only(optimizer):
    """By the formulas: adamw shrinks the weights by rate x decay; adam adds decay x weights to the gradient, and its
    first step is the sign of that."""
    model = build_model(Transformer(dim=8, heads=2, ff=16, encoder_layers=1, decoder_layers=1), 20, 20)
    (made,) = make_optimizers(model, Train(optimizer=optimizer, weight_decay=0.1, epsilon=1e-9))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for group in made.param_groups:
        group["lr"] = 0.01
    made.step()
    for name, parameter in model.named_parameters():
        gradient = 0.1 * before[name]
        step = {"adam": 0.01 * gradient / (gradient.abs() + 1e-9), "adamw": 0.01 * gradient}[optimizer]
        expected = before[name] - step if parameter.dim() == 2 else before[name]
        torch.testing.assert_close(parameter.detach(), expected, atol=1e-6, rtol=1e-5)


def test_a_run_that_a_signal_stopped_and_that_is_then_over(make_trainer, tmp_path):
    """Its last weights are measured without another update, and that is remembered."""
    trainer, _ = make_trainer("train.steps=20")
    plain = trainer.update
    trainer.update = lambda: (
        (plain(), setattr(trainer, "wish", signal.SIGTERM))[0] if trainer.state.step == 14 else plain()
    )
    trainer.fit()
    run = tmp_path / "runs/toy"
    assert (run / "checkpoints/last").resolve().name == "step-15" and load_state(
        run / "checkpoints/last"
    ).validated == 10
    trainer, entries = make_trainer("train.steps=15")
    trainer.measure = lambda weights: measured(trainer, 99.0)
    trainer.fit()
    assert [entry.step for entry in entries if isinstance(entry, Valid)] == [15]
    state = load_state(run / "checkpoints/last")
    assert (state.validated, state.best, state.best_step) == (15, 99.0, 15)
    assert (run / "checkpoints/best").resolve().name == "step-15"


def test_validation_halves_what_does_not_fit():
    def work(rows: slice) -> list[int]:
        if rows.stop - rows.start > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return list(range(100))[rows]

    assert [n for part in in_parts(work, slice(5, 50)) for n in part] == list(range(5, 50))
    with pytest.raises(RuntimeError, match="a bug"):
        list(in_parts(lambda rows: (_ for _ in ()).throw(RuntimeError("a bug")), slice(0, 9)))


def test_what_the_disk_refuses_is_a_sentence(tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # of a file; a full disk would say the same
    try:
        with pytest.raises(NmtError, match="cannot be written"):
            save_tensors({"x": torch.zeros(100_000)}, tmp_path / "x.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_leftovers_of_a_process_with_the_same_number(tmp_path):
    """In a container the first process is always number 1."""
    left = tmp_path / f".model.tmp-{os.getpid()}"
    left.mkdir()
    (left / "half").write_text("x")
    with new_folder(tmp_path / "model") as aside:
        (aside / "whole").write_text("y")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["whole"] and not left.exists()


def test_a_disk_without_locks_is_no_obstacle(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def no_locks(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with exclusive(tmp_path / ".lock", "another"):
        pass


def test_a_better_average_is_to_be_beaten(make_trainer, tmp_path):
    trainer, _ = make_trainer("train.steps=20", "train.average=2")
    values = iter([1.0, 2.0, 5.0])
    trainer.measure = lambda weights: measured(trainer, next(values))
    trainer.fit()
    assert load_state(checkpoints(tmp_path / "runs/toy")[-1]).best == 5.0


def test_moving_average_follows_its_formula(make_trainer):
    trainer, _ = make_trainer("train.ema=0.7")
    expected = {name: tensor.double().clone() for name, tensor in trainer.model.state_dict().items()}
    for step in range(1, 6):
        trainer.update()
        decay = min(0.7, (1 + step) / (10 + step))
        for name, tensor in trainer.model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * tensor.double()
    for name, tensor in trainer.averaged.items():
        torch.testing.assert_close(tensor.double(), expected[name], atol=1e-6, rtol=0)
    own = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    with trainer.in_place(trainer.averaged):
        for name, tensor in trainer.model.state_dict().items():
            torch.testing.assert_close(tensor.double(), expected[name], atol=1e-6, rtol=0)
    assert all(torch.equal(own[name], tensor) for name, tensor in trainer.model.state_dict().items())


def test_averaging_checkpoints(nmt, toy, tmp_path):
    result = nmt("train", toy, *sets("train.average=3", "train.metric=loss"))
    assert result.code == 0, result.err
    run = tmp_path / "runs/toy"
    entry = next(entry for entry in read_log(run) if entry.kind == "average")
    assert list(entry.checkpoints) == ["step-20", "step-30", "step-40"]
    mean = average(checkpoints(run))
    parts = [load_file(folder / "model.safetensors") for folder in checkpoints(run)]
    for name in mean:
        torch.testing.assert_close(mean[name], sum(part[name] for part in parts) / 3)
    if entry.best:
        kept = load_file(run / "model/model.safetensors")
        assert all(torch.equal(kept[name], mean[name]) for name in mean)


# ---------------------------------------------------------------------------------------------------------------------
# Pure parts


@pytest.mark.parametrize("shape", [(8, 8), (24, 8), (8, 20), (128, 128)])
def test_muon_steps_along_every_direction_alike(shape):
    """By the singular value decomposition: U V' of the gradient, each singular value between 0.7 and 1.3."""
    generator = torch.Generator().manual_seed(1)
    left, _, right = torch.linalg.svd(torch.randn(3, *shape, generator=generator), full_matrices=False)
    for scale in (1e-9, 1.0, 1e6):
        values = torch.logspace(-1.6, 0, min(shape))
        found = orthogonal(scale * (left * values) @ right)
        values = torch.linalg.diagonal(left.mT @ found @ right.mT)
        assert values.min() > 0.7 and values.max() < 1.3
        torch.testing.assert_close(left * values[:, None] @ right, found, atol=1e-4, rtol=0)
    assert not orthogonal(torch.zeros(1, *shape)).any()


def test_muon_has_the_matrices_and_adam_the_rest():
    model = build_model(Transformer(dim=8, heads=2, ff=16, encoder_layers=1, decoder_layers=1), 20, 20)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    adam, muon = make_optimizers(model, Train(optimizer="muon", weight_decay=0.1))
    names = {parameter: name for name, parameter in model.named_parameters()}
    held = [{names[p] for group in o.param_groups for p in group["params"]} for o in (adam, muon)]
    assert held[0] | held[1] == set(before) and not held[0] & held[1]
    assert {name for name in before if before[name].dim() == 2 and "embedding" not in name} == held[1]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for optimizer in (adam, muon):
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        optimizer.step()
    weight = "encoder.0.attention.output.weight"
    # All ones has one singular vector, ones / 8, and Nesterov's momentum of ones is a multiple of ones.
    step = before[weight] * (1 - 0.01 * 0.1) - dict(model.named_parameters())[weight]
    torch.testing.assert_close(step, step[0, 0].expand(8, 8).contiguous(), atol=1e-6, rtol=0)
    assert 0.6 < step[0, 0] * 8 / (0.01 * 0.2 * 8**0.5) < 1.3


def test_muon_takes_fused_matrices_one_by_one():
    """Queries with a gradient a thousand times as large as the values' step no further than these."""
    model = build_model(Transformer(dim=8, heads=2, ff=16, encoder_layers=1, decoder_layers=1), 20, 20)
    _, muon = make_optimizers(model, Train(optimizer="muon", weight_decay=0.0))
    weight = model.get_parameter("decoder.0.attention.qkv.weight")
    before = weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    weight.grad[:8] *= 1000
    muon.param_groups[0]["lr"] = 0.01
    muon.step()
    for part in ((weight - before) / (0.01 * 0.2 * 8**0.5)).chunk(3):
        values = torch.linalg.svdvals(part)
        assert values.min() > 0.6 and values.max() < 1.3


def test_muon_shares_the_work_among_processes(monkeypatch):
    """Each finds some directions; their sum is what one alone finds."""
    sent: dict[World, list] = {}
    for world in (World(), World(0, 3), World(1, 3), World(2, 3)):

        def add_up(tensors, world):
            sent[world] = [tensor.clone() for tensor in tensors]

        monkeypatch.setattr("nmt_cli.training.distributed.add_up", add_up)
        torch.manual_seed(1)
        model = build_model(Transformer(dim=8, heads=2, ff=16, encoder_layers=1, decoder_layers=1), 20, 20)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape)
        make_optimizers(model, Train(optimizer="muon"), world)[1].step()
    alone, *others = sent.values()
    for whole, *parts in zip(alone, *others, strict=True):
        torch.testing.assert_close(whole, sum(parts))
        assert all(0 < len(part.flatten(1).any(1).nonzero()) < len(whole) for part in parts[: len(whole)])


def test_the_papers_learning_rate():
    """Section 5.3, written out."""
    settings = Train(warmup=4000)
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        assert learning_rate(step, 0.3, settings, 512) == pytest.approx(
            512**-0.5 * min(step**-0.5, step * 4000**-1.5), rel=1e-12
        )
    assert learning_rate(500, 0.3, Train(warmup=500, lr=2e-3), 256) == pytest.approx(2e-3)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [  # share of the budget: rate, after the warm-up
        ("constant", {0.1: 1, 0.5: 1, 1: 1, 2: 1}),
        ("linear", {0.1: 0.9, 0.5: 0.5, 1: 0, 2: 0}),
        ("cosine", {0.25: (1 + math.cos(math.pi / 4)) / 2, 0.5: 0.5, 1: 0, 2: 0}),
        ("wsd", {0.1: 1, 0.8: 1, 0.9: 0.5, 1: 0, 2: 0}),  # the last fifth
    ],
)
def test_schedules(schedule, values):
    settings = Train(schedule=schedule, warmup=10, lr=1.0)
    for spent, value in values.items():
        assert learning_rate(10, spent, settings, 256) == pytest.approx(value, abs=1e-12)
        assert learning_rate(900, spent, settings, 256) == pytest.approx(value, abs=1e-12)
        assert learning_rate(5, spent, settings, 256) == pytest.approx(value / 2, abs=1e-12)


@pytest.mark.parametrize("limit", ["steps=8", "epochs=0.5", "tokens=2000", "minutes=0.03"])
def test_the_schedule_ends_with_the_budget(nmt, toy, tmp_path, limit):
    options = ("train.schedule=linear", "train.warmup=1", "train.lr=1e-3", "train.log_every=1", "train.steps=0")
    assert nmt("train", toy, *sets(*options, f"train.{limit}")).code == 0
    rates = [entry.lr for entry in read_log(tmp_path / "runs/toy") if entry.kind == "train"]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 0.7e-3
    assert rates[-1] < 0.2e-3


LENGTHS = np.stack([np.random.default_rng(0).integers(2, 40, 5000), np.random.default_rng(1).integers(2, 40, 5000)], 1)


def test_every_pair_is_in_an_epoch_once_and_within_the_budget():
    batches = lay_out(LENGTHS, 512, np.random.default_rng(1))
    assert sorted(np.concatenate(batches)) == list(range(5000))
    assert all(len(rows) * LENGTHS[rows].max() <= 512 for rows in batches)


def test_a_row_longer_than_the_budget_is_alone():
    lengths = np.array([[5, 5], [900, 3], [4, 4]])
    batches = lay_out(lengths, 100, np.random.default_rng(1))
    assert [1] in [rows.tolist() for rows in batches] and sorted(np.concatenate(batches)) == [0, 1, 2]


def numbers(micro_batches) -> list[list[int]]:
    """Rows of the corpus."""
    return [batch.pool.rows[batch.numbers].tolist() for batch in micro_batches]


def test_order_is_a_function_of_seed_and_epoch(toy_data):
    def order(seed, epoch):
        return numbers(BatchStream(toy_data(), 512, seed, Position(epoch)).take(10))

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1) and order(1, 0) != order(2, 0)


def test_padding_is_below_five_percent():
    """On lengths as Multi30k has them: around 14, the sides alike but not equal."""
    random = np.random.default_rng(0)
    source = np.clip(random.gamma(12, 1.2, 29_000), 3, 60).astype(int)
    target = np.clip(source + random.normal(0.5, 2.5, 29_000), 3, 60).astype(int)
    lengths = np.stack([source, target], 1)
    for budget in (1024, 4096):
        batches = lay_out(lengths, budget, np.random.default_rng(1))
        cells = sum(len(rows) * lengths[rows].max(0).sum() for rows in batches)
        assert 1 - lengths.sum() / cells < 0.05


@pytest.fixture
def toy_data(prepared):
    """toy_data(0.1) is the toy corpus with BPE-dropout."""
    vocab = load_vocab(prepared / "data/vocab")
    return lambda sampling=0.0, longest=0: ParallelData(prepared / "data", "train", vocab, longest, sampling)


@pytest.mark.parametrize("sampling", [0.0, 0.1])
@pytest.mark.parametrize("pool", [1 << 15, 150])
def test_a_stream_can_be_entered_anywhere(toy_data, monkeypatch, sampling, pool):
    """In the middle of an epoch, of a pool, or at the border; what came before does not matter."""
    monkeypatch.setattr(batches, "POOL", pool)
    monkeypatch.setattr(batches, "SAMPLED_POOL", pool)
    stream, seen, epochs = BatchStream(toy_data(sampling), 128, 1, Position()), [], []
    while stream.position.epoch < 2:
        epochs.append(stream.epochs)
        seen.append((stream.position, *stream.take(1)))
    assert epochs == sorted(epochs) and epochs[0] == 0 and 1.9 < epochs[-1] <= 2
    rows = [row for _, batch in seen for row in numbers([batch])[0]]
    assert sorted(rows[:400]) == list(range(400)) and rows[400:800] != rows[:400]  # each pair once in an epoch
    for position, batch in seen[::7]:
        (again,) = BatchStream(toy_data(sampling), 128, 1, position).take(1)
        assert again.read().src.tolist() == batch.read().src.tolist()
        assert again.read().tgt_out.tolist() == batch.read().tgt_out.tolist()


def test_sampled_pieces_are_drawn_before_batches_are_made(toy_data, prepared):
    """Then these keep to the budget, have little padding, and are the same whoever reads them."""
    data = toy_data(0.3)
    micro = BatchStream(data, 128, 1, Position()).take(40)
    read = [batch.read() for batch in micro]
    assert all(max(batch.src.size, batch.tgt_out.size) <= 128 for batch in read)
    filled, cells = (sum(map(count, read)) for count in (lambda b: b.tokens + b.source_tokens, lambda b: b.cells))
    assert 1 - filled / cells < 0.05
    assert filled > 1.05 * sum(data.lengths[rows].sum() for rows in numbers(micro))  # more pieces than before
    text = (prepared / "a.en").read_text().splitlines()
    processor = load_vocab(prepared / "data/vocab").source
    for batch, rows in zip(read[:3], numbers(micro), strict=False):
        for ids, row in zip(batch.src.tolist(), rows, strict=True):
            assert processor.decode(ids[: ids.index(EOS)]) == text[row]
    for part in range(3):
        assert micro[0].part(part, 3).read().src.tolist() == [
            row[: micro[0].part(part, 3).read().src.shape[1]] for row in read[0].src[part::3].tolist()
        ]


def test_sampling_makes_no_sentence_too_long(toy_data):
    """For the positions that a model has, say: then it stays as it is."""

    def longest(data) -> int:
        return max(batch.read().src.shape[1] for batch in BatchStream(data, 128, 1, Position()).take(40))

    assert longest(toy_data(1.0, 15)) <= 16 < longest(toy_data(1.0))


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_processes_share_everything_once(processes, count):
    micro = [MicroBatch(None, np.arange(10) + 10 * n) for n in range(count)]
    rows = [row for rank in range(processes) for part in share(micro, rank, processes) for row in part.numbers.tolist()]
    assert sorted(rows) == list(range(10 * count))


def test_batches_are_shifted_and_padded():
    batch = make_batch([[7, 8], [9]], [[5], [6, 7, 8]])
    assert batch.src.tolist() == [[7, 8, EOS], [9, EOS, PAD]]
    assert batch.tgt_in.tolist() == [[BOS, 5, PAD, PAD], [BOS, 6, 7, 8]]
    assert batch.tgt_out.tolist() == [[5, EOS, PAD, PAD], [6, 7, 8, EOS]]
    assert (batch.tokens, batch.source_tokens, batch.cells) == (6, 5, 14)
    assert make_batch([[]], [[]]).tgt_out.tolist() == [[EOS]]


def test_dry_run_does_nothing(nmt, toy, tmp_path):
    """The size is that of the prepared vocabulary, whatever the recipe says."""
    before = sorted(tmp_path.rglob("*"))
    result = nmt("train", toy, "--dry-run", *sets("vocab.size=8000"))
    assert result.code == 0 and sorted(tmp_path.rglob("*")) == before
    assert "target_embedding 1,920" in result.text and "learning rate, inverse_sqrt" in result.text  # 60 x 32


def test_the_scale_of_fp16_changes_nothing_else(toy, tmp_path, monkeypatch):
    """The gradient is divided by what the loss was multiplied by, also in the update that doubles it, which 2000 good
    ones do; one that overflows halves it and is skipped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Compute, "autocast", lambda self: nullcontext())  # the bookkeeping alone
    found, recipe = {}, load_recipe(toy)
    recipe.run_folder.mkdir(parents=True)
    for precision in ("fp32", "fp16"):
        trainer = Trainer(recipe, World(), torch.device("cpu"), None, lambda entry: None)
        trainer.compute = Compute(torch.device("cpu"), precision, "")
        trainer.state.good_steps = 1998
        for _ in range(3):
            trainer.update()
        found[precision] = torch.cat([parameter.detach().flatten() for parameter in trainer.parameters])
        assert trainer.window.norm < 100
        trainer.log.close()
    torch.testing.assert_close(found["fp16"], found["fp32"], atol=1e-5, rtol=0)
    assert trainer.state.loss_scale == 2.0**17
    monkeypatch.setattr("torch.nn.utils.get_total_norm", lambda gradients: torch.tensor(math.inf))
    trainer.update()
    assert trainer.state.loss_scale == 2.0**16 and trainer.state.skipped == 0 and trainer.state.step == 4
    after = torch.cat([parameter.detach().flatten() for parameter in trainer.parameters])
    torch.testing.assert_close(after, found["fp16"], atol=0, rtol=0)
