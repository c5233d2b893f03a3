"""The one exception a user may see: a sentence that says what is wrong, and a hint that says what to do."""

from __future__ import annotations


class NmtError(Exception):
    """A mistake of the user's or a fault of the world, as opposed to a bug; cli.main prints it and exits with 1."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
