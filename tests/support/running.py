"""Commands that a test starts, sends signals to, and waits for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from support.checks import Result
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
