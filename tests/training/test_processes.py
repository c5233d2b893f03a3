"""Several processes: torchrun and worker processes give the weights of one process, and survive or report deaths."""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.toy_runs import TWO_PROCESSES, assert_same_weights, losses, sets, weights_hash

from nmt_cli.errors import NmtError
from nmt_cli.model.device import keep_freed_memory
from nmt_cli.recipe.schema import Recipe, Train, Transformer
from nmt_cli.store.folders import RunFolder
from nmt_cli.store.log import Start, Valid, read_log
from nmt_cli.training.distributed import join
from nmt_cli.training.session import local_processes


def torchrun(tmp_path: Path, processes: int, *args: object, restarts: int = 0, env: dict[str, str] | None = None):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    command += ["--max-restarts", str(restarts), "--master-port", str(port)]
    command += ["-m", "nmt_cli", "train", *map(str, args)]
    environment = {**os.environ, **(env or {})}
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1200, env=environment)


def in_every_python_process(folder: Path, code: str) -> dict[str, str]:
    """The environment in which every Python process runs this code first."""
    (folder / "sitecustomize.py").write_text(code)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.parametrize(
    ("by_torchrun", "accumulate"),
    [
        pytest.param(True, 1, id="torchrun, parts of one micro-batch", marks=pytest.mark.torture),
        pytest.param(False, 1, id="workers, parts of one micro-batch"),
        pytest.param(False, 2, id="workers, whole micro-batches"),
    ],
)
def test_two_processes_give_the_weights_of_one(nmt, toy, tmp_path, accumulate, by_torchrun):
    options = sets("model.dropout=0", f"train.accumulate={accumulate}", "train.steps=10", "train.average=2")
    options += sets("train.subword_sampling=0.1", "train.augment.typos=0.5")
    assert nmt("train", toy, "--out", "one", *options).code == 0
    if by_torchrun:
        done = torchrun(tmp_path, 2, toy, "--out", "two", *options)
        assert done.returncode == 0, done.stderr
    else:
        assert "2 processes of " in nmt("train", toy, "--out", "two", *options, *TWO_PROCESSES).err
    one, two = (load_file(RunFolder(tmp_path / run).checkpoint(10).weights) for run in ("one", "two"))
    assert_same_weights(one, two, 1e-6)
    assert [entry.processes for entry in read_log(tmp_path / "two") if isinstance(entry, Start)] == [2]
    ours, theirs = losses(tmp_path / "two", "train"), losses(tmp_path / "one", "train")
    assert [step for step, _ in ours] == [step for step, _ in theirs]
    assert np.allclose([loss for _, loss in ours], [loss for _, loss in theirs], atol=1e-5)
    # The processes validate together.
    ours, theirs = ([entry for entry in read_log(tmp_path / run) if isinstance(entry, Valid)] for run in ("two", "one"))
    assert [entry.kind for entry in ours] == [entry.kind for entry in theirs]
    figures = [[(entry.loss, entry.bleu, entry.chrf, entry.lines) for entry in log] for log in (ours, theirs)]
    assert np.allclose(*figures, atol=1e-4)


def test_partial_torchrun_environment_means_one_process(train_toy, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    _, events = train_toy("train.steps=2")
    assert isinstance(events[0], Start) and events[0].processes == 1


@pytest.mark.parametrize(
    ("dim", "tokens", "accumulate", "wanted", "threads", "processes"),
    [
        (256, 4096, 1, 0, 2, 2),
        (256, 512, 1, 0, 2, 1),
        (256, 512, 2, 0, 2, 2),
        (256, 1024, 4, 0, 6, 6),
        (256, 1024, 2, 0, 6, 3),
        (512, 4096, 1, 0, 2, 1),
        (512, 4096, 1, 2, 2, 2),
        (256, 4096, 1, 1, 2, 1),
    ],
)
def test_processes_by_width_and_batch(dim, tokens, accumulate, wanted, threads, processes):
    settings = Train(batch_tokens=tokens, accumulate=accumulate, processes=wanted)
    assert local_processes(Recipe(model=Transformer(dim=dim), train=settings), threads) == processes


@pytest.mark.parametrize(
    ("device", "backend", "index"),
    [("cpu", "gloo", None), ("cuda", "cpu:gloo,cuda:nccl", 1), ("xpu", "cpu:gloo,xpu:xccl", 1)],
)
def test_a_process_of_torchrun_has_a_device_and_a_backend_for_each_kind_of_tensor(monkeypatch, device, backend, index):
    used = {"index": None}
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: used.update(index=index))
    monkeypatch.setattr(torch.distributed, "rendezvous", lambda *args, **options: iter([("store", 3, 4)]))
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda name, **options: used.update(backend=name))
    world = join(torch.device(device))
    assert (world.rank, world.size, world.leader) == (3, 4, False)
    assert used == {"backend": backend, "index": index}


