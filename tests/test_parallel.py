"""nmt_cli/parallel.py: a map over blocks in worker processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.checks import PATIENCE, assert_children_die, wait_until

from nmt_cli.errors import NmtError
from nmt_cli.parallel import ordered_map, peak_memory_mb

SLEEPERS = """
import time
from nmt_cli.parallel import ordered_map
print("started", flush=True)
try:
    for _ in ordered_map(time.sleep, [0.1] * 100_000, 2):
        print("one result", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_results_come_in_order_and_blocks_are_read_as_needed():
    read = []

    def blocks():
        for number in range(100):
            read.append(number)
            yield -number

    results = ordered_map(abs, blocks(), 2)
    assert next(results) == 0
    assert len(read) < 10  # the rest waits until the first results are taken
    assert list(results) == list(range(1, 100))


def test_an_error_in_a_worker_reaches_the_caller():
    with pytest.raises(TypeError):
        list(ordered_map(abs, ["text"] * 10, 2))


def test_a_dead_worker_is_an_error_not_a_hang():
    with pytest.raises(NmtError, match="a worker process died"):
        list(ordered_map(os._exit, [3] * 10, 2))


UNGUARDED = """
from nmt_cli.errors import NmtError
from nmt_cli.parallel import ordered_map
import functools
try:
    list(ordered_map(functools.partial(max, "a" * 1_000_000), ["b"] * 10, 2))
except NmtError as error:
    print(error.message, "|", error.hint)
"""


def test_a_script_whose_workers_cannot_start_gets_an_error_and_does_not_hang(tmp_path):
    """The workers import the script, which must not start workers again. The job is larger than a pipe."""
    (tmp_path / "script.py").write_text(UNGUARDED)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=PATIENCE)
    assert "worker processes cannot start" in done.stdout and '__name__ == "__main__"' in done.stdout, done.stderr


def test_workers_end_when_the_parent_is_killed():
    process = subprocess.Popen([sys.executable, "-c", SLEEPERS], stdout=subprocess.PIPE)
    for _ in range(2):  # wait for the first result: the workers are up
        process.stdout.readline()
    assert_children_die(process, 0, signal.SIGKILL)


def ignores_sigint(process_id: str) -> bool:
    """Whether SIGINT does nothing to a process. A process that has ended ignores it, too."""
    try:
        text = Path(f"/proc/{process_id}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    status = dict(line.split(":\t", 1) for line in text.splitlines())
    if status["State"].startswith("Z"):
        return True
    bit = 1 << (signal.SIGINT - 1)
    return bool((int(status["SigBlk"], 16) | int(status["SigIgn"], 16)) & bit)


def test_ctrl_c_is_quiet():
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPERS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if children.exists():
        wait_until(lambda: len(children.read_text().split()) > 1)  # the first child is multiprocessing's own
        assert all(map(ignores_sigint, children.read_text().split())), "Ctrl-C at start-up would print a traceback"
    for _ in range(2):  # wait for the first result
        process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=PATIENCE)
    assert out.endswith(b"interrupted\n") and err == b""


def test_peak_memory_is_what_the_kernel_says_and_unknown_on_windows(monkeypatch):
    status = Path("/proc/self/status")
    if status.exists():
        kilobytes = int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1])
        assert peak_memory_mb() == pytest.approx(kilobytes / 1024, rel=0.05)
    monkeypatch.setitem(sys.modules, "resource", None)  # Windows lacks this module
    assert peak_memory_mb() == peak_memory_mb(children=True) == 0
