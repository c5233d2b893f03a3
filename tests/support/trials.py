"""Commands that write, disturbed by faults and kills: tests/test_faults.py tries some of them, `make torture` all."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.files import sha256_of
from support.forked import Forked
from support.tiny_run import write_run
from support.toy_corpus import corpus
from support.toy_runs import RECIPE


@dataclass(frozen=True)
class Command:
    """A command, the names of the files to compare, and a command that comes before it."""

    words: tuple[str, ...]
    results: tuple[str, ...]
    before: tuple[str, ...] = ()


PREPARE = ("prepare", "--source", "a.en", "--target", "a.de", "--out", "out", "--vocab-size")
TRAIN = ("train", "x/x.toml", "--out", "run")
WEIGHTS = ("run/checkpoints/step-*/*.safetensors", "run/model/*.safetensors", "run/model/ctranslate2/*", "run/vocab/*")
COMMANDS = {
    "prepare": Command((*PREPARE, "60"), ("out/**/*",)),
    "prepare --force": Command((*PREPARE, "60", "--force"), ("out/**/*",), (*PREPARE, "50")),
    "train": Command(TRAIN, WEIGHTS),
    "train again": Command((*TRAIN, "--set", "train.steps=6"), WEIGHTS, (*TRAIN, "--set", "train.steps=2")),
    "train --force": Command((*TRAIN, "--force"), WEIGHTS, TRAIN),
    "train --from": Command((*TRAIN, "--from", "old", "--set", "train.steps=2"), WEIGHTS, (*TRAIN[:3], "old")),
    "translate --out": Command(("translate", "tiny/run", "x/x.toml", "--out", "out.txt", "--force"), ("out.txt",)),
    "export to hf": Command(("export", "tiny/run", "--to", "hf", "--out", "out", "--force"), ("out/**/*",)),
    "export to ctranslate2": Command(
        ("export", "tiny/run", "--to", "ctranslate2", "--out", "out", "--force"), ("out/**/*",)
    ),
    "demo": Command(("demo", "out"), ("out/**/*",)),
}


def write_inputs(place: Path, prepared: Path) -> None:
    """Text, a recipe on prepared data, and a small model."""
    (place / "tiny").mkdir(parents=True)
    write_run(place / "tiny")
    for name, text in zip(("a.en", "a.de"), corpus(100, 1000), strict=True):
        (place / name).write_text(text)
    (place / "x").mkdir()
    recipe = RECIPE.replace("../", f"{prepared}/").replace("steps = 40", "steps = 4").replace("every = 10", "every = 2")
    (place / "x/x.toml").write_text(recipe + "keep = 1\n")


@dataclass(frozen=True)
class Undisturbed:
    """The results of a command before and after, the number of its operations on files, and how long it takes."""

    old: dict[str, str]
    new: dict[str, str]
    count: int
    seconds: float


@dataclass
class Trial:
    """Runs a command in a fresh copy of the inputs, and disturbs it. `place` is the copy."""

    forked: Forked
    inputs: Path
    place: Path
    command: Command
    patience: float = 600

    def fresh(self) -> None:
        before, self.streams = self.place.with_name(f"{self.place.name}-before"), self.place.with_name("streams")
        for folder in (self.place, self.streams):
            shutil.rmtree(folder, ignore_errors=True)
        self.streams.mkdir()
        if not before.exists():
            shutil.copytree(self.inputs, self.place, symlinks=True)
            assert not self.command.before or self.run(self.command.before) == 0
            self.place.rename(before)
        shutil.copytree(before, self.place, symlinks=True)

    def start(self, words: tuple[str, ...], kind: str = "error", number: int = 0) -> int:
        files = [self.streams / name for name in ("stdin", "stdout", "stderr")]
        for file in files:
            file.write_text("")
        settings = {"NMT_TEST_FAULT": f"{kind} {number} {self.streams}/count", "TMPDIR": str(self.streams)}
        return self.forked.start(list(words), self.place, {**os.environ, **settings}, files)

    def finish(self, process: int) -> int:
        code = self.forked.wait(process, self.patience)
        errors = (self.streams / "stderr").read_text()
        assert "Traceback" not in errors, f"traceback: {errors}"
        return code

    def run(self, words: tuple[str, ...], kind: str = "error", number: int = 0) -> int:
        return self.finish(self.start(words, kind, number))

    def results(self) -> dict[str, str]:
        files = {file for name in self.command.results for file in self.place.glob(name) if file.is_file()}
        return {str(file.relative_to(self.place)): sha256_of(file) for file in sorted(files)}

    def litter(self) -> list[str]:
        return [str(path.relative_to(self.place)) for path in self.place.rglob(".*") if path.name != ".lock"]

    def undisturbed(self) -> Undisturbed:
        self.fresh()
        old, began = self.results(), time.monotonic()
        assert self.run(self.command.words) == 0, (self.streams / "stderr").read_text()
        count, seconds = int((self.streams / "count").read_text()), time.monotonic() - began
        assert self.results() and self.litter() == [] and count > 10
        return Undisturbed(old, self.results(), count, seconds)

    def survive_fault(self, kind: str, number: int, expected: Undisturbed) -> None:
        """The n-th operation fails, or the process is killed there."""
        self.fresh()
        self._recover(self.run(self.command.words, kind, number), expected)

    def survive_kill(self, seconds: float, expected: Undisturbed) -> None:
        """The command and its processes are killed after some time."""
        self.fresh()
        process = self.start(self.command.words)
        time.sleep(seconds)
        try:
            os.killpg(process, signal.SIGKILL)  # a process that has ended is still waited for
        except ProcessLookupError:  # the child has not made its group yet
            os.kill(process, signal.SIGKILL)
        self._recover(self.finish(process), expected)

    def _recover(self, code: int, expected: Undisturbed) -> None:
        """The results are old or new, and the same command then gives what it gives undisturbed."""
        verb = self.command.words[0]
        if code == 0:  # the fault came while something was removed or linked, or the kill came late
            assert self.results() == expected.new, "exit code 0 and a wrong result"
        elif verb != "train" and not self.litter():
            # nmt demo writes one file after the other.
            is_part = verb == "demo" and self.results().items() <= expected.new.items()
            assert self.results() in (expected.old, expected.new) or is_part, "half-written"
        assert self.run(self.command.words) == 0, (self.streams / "stderr").read_text()
        assert self.results() == expected.new, "the next run gives a wrong result"
        assert self.litter() == [], f"litter: {self.litter()}"
