"""What tests share: the real command in a process of its own, and a way to write small files."""

from __future__ import annotations

import os

# One thread per process: the tests run on all cores already, and threads that wait for each other burn them.
os.environ["OMP_NUM_THREADS"] = "1"

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from support.checks import Result
from support.forked import Forked


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
