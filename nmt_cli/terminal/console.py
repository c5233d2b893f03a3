"""What a person sees: results on stdout, everything else on stderr, colour and motion only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_PIPED_WIDTH = 100  # of tables that go to a file or pipe, where there is no width to ask for


def output() -> Console:
    """For results."""
    return _console(sys.stdout.isatty(), stderr=False)


def messages() -> Console:
    """For everything else."""
    return _console(sys.stderr.isatty(), stderr=True)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Work does not end with whoever reads about it, only with whoever reads its results."""
        if not self.stderr:
            super().on_broken_pipe()
        self.quiet = True


def say(text: str) -> None:
    """A line beside the results, which do not end with whoever reads it, nor with a stream that is closed."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _console(terminal: bool, stderr: bool) -> Console:
    # highlight off: rich must not colour every number it meets. soft_wrap is the caller's choice.
    return _Console(
        stderr=stderr,
        highlight=False,
        width=None if terminal else _PIPED_WIDTH,
        no_color=not terminal or None,
        # FORCE_COLOR makes rich take a file for a terminal, and draw progress bars in it.
        force_terminal=False if stderr and not terminal else None,
    )


@contextmanager
def stages() -> Iterator:
    """Yields show(stage, done, total): one progress bar per stage on a terminal, nothing otherwise."""
    console = messages()
    if not console.is_terminal:
        yield lambda stage, done, total: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<16}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                for task in tasks.values():
                    progress.stop_task(task)
                tasks[stage] = progress.add_task(stage, total=None)
            progress.update(tasks[stage], completed=done, total=total or None)

        yield show
