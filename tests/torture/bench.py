"""What all classes of torture share: a case, its verdict, and a bench that runs commands.

A command runs in a child of a process that has imported everything (support/forked.py). It takes a fifth of a second of
processor time, so ten thousand damaged files take an hour.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.checks import Result
from support.forked import Forked
from support.toy_corpus import corpus
from support.toy_runs import RECIPE, sets

PATIENCE = 300.0  # seconds for a command, after which it counts as hung
MEMORY = 16 << 30  # bytes of addresses that a command may ask for

SURVIVED = ("right", "refused")


class Failure(AssertionError):
    """nmt did not survive a case. The text says how."""


@dataclass(frozen=True)
class Case:
    """Something done to nmt. `run` returns "right" or "refused", or raises an error."""

    group: str  # the class in the table
    name: str
    run: Callable[[random.Random], str]


def judge(result: Result, is_right: bool | None = None) -> str:
    """The verdict on a command. `is_right` None: any result is right, as a stranger's model may translate anything."""
    words = result.err.strip().splitlines()[-3:]
    if "Traceback" in result.err:
        raise Failure(f"traceback: {words}")
    if "error: out of memory" in result.err:
        raise Failure(f"too much memory: {words}")
    if result.code < 0:
        raise Failure(f"the process died by signal {-result.code}: {words}")
    if result.code == 0:
        if is_right is False:
            raise Failure(f"exit code 0 and a wrong result: {words}")
        return "right"
    errors = [line for line in result.err.splitlines() if line.startswith("error: ")]
    if result.code != 1 or len(errors) != 1:
        raise Failure(f"exit code {result.code}, {len(errors)} errors: {words}")
    return "refused"


class Bench:
    """Folders, and commands that run in them. `inputs` is kept; every case works on a copy of it, in `place`."""

    def __init__(self, folder: Path, share: float) -> None:
        self.share = share  # of the lines of the load
        self.folder, self.inputs, self.place = folder, folder / "inputs", folder / "place"
        self.place.mkdir(exist_ok=True)
        self.forked = self._start()
        assert self.nmt("--version").code == 0  # the server has imported everything, so later commands can be timed
        if not (self.inputs / "complete").exists():
            self._write_inputs()

    def _start(self) -> Forked:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, hard))
        forked = Forked()  # its children inherit the limit
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        return forked

    def close(self) -> None:
        self.forked.close()

    def restart(self) -> None:
        """After a command has hung."""
        self.close()
        self.forked = self._start()

    def fresh(self, *names: str) -> None:
        """Put these folders of the inputs into the place, as they were."""
        shutil.rmtree(self.place, ignore_errors=True)
        for name in names:
            shutil.copytree(self.inputs / name, self.place / name, symlinks=True)

    def nmt(self, *words: object, stdin: bytes = b"") -> Result:
        """Run a command in the place."""
        streams = [self.folder / name for name in ("stdin", "stdout", "stderr")]
        for stream, content in zip(streams, (stdin, b"", b""), strict=True):
            stream.write_bytes(content)
        code = self.forked.run(list(map(str, words)), self.place, {**os.environ, "COLUMNS": "100"}, streams, PATIENCE)
        return Result(code, streams[1].read_bytes(), streams[2].read_text(errors="replace"))

    def _write_inputs(self) -> None:
        """one/ and two/: text, prepared data, a run and two exports. Same sizes, other content."""
        shutil.rmtree(self.inputs, ignore_errors=True)
        shutil.rmtree(self.place, ignore_errors=True)
        for name, first, seed in (("one", 1000, 1), ("two", 3000, 2)):
            folder = self.place / name
            (folder / "x").mkdir(parents=True)
            for file, lines, at in (("a", 400, first), ("v", 20, first + 4000)):
                for side, text in zip(("en", "de"), corpus(lines, at), strict=True):
                    (folder / f"{file}.{side}").write_text(text)
            (folder / "x/x.toml").write_text(RECIPE)
            settings = sets(f"train.seed={seed}", "train.ema=0.9", "train.keep=2", "train.steps=40")
            for words in (
                ("prepare", f"{name}/x/x.toml"),
                ("train", f"{name}/x/x.toml", "--out", f"{name}/run", *settings),
                ("export", f"{name}/run", "--to", "hf", "--out", f"{name}/hf"),
                ("export", f"{name}/run", "--to", "ctranslate2", "--out", f"{name}/ct2"),
            ):
                result = self.nmt(*words)
                assert result.code == 0, result.err
        self.place.rename(self.inputs)
        (self.inputs / "complete").touch()
