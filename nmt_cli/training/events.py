"""The events of a training session: the entries of the log, and further events that only the screen shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nmt_cli.store.log import Entry


@dataclass(frozen=True)
class Step:
    """An update was made."""

    step: int
    epoch: float
    loss: float  # mean loss of a target token, in nats


@dataclass(frozen=True)
class Status:
    """What the session does now: it validates, or it stops after the current update because a signal came."""

    text: str


STOPPING = Status("stopping after this update; Ctrl-C again quits at once")


@dataclass(frozen=True)
class AlreadyFinished:
    """An earlier session used up the budget; this session changes nothing."""

    reason: str


Event = Entry | Step | Status | AlreadyFinished
Watch = Callable[[Event], None]
