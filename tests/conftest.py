"""What tests share: the real command in a process of its own, and a way to write small files."""

from __future__ import annotations

import os

# One thread per process: the tests run on all cores already, and threads that wait for each other burn them.
os.environ["OMP_NUM_THREADS"] = "1"

import contextlib
import re
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from forked import Forked


@dataclass(frozen=True)
class Result:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()


@pytest.fixture(scope="session")
def forked():
    """Where there is a fork; None elsewhere."""
    server = Forked() if hasattr(os, "fork") else None
    yield server
    if server is not None:
        server.close()


@pytest.fixture(scope="session")
def nmt_in(forked, tmp_path_factory):
    """nmt_in(folder, "prepare", "x.toml", stdin=b"...") runs the command there."""
    folder = tmp_path_factory.mktemp("streams")

    def run(cwd: Path, *args: object, stdin: bytes = b"", env: dict[str, str] | None = None) -> Result:
        words, environment = list(map(str, args)), {**os.environ, "COLUMNS": "100", **(env or {})}
        if env or forked is None:  # some variables are for Python itself, which reads them when it starts
            command = [sys.executable, "-m", "nmt_cli", *words]
            done = subprocess.run(command, input=stdin, capture_output=True, cwd=cwd, env=environment, timeout=300)
            return Result(done.returncode, done.stdout, done.stderr.decode())
        streams = [folder / name for name in ("stdin", "stdout", "stderr")]
        for stream, content in zip(streams, (stdin, b"", b""), strict=True):
            stream.write_bytes(content)
        code = forked.run(words, cwd, environment, streams, timeout=300)
        return Result(code, streams[1].read_bytes(), streams[2].read_text())

    return run


@pytest.fixture
def nmt(nmt_in, tmp_path):
    """nmt("prepare", "x.toml", stdin=b"...") runs the command in tmp_path."""
    return partial(nmt_in, tmp_path)


@pytest.fixture
def write(tmp_path):
    """write("a.en", b"one\\n") or text; returns the path."""

    def save(name: str, content: bytes | str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return save


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
