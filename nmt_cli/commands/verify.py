"""`nmt verify`: find damaged files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from nmt_cli.errors import NmtError


def verify(
    path: Annotated[Path, Argument(metavar="FOLDER", help="A run, a model, an export, a checkpoint or prepared data.")],
) -> None:
    """Compare the files of a folder with their checksums, and say what is damaged and what can be done.

    \b
    nmt verify runs/demo
    nmt verify data/demo

    The exit code is 1 if a file is damaged or missing. docs/reliability.md says what checksums can tell.
    """
    from nmt_cli.store.verify import advice, verify
    from nmt_cli.terminal.console import output, stages

    with stages() as show:
        read = 0

        def progress(count: int) -> None:
            nonlocal read
            read += count
            show("MB checked", read >> 20, 0)

        parts = list(verify(path, progress))
    if not parts:
        raise NmtError(f"{path} has no checkpoint and no model yet", "the first validation writes both")
    console = output()
    for part in parts:
        console.print(f"{part.folder}: {part.summary()}", soft_wrap=True)
        for name, problem in part.problems.items():
            console.print(f"  {name} {problem}", soft_wrap=True)
    if count := sum(len(part.problems) for part in parts):
        files = "1 file of" if count == 1 else f"{count} files of"
        raise NmtError(f"{files} {path} {'is' if count == 1 else 'are'} damaged or missing", "; ".join(advice(parts)))
