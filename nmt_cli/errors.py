"""The exception for users: a sentence that says what is wrong, and a hint that says what to do."""

from __future__ import annotations

import shlex
from pathlib import Path


class NmtError(Exception):
    """An error that is not a bug: wrong input, a damaged file, a full disk. cli.main prints it and exits with 1."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def quoted(path: Path | str) -> str:
    """A path in a command that a hint shows: in quotes if a shell would split or expand it.

    "./" comes before a name that a command would read as an option. "-" stays as it is: standard input.
    """
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") and text != "-" else text)


def raise_if_denied(path: Path) -> None:
    """Raise PermissionError if permissions hide whether `path` exists. Since Python 3.14, is_file() is False then."""
    try:
        path.stat()
    except PermissionError:
        raise
    except (OSError, ValueError):  # there is no such file
        pass
