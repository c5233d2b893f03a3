"""Ctrl-C, SIGTERM and kill -9 during training."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from support.checks import is_running, wait_until
from support.toy_runs import TWO_PROCESSES, sets, steps_saved

from nmt_cli.store.checkpoint import load_state
from nmt_cli.store.folders import RunFolder
from nmt_cli.store.log import End, Valid, read_log
from nmt_cli.training.trainer import Step, StopRequest

ENDLESS = sets("train.steps=100000", "train.patience=0")


@pytest.mark.parametrize("options", [[], TWO_PROCESSES], ids=["one process", "two processes"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_same_command_continues(nmt, start_nmt, toy, tmp_path, number, options):
    run = tmp_path / "runs/toy"
    running = start_nmt("train", toy, *ENDLESS, *options, env={"NMT_TEST_FORK": "1"})
    wait_until(lambda: steps_saved(run))
    running.send_signal(number)
    result = running.wait()
    assert result.code == 128 + number
    assert "saved; the same command continues" in result.err and "Traceback" not in result.err
    step = steps_saved(run)[-1]
    assert (
        load_state(RunFolder(run).checkpoint(step)).step == step
        and RunFolder(run).last.resolve().name == f"step-{step}"
    )
    assert read_log(run)[-1] == End(step, number.name, number)
    assert nmt("train", toy, *sets(f"train.steps={step + 5}", "train.patience=0")).code == 0
    assert steps_saved(run)[-1] == step + 5


def test_a_second_ctrl_c_quits_at_once(start_nmt, toy, tmp_path):
    """The first Ctrl-C waits for the end of a validation that takes long."""
    slow = sets("train.valid_every=1", "train.valid_beam=50", "train.valid_lines=0", "train.keep=1")
    running = start_nmt("train", toy, *ENDLESS, *slow)
    wait_until(lambda: steps_saved(tmp_path / "runs/toy"))
    for _ in range(2):
        running.send_signal(signal.SIGINT)
        threading.Event().wait(0.2)  # two signals at the same time would arrive as one
    result = running.wait()
    # -SIGINT: the update had just ended, and the second Ctrl-C came while the process was leaving.
    assert result.code in (130, -signal.SIGINT) and "Traceback" not in result.err


def test_the_first_signal_is_remembered_and_a_second_ctrl_c_raises():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    requests: list[str] = []
    with StopRequest(lambda: requests.append("stop")) as stop:
        assert stop.signal == 0
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.signal == signal.SIGTERM and requests == ["stop", "stop"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_training_in_another_thread_handles_no_signals(train_toy):
    """Python allows signal handlers in the main thread only."""
    results: list = []
    thread = threading.Thread(target=lambda: results.append(train_toy("train.steps=2")[0]))
    thread.start()
    thread.join()
    assert results[0].reason == "2 steps"


def test_weights_that_a_signal_saved_are_validated_when_the_limit_is_lowered_to_them(toy, tmp_path, monkeypatch):
    from nmt_cli.recipe.load import load_recipe
    from nmt_cli.scoring.metrics import Scores
    from nmt_cli.training.session import train
    from nmt_cli.training.validation import Validation

    run = RunFolder(tmp_path / "runs/toy")

    def stop_at_15(event) -> None:
        if isinstance(event, Step) and event.step == 15:
            signal.raise_signal(signal.SIGTERM)

    result = train(load_recipe(toy, {"train.steps": 20}), watch=stop_at_15)
    assert (result.reason, result.signal) == ("SIGTERM", signal.SIGTERM)
    state = load_state(run.checkpoint(15))
    assert run.last.resolve().name == "step-15" and state.validated_steps == [10] and not state.finished
    monkeypatch.setattr(Validation, "measure", lambda *args: (1.0, Scores(99.0, 0.0, "")))
    events: list = []
    train(load_recipe(toy, {"train.steps": 15}), watch=events.append)
    assert [event.step for event in events if isinstance(event, Valid)] == [15]
    state = load_state(run.checkpoint(15))
    assert (state.validated_steps, state.best_value, state.best_step) == ([10, 15], 99.0, 15)
    assert run.best.resolve().name == "step-15" and state.finished


def test_a_closed_stderr_pipe_does_not_end_training(start_nmt, toy, tmp_path):
    running = start_nmt("train", toy, pipes=True)
    assert running.stderr.read(1)
    running.stderr.close()
    result = running.wait()
    assert result.code == 0 and "40 steps" in result.text and (tmp_path / "runs/toy/model").exists()


# ---------------------------------------------------------------------------------------------------------------------
# Worker processes


@pytest.fixture
def training_with_a_worker(start_nmt, toy):
    """A training with a worker process that has just been started."""
    if not Path("/proc/self/task").exists():
        pytest.skip("no /proc to see child processes in")
    running = start_nmt("train", toy, *ENDLESS, *TWO_PROCESSES)
    wait_until(lambda: worker_of(running))
    return running


def worker_of(running) -> int:
    """The process id of the worker; 0 if there is none yet. The resource tracker of multiprocessing is not a worker."""
    for child in running.children():
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if b"--multiprocessing-fork" in command:
            return child
    return 0


@pytest.mark.parametrize("up", [False, True], ids=["while the worker starts", "when the worker is up"])
def test_ctrl_c_on_a_terminal_is_quiet_with_workers(training_with_a_worker, tmp_path, up):
    """A terminal sends Ctrl-C to all processes."""
    if up:
        wait_until(lambda: (tmp_path / "runs/toy/log.jsonl").exists())
    training_with_a_worker.send_signal_to_group(signal.SIGINT)
    result = training_with_a_worker.wait()
    assert result.code == 130 and "Traceback" not in result.err


@pytest.mark.parametrize("up", [False, True], ids=["while the worker starts", "when the worker is up"])
def test_workers_end_when_their_leader_is_killed(training_with_a_worker, tmp_path, up):
    worker = worker_of(training_with_a_worker)
    if up:
        wait_until(lambda: steps_saved(tmp_path / "runs/toy"))
    training_with_a_worker.send_signal(signal.SIGKILL)
    assert training_with_a_worker.wait().code == -signal.SIGKILL
    wait_until(lambda: not is_running(worker))
