"""What a person sees of a training: on a terminal, in a narrow terminal, in a file."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace

import pytest
from rich.console import Console
from support.checks import on_terminal
from support.toy_runs import sets

from nmt_cli.recipe.load import load_recipe
from nmt_cli.store.log import Average, End, Note, Start, Train, Valid
from nmt_cli.terminal.plot import duration
from nmt_cli.training.screen import TrainingScreen, summary
from nmt_cli.training.trainer import STOPPING, AlreadyFinished, Status, Step

START = Start(0, False, "runs/[x]", "rnn", 1234, 400, 10, "cpu", "fp32", "as the recipe says", 2, 1, 1, None, 100)
TRAIN = Train(50, 1.25, 2.5, 9.0, 1e-3, 1.0, 5000, 1234.5, 0.034, 2.0, 0.5, 1e9, 100.0)
VALID = Valid(50, 12.34, 1.5, 4.48, 12.34, 40.0, "nrefs:1|tok:13a", 10, 0.5, best=True)


def test_the_line_on_a_terminal_shows_progress_and_each_validation_has_a_line(forked, toy, tmp_path):
    options = sets("train.steps=100", "train.valid_every=25")
    shown = on_terminal(forked, "stderr", 60, "train", toy, *options, cwd=tmp_path)
    assert max(map(len, shown)) <= 60
    assert any(re.match(r"step \d+/100  .*loss [\d.]+  .*tok/s", line) for line in shown), shown
    assert sum(bool(re.match(r"step \d+  valid  loss", line)) for line in shown) == 4


@pytest.fixture
def screen(toy, tmp_path, monkeypatch):
    """screen(width, terminal) is a TrainingScreen; its text is in screen.text()."""

    def make(width: int = 120, terminal: bool = True, summarize: bool = True) -> TrainingScreen:
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=terminal, width=width, color_system=None, highlight=False)
        monkeypatch.setattr("nmt_cli.training.screen.messages", lambda: console)
        screen = TrainingScreen(load_recipe(toy, {"train.steps": 100}), summarize)
        screen.text = lambda: re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
        return screen

    return make


def test_the_line_shows_step_loss_rate_speed_padding_time_and_best(screen):
    with screen() as shown:
        for event in (START, TRAIN, VALID):
            shown.watch(event)
        line = shown.line(Step(51, 1.3, 2.4)).plain
    assert line == "step 51/100  epoch 1.30  loss 2.400  lr 1.0e-03  1,234 tok/s  pad 3.4%  ETA 2:00  best 12.34"


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (90, "step 51/100  epoch 1.30  loss 2.400  lr 1.0e-03  1,234 tok/s  ETA 2:00  best 12.34"),
        (75, "step 51/100  epoch 1.30  loss 2.400  1,234 tok/s  ETA 2:00  best 12.34"),
        (60, "step 51/100  loss 2.400  1,234 tok/s  ETA 2:00  best 12.34"),
    ],
)
def test_a_narrow_terminal_leaves_out_what_is_needed_least(screen, width, line):
    with screen(width) as shown:
        for event in (START, TRAIN, VALID):
            shown.watch(event)
        assert shown.line(Step(51, 1.3, 2.4)).plain == line


def test_every_event_is_shown(screen):
    """Square brackets in a path are not taken for markup."""
    average = Average(**{**vars(VALID), "best": False}, checkpoints=("step-40", "step-50"))
    with screen(200) as shown:
        for event in (
            START,
            Step(1, 0.1, 5.0),
            TRAIN,
            Status("step 50  validating ..."),
            VALID,
            Note(50, "a [/note]"),
            average,
            STOPPING,
        ):
            shown.watch(event)
        shown.watch(End(50, "SIGINT", 2))
    text = shown.text()
    for part in (
        "training in runs/[x]: rnn, 1,234 parameters, 400 pairs, 10 validation lines",
        "cpu, 2 processes of 1 thread, fp32: as the recipe says",
        "step 50  valid  loss 1.500  ppl 4.48  BLEU 12.34  chrF 40.00  (10 lines, 0.5 s)  best so far",
        "step 50  average of 2 checkpoints  loss",
        "a [/note]",
        "stopping after this update; Ctrl-C again quits at once",
        "stopped at step 50 and saved; the same command continues",
    ):
        assert part in text, (part, text)


def test_a_file_gets_a_line_every_ten_seconds_and_no_line_for_each_step(screen, monkeypatch):
    now = 100.0
    monkeypatch.setattr("nmt_cli.training.screen.time.monotonic", lambda: now)
    with screen(terminal=False) as shown:
        shown.steps = 100
        for event in (Step(1, 0.1, 5.0), TRAIN, Step(2, 0.1, 5.0), TRAIN, Status("validating"), STOPPING):
            shown.watch(event)
            now += 2.0
        shown.watch(TRAIN)
    first, stopping, last = shown.text().splitlines()
    assert stopping == STOPPING.text
    assert all(line.startswith("step 50/100  epoch 1.25  loss 2.500") for line in (first, last))


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Step(3, 0.1, 5.0), "step 3  epoch 0.10  loss 5.000"),
        (Status("step 50  validating ..."), "step 50  validating ..."),
        (Status("step 50  calibrating ..."), "step 50  calibrating ..."),
    ],
)
def test_a_file_gets_lines_while_nothing_happens(screen, monkeypatch, event, line):
    """A long update, a validation and the calibration may take minutes without an event."""
    monkeypatch.setattr("nmt_cli.training.screen._SILENCE", 0.03)
    with screen(terminal=False) as shown:
        shown.watch(event)
        while shown.text().count(line) < 2:
            time.sleep(0.01)
    assert set(shown.text().splitlines()) == {line}


def test_a_file_gets_no_line_before_thirty_seconds_of_silence(screen, monkeypatch):
    """The clock stands still, so however often the thread looks, there is nothing to say."""
    monkeypatch.setattr("nmt_cli.training.screen.time.monotonic", lambda: 100.0)
    monkeypatch.setattr("nmt_cli.training.screen._SILENCE", 0.03)
    with screen(terminal=False) as shown:
        for step in range(1, 10):
            shown.watch(Step(step, 0.1, 5.0))
        time.sleep(0.2)
    assert not shown.text()


def test_without_a_summary_the_end_is_one_line(screen):
    with screen(summarize=False, terminal=False) as shown:
        shown.watch(AlreadyFinished("7 steps"))
        shown.watch(End(7, "8 steps", 0))
    assert shown.text() == "finished: 7 steps\nfinished: 8 steps\n"


def test_the_summary_counts_the_last_validation_and_the_peak_memory_of_all_sessions():
    """The second session has less memory, and ends with a validation of 30 seconds after its last update."""
    second = replace(TRAIN, step=100, tokens=15_000, minutes=4.5, memory_mb=80.0)
    log = [START, TRAIN, VALID, replace(START, step=50, resumed=True), second, replace(VALID, step=100, seconds=30.0)]
    console = Console(file=io.StringIO(), width=100)
    console.print(summary(log, "100 steps"))
    rows = console.file.getvalue()
    assert re.search(r"time +5:00, 50 tokens/s overall", rows) and "FLOPs, 100 MB at most" in rows, rows


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3661, "1:01:01")])
def test_durations(seconds, text):
    assert duration(seconds) == text