def test_the_clock_of_the_leader_decides(nmt, toy, tmp_path):
    """The clock of the other process is far ahead. It stops after the same update, and uses the same learning rates."""
    code = """
import signal, torch.distributed
from nmt_cli.training.budget import Budget
from nmt_cli.training.step import Updater
seconds, update = Budget.seconds, Updater.update
def ahead(self):
    return seconds(self) + 10**6 * (torch.distributed.is_initialized() and torch.distributed.get_rank())
def noted(self, batches, tokens, rate):
    with open(f"rates-{self.world.rank}", "a") as stream:
        print(self.state.step, rate, file=stream)
    if self.state.step == 5 and self.world.leader:
        signal.raise_signal(signal.SIGTERM)
    return update(self, batches, tokens, rate)
Budget.seconds, Updater.update = ahead, noted
"""
    options = sets("train.steps=8", "train.minutes=1000", "train.schedule=linear", "train.patience=0")
    for exit_code in (128 + signal.SIGTERM, 0):
        result = nmt("train", toy, *options, *TWO_PROCESSES, env={"NMT_TEST_CODE": code})
        assert result.code == exit_code, result.err
    rates = [(tmp_path / f"rates-{rank}").read_text() for rank in (0, 1)]
    assert rates[0] == rates[1] and len(rates[0].splitlines()) == 8


DEATHS = [(3, "os.kill(os.getpid(), 9)", "it was killed"), (2, "raise TypeError('a mistake')", "TypeError: a mistake")]


@pytest.mark.parametrize(("processes", "die", "cause"), DEATHS, ids=["killed", "failed"])
def test_the_error_is_that_of_the_worker_that_died_first(start_nmt, toy, tmp_path, processes, die, cause):
    """A worker dies in an update after the first checkpoint. A worker that loses the connection to it fails too."""
    run = RunFolder(tmp_path / "runs/toy")
    code = f"""
import os, torch.distributed
from nmt_cli.training.loss import TrainingLoss
forward = TrainingLoss.forward
def forward_or_die(self, *batch):
    if torch.distributed.get_rank() == 1 and self.training and os.path.exists({str(run.checkpoint(10).path)!r}):
        {die}
    return forward(self, *batch)
TrainingLoss.forward = forward_or_die
"""
    options = sets(f"train.processes={processes}", "train.steps=100000", "train.patience=0", "train.keep=100000")
    result = start_nmt("train", toy, *options, env={"NMT_TEST_FORK": "1", "NMT_TEST_CODE": code}).wait()
    assert result.code == 1
    assert f"error: a worker process died: {cause}" in result.err and "train.processes=1" in result.err
    assert "Traceback" not in result.err and "\n\n" not in result.err
    assert run.checkpoint(10).state.exists()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("[gloo/tcp/pair.cc:537] Read error [10.87.0.2]:26244: Connection reset by peer", "on 10.87.0.2 is lost"),
        ("[gloo/tcp/pair.cc:547] Connection closed by peer [fd00::2]:4711", "on fd00::2 is lost"),
        ("[gloo/buffer.cc:81] Timed out waiting 1800000ms for recv", "another process does not answer"),
    ],
)
def test_a_lost_peer_is_one_sentence(train_toy, monkeypatch, error, message):
    def fail(*args: object) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr("nmt_cli.training.session.plan_session", fail)
    with pytest.raises(NmtError, match=message):
        train_toy()


@pytest.mark.torture
def test_torchrun_restarts_a_killed_worker_from_the_last_checkpoint(toy, tmp_path):
    """torchrun starts all processes again. The weights are those of a run without a death; --force counts once."""
    run, killed = RunFolder(tmp_path / "runs/toy"), tmp_path / "killed"
    code = f"""
import os, threading, time
def watch():
    while not os.path.exists({str(run.checkpoint(10).path)!r}):
        time.sleep(0.01)
    if not os.path.exists({str(killed)!r}):
        open({str(killed)!r}, "w").close()
        os.kill(os.getpid(), 9)
if os.environ.get("RANK") == "1":
    threading.Thread(target=watch, daemon=True).start()
"""
    run.path.mkdir(parents=True)
    run.log.write_text("")  # something to rename
    done = torchrun(tmp_path, 2, toy, "--force", restarts=2, env=in_every_python_process(tmp_path, code))
    assert done.returncode == 0, done.stderr
    assert killed.exists()
    starts = [entry for entry in read_log(run.path) if isinstance(entry, Start)]
    assert [entry.resumed for entry in starts] == [False, True] and starts[1].step >= 10
    assert [step for step, _ in losses(run.path, "train")] == list(range(5, 41, 5))
    assert sorted(path.name for path in run.path.parent.iterdir()) == ["toy", "toy.old-1"]
    (tmp_path / "sitecustomize.py").unlink()
    assert torchrun(tmp_path, 2, toy, "--out", "whole").returncode == 0
    assert weights_hash(run.path) == weights_hash(tmp_path / "whole")


def test_keep_freed_memory_works_with_glibc():
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
