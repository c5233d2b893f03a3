"""Checks that tests of several rooms share: user errors, child processes, terminals."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.forked import Forked

PATIENCE = 300  # seconds after which a test gives up; a busy machine must not reach it


@dataclass(frozen=True)
class Result:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()


def assert_user_error(result: Result, *parts: str) -> None:
    """One error with all these parts, a hint, exit code 1, nothing on stdout, no traceback."""
    assert result.code == 1, result
    assert result.out == b"", result
    assert result.err.startswith("error: "), result.err
    assert "\nhint: " in result.err, result.err
    assert "Traceback" not in result.err, result.err
    assert "\x1b" not in result.err, result.err
    for part in parts:
        assert part in result.err, (part, result.err)


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until the condition is true. A busy machine may take long, so the limit is long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.02)


def assert_children_die(process: subprocess.Popen, seconds: float, number: signal.Signals) -> None:
    """Wait for a child of the process, and `seconds` more. Then a signal to the process must end its children, too."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        process.kill()
        pytest.skip("no /proc to see children in")
    wait_until(children.read_text)
    time.sleep(seconds)
    born = children.read_text().split()
    assert born
    process.send_signal(number)
    process.wait(PATIENCE)
    wait_until(lambda: not any(map(is_running, map(int, born))))


def is_running(process_id: int) -> bool:
    try:
        status = Path(f"/proc/{process_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"  # a zombie has ended; its new parent has not noticed yet


def on_terminal(forked: Forked, stream: str, columns: int, *args: object, cwd: Path) -> list[str]:
    """The lines, without colors, that nmt writes to stdout or stderr when that stream is a terminal of this width."""
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    keyboard, screen = os.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    terminal, null = Path(os.ttyname(screen)), Path(os.devnull)
    streams = [null, terminal if stream == "stdout" else null, terminal if stream == "stderr" else null]
    environment = {**os.environ, "TERM": "xterm"}  # rich ignores the width of a dumb terminal
    environment.pop("COLUMNS", None)
    with ThreadPoolExecutor(1) as reader:
        seen = reader.submit(_read_to_the_end, keyboard)
        try:
            code = forked.run(list(map(str, args)), cwd, environment, streams, PATIENCE)
        finally:
            os.close(screen)
    os.close(keyboard)
    assert code == 0, seen.result()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.result()).replace("\r", "\n").split("\n")


def _read_to_the_end(keyboard: int) -> str:
    blocks = []
    with contextlib.suppress(OSError):  # Linux raises it when the other end is closed
        while block := os.read(keyboard, 1 << 16):
            blocks.append(block)
    return b"".join(blocks).decode()


def read_line(process: subprocess.Popen, seconds: float = PATIENCE) -> bytes:
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    assert ready, f"no line within {seconds} s"
    return process.stdout.readline()
