"""Checks that tests of several rooms share: user errors, child processes, terminals."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Result:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()


def assert_user_error(result: Result, *parts: str) -> None:
    """One clear complaint with all these parts, a hint, exit code 1, nothing on stdout, no traceback."""
    assert result.code == 1, result
    assert result.out == b"", result
    assert result.err.startswith("error: "), result.err
    assert "\nhint: " in result.err, result.err
    assert "Traceback" not in result.err, result.err
    assert "\x1b" not in result.err, result.err
    for part in parts:
        assert part in result.err, (part, result.err)


def assert_children_die(process: subprocess.Popen, seconds: float, number: signal.Signals) -> None:
    """When a process ends by this signal, so many seconds after it has a child."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        process.kill()
        pytest.skip("no /proc to see children in")
    deadline = time.monotonic() + 60
    while not children.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(seconds)
    born = children.read_text().split()
    assert born
    process.send_signal(number)
    process.wait(60)
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in born) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{child}").exists() for child in born)


def on_terminal(stream: str, columns: int, *args: object, cwd: Path) -> list[str]:
    """What a person sees of nmt's stdout or stderr on a terminal of that width: the lines, without colours."""
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    keyboard, screen = os.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: screen}
    command = [sys.executable, "-m", "nmt_cli", *map(str, args)]
    seen = b""
    environment = {**os.environ, "TERM": "xterm"}  # a dumb one has no width
    environment.pop("COLUMNS", None)
    with subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, env=environment, **streams) as process:
        os.close(screen)
        with contextlib.suppress(OSError):  # which is how Linux says that this is the end
            while block := os.read(keyboard, 1 << 16):
                seen += block
    os.close(keyboard)
    assert process.returncode == 0, seen.decode()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode()).replace("\r", "\n").split("\n")


def read_line(process: subprocess.Popen, seconds: float) -> bytes:
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    assert ready, "no answer"
    return process.stdout.readline()
