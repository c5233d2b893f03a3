"""Faults at every operation of the commands that write, and kills at random moments."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from support.faults import KINDS
from support.trials import COMMANDS, Trial, Undisturbed, write_inputs

from torture.bench import PATIENCE, Bench, Case

KILLS = 100  # of each command


class Writers:
    """The commands of support/trials.py on a bench."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.inputs = bench, bench.folder / "writers/inputs"
        self.known: dict[str, Undisturbed] = {}
        if not self.inputs.exists():
            write_inputs(self.inputs, bench.inputs / "one")

    def trial(self, name: str) -> Trial:
        place = self.inputs.with_name(name.replace(" ", "-"))
        return Trial(self.bench.forked, self.inputs, place, COMMANDS[name], PATIENCE)

    def undisturbed(self, name: str) -> Undisturbed:
        if name not in self.known:
            self.known[name] = self.trial(name).undisturbed()
        return self.known[name]

    def fault(self, name: str, kind: str, number: int, moment: random.Random) -> str:
        self.trial(name).survive_fault(kind, number, self.undisturbed(name))
        return "right"

    def kill(self, name: str, moment: random.Random) -> str:
        expected = self.undisturbed(name)
        self.trial(name).survive_kill(moment.uniform(0, 1.1 * expected.seconds), expected)
        return "right"


def faults(bench: Bench) -> Iterator[Case]:
    writers = Writers(bench)
    for name in COMMANDS:
        for kind in KINDS:
            for number in range(1, writers.undisturbed(name).count + 1):
                yield Case("faults", f"{name}, {kind} {number}", partial(writers.fault, name, kind, number))


def kills(bench: Bench) -> Iterator[Case]:
    writers = Writers(bench)
    for name in COMMANDS:
        for number in range(KILLS):
            yield Case("kills", f"{name}, kill {number}", partial(writers.kill, name))
