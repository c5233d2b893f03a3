"""Commands that a test starts, sends signals to, and waits for."""

from __future__ import annotations

import os
import select
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from support.checks import PATIENCE, Result
from support.forked import Forked


@dataclass(frozen=True)
class Running:
    """A command that a test has started and that may still run."""

    forked: Forked
    process: int
    streams: list[Path]

    def send_signal(self, number: int) -> None:
        os.kill(self.process, number)

    def send_signal_to_group(self, number: int) -> None:
        """As Ctrl-C on a terminal does: to the command and to the processes that the command started."""
        os.killpg(self.process, number)

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.process}/task/{self.process}/children")
        return [int(child) for child in path.read_text().split()] if path.exists() else []

    def wait(self, timeout: float = 600) -> Result:
        code = self.forked.wait(self.process, timeout)
        return Result(code, self.streams[1].read_bytes(), self.streams[2].read_text())


@dataclass(frozen=True)
class Piped(Running):
    """A command whose streams are pipes to the test. It opens them in this order, so the test must do the same."""

    stdin: BinaryIO = field(init=False)
    stdout: BinaryIO = field(init=False)
    stderr: BinaryIO = field(init=False)

    def __post_init__(self) -> None:
        for name, stream, mode in zip(("stdin", "stdout", "stderr"), self.streams, ("wb", "rb", "rb"), strict=True):
            object.__setattr__(self, name, stream.open(mode, buffering=0))

    def read_line(self) -> bytes:
        """The next line of stdout, which must come before the end of input."""
        line = b""
        while not line.endswith(b"\n"):
            assert select.select([self.stdout], [], [], PATIENCE)[0], f"no line within {PATIENCE} s, only {line!r}"
            if not (byte := self.stdout.read(1)):
                break
            line += byte
        return line

    def skip_lines(self, count: int) -> None:
        """Read at least this many lines of stdout."""
        while count > 0:
            assert select.select([self.stdout], [], [], PATIENCE)[0], f"no line within {PATIENCE} s"
            count -= self.stdout.read(1 << 16).count(b"\n")

    def wait(self, timeout: float = PATIENCE) -> Result:
        """Read what is left. The command must not write more than pipes hold."""
        code = self.forked.wait(self.process, timeout)
        self.stdin.close()
        out, err = (b"" if stream.closed else stream.read() for stream in (self.stdout, self.stderr))
        self.stdout.close()
        self.stderr.close()
        return Result(code, out, err.decode())
