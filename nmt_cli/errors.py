"""The exception for users: a sentence that says what is wrong, and a hint that says what to do."""

from __future__ import annotations


class NmtError(Exception):
    """An error that is not a bug: wrong input, a damaged file, a full disk. cli.main prints it and exits with 1."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
