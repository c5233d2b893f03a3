"""Ctrl-C and SIGTERM during training."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any


class StopRequest:
    """Remembers a signal, so that training can stop after the current update. A second Ctrl-C stops at once."""

    def __init__(self, on_request: Callable[[], None]) -> None:
        self.signal = 0
        self._on_request = on_request
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # Python handles signals in no other thread
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        self._on_request()
