"""Consoles and progress bars. Results go to stdout, everything else to stderr; only terminals get color and motion."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

ShowProgress = Callable[[str, int, int], None]  # (name of the stage, items done, items in total; 0: unknown)
_WIDTH_WITHOUT_TERMINAL = 100  # columns of a table that goes to a file or a pipe


def output() -> Console:
    """The console for results: stdout."""
    return _console(sys.stdout.isatty(), stderr=False)


def messages() -> Console:
    """The console for everything that is not a result: stderr."""
    return _console(sys.stderr.isatty(), stderr=True)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """A closed stderr pipe is ignored; a closed stdout pipe ends the command."""
        if not self.stderr:
            super().on_broken_pipe()
        self.quiet = True


def print_trimmed(console: Console, *parts: RenderableType, soft_wrap: bool = False) -> None:
    """Print without spaces at the ends of lines: rich fills the cells of a table with them. `soft_wrap`: a long line of
    text stays one line."""
    with console.capture() as drawn:
        for part in parts:
            console.print(part, soft_wrap=soft_wrap and isinstance(part, Text))
    print("\n".join(line.rstrip() for line in drawn.get().split("\n")), end="")


def say(text: str) -> None:
    """Print one line to stderr. A closed stderr is ignored."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print a warning to stderr by print(): a progress bar makes room for print(), but not for a second Console."""
    console = messages()
    with console.capture() as line:
        console.print(Text.assemble(("warning: ", "bold yellow"), text), soft_wrap=True)
    say(line.get().removesuffix("\n"))


def _console(terminal: bool, stderr: bool) -> Console:
    return _Console(
        stderr=stderr,
        # rich must not change text: no colored numbers, no [tags] and no :names: of emoji in a user's paths and lines.
        highlight=False,
        markup=False,
        emoji=False,
        width=None if terminal else _WIDTH_WITHOUT_TERMINAL,
        no_color=not terminal or None,
        # With FORCE_COLOR set, rich takes a file for a terminal and would draw progress bars in it.
        force_terminal=False if stderr and not terminal else None,
    )


@contextmanager
def stages() -> Iterator[ShowProgress]:
    """Yield a function that draws one progress bar per stage. Without a terminal the function draws nothing."""
    console = messages()
    if not console.is_terminal:
        yield lambda stage, done, total: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description:<16}"), BarColumn(bar_width=30), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                for task in tasks.values():
                    progress.stop_task(task)
                tasks[stage] = progress.add_task(stage, total=None)
            progress.update(tasks[stage], completed=done, total=total or None)

        yield show
