"""The report of `nmt translate` on stderr (warnings, a progress bar, figures), and the output file of `--out`."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from nmt_cli.errors import NmtError
from nmt_cli.files import check_overwrite, output_file
from nmt_cli.parallel import peak_memory_mb
from nmt_cli.terminal.console import ShowProgress, say, stages
from nmt_cli.text.lines import STDIN
from nmt_cli.translate.results import Translation
from nmt_cli.translate.rows import count_lines

_NAMED = 20  # warnings of a kind that name their lines; the others are counted
_WARNINGS = {
    "long": "line {line} is too long for the model: translated in parts",
    "loop": "line {line}: the model repeated itself; the repeats are cut",
    "unscored": "line {line} has more pieces than the model has positions: no score",
    "respelled": "line {line}: read {words}",
    "omission": "line {line}: the translation may leave out a part of the line",
    "withheld": "line {line}: the confidence is below --at-least, so the translation is withheld",
    "unfinished": "line {line}: the translation reached its longest length and may be cut off",
}


@contextmanager
def open_output(out: Path | None, force: bool) -> Iterator[IO[str]]:
    """Standard output, or a file that appears when everything is written."""
    if out is None or out == STDIN:
        yield sys.stdout
    else:
        check_overwrite(out, force)
        with output_file(out) as stream:
            yield stream


@dataclass
class Report:
    """Counts lines and flags, prints warnings, and moves the progress bar."""

    show: ShowProgress = lambda stage, done, total: None
    started: float = field(default_factory=time.perf_counter)
    first_line: float = 0.0  # when the first line was done
    lines: int = 0
    total: int = 0  # lines of the input; 0: unknown
    tokens: int = 0  # pieces written, end marks included
    flags: Counter[str] = field(default_factory=Counter)

    def add(self, translation: Translation) -> None:
        self.first_line = self.first_line or time.perf_counter()
        self.lines += 1
        self.tokens += translation.best.length
        self.flags.update(translation.flags)
        for flag in translation.flags:
            if flag in _WARNINGS and self.flags[flag] <= _NAMED:
                words = ", ".join(f'"{each.typed}" as "{each.read_as}"' for each in translation.respelled)
                say("warning: " + _WARNINGS[flag].format(line=translation.line, words=words))
        self.show_bar()

    def show_bar(self) -> None:
        self.show("translating", self.lines, self.total)

    def finish(self) -> None:
        """Count the flagged lines that no warning named."""
        for flag in sorted(_WARNINGS):
            more = self.flags[flag] - _NAMED
            if more > 0:
                say(f"warning: {more:,} more lines were flagged {flag!r}; --format jsonl names them all")

    def show_stats(self, began: float, engine: str) -> None:
        """Speed, start-up time and memory. `began`: when the command began."""
        megabytes = max(peak_memory_mb(), peak_memory_mb(children=True))
        now = time.perf_counter()
        seconds = max(1e-9, now - self.started)
        flags = "".join(f", {count:,} {flag}" for flag, count in sorted(self.flags.items()))
        say(
            f"{self.lines:,} lines{flags}; {self.lines / seconds:,.1f} lines/s, {self.tokens / seconds:,.0f} tokens/s; "
            f"start-up {self.started - began:.2f} s, first line after {max(0.0, self.first_line - began):.2f} s, "
            f"{now - began:.2f} s in all; {megabytes:,.0f} MB at most in a process; {engine}"
        )


@contextmanager
def reporting(stream: IO[str], inputs: list[Path], sharded: bool) -> Iterator[Report]:
    """A report, with a progress bar if stderr is a terminal and the output is not."""
    if stream.isatty() or not sys.stderr.isatty():
        yield Report()
        return
    with stages() as show:
        report = Report(show)
        report.show_bar()

        def count() -> None:
            with suppress(NmtError):  # the reader of the input raises the same error
                report.total = sum(map(count_lines, inputs))
                report.show_bar()

        # Lines are counted while the first ones are translated. A pipe can be read only once.
        if inputs and all(path != STDIN and path.is_file() for path in inputs) and not sharded:
            threading.Thread(target=count, daemon=True).start()
        yield report
