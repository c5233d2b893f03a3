"""The task that all programs get, and the few methods that each of them has.

The task: Multi30k English-German as text in pieces of one joint vocabulary of 8,000, which nmt learns. The model has
width 256, 4 heads, feed-forward width 1024, 3+3 layers, tied embeddings, dropout 0.1 and none on attention, label
smoothing 0.1, in float32. Adam (0.9, 0.98), 400 updates of warm-up to a rate of 1e-3, then inverse square root. The
layers are pre-norm, but post-norm in Marian and HF MarianMT.
"""

from __future__ import annotations

import os
import re
import signal
import site
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.parallel import cores
from nmt_cli.text.lines import read_lines
from nmt_cli.text.vocab import load_vocab

DIM, HEADS, FF, LAYERS, DROPOUT, SMOOTHING = 256, 4, 1024, 3, 0.1, 0.1
WARMUP, RATE = 400, 1e-3
PIECES = 8000
SAVE_EVERY = 100  # updates, about a minute: the updates after the last saved model are lost
LINES_OF_A_BATCH = 64  # in translation


class Unavailable(Exception):
    """A program that cannot be installed or does not do what is measured. Its message is the reason."""


@dataclass(frozen=True)
class Task:
    """Files in a folder: train, valid and test as .en and .de in pieces, raw/ as plain text, data/ as nmt's data."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def text(self, name: str, raw: bool = False) -> Path:
        return self.folder / "raw" / name if raw else self.folder / name

    @property
    def pieces(self) -> list[str]:
        """The pieces of the vocabulary without the four special ones."""
        processor = load_vocab(self.data / "vocab").source
        return [processor.id_to_piece(number) for number in range(4, len(processor))]

    def make(self, corpus: Path) -> None:
        (self.folder / "raw").mkdir()
        for name, file in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr")):
            for language in ("en", "de"):
                text = "".join(f"{line}\n" for line in read_lines(corpus / f"{file}.{language}.gz"))
                self.text(f"{name}.{language}", raw=True).write_text(text, encoding="utf-8")
        files = [self.text(f"{name}.{side}", raw=True) for name in ("train", "valid", "test") for side in ("en", "de")]
        options = ("--source", "--target", "--valid-source", "--valid-target", "--test-source", "--test-target")
        words = [str(part) for pair in zip(options, files, strict=True) for part in pair]
        run([sys.executable, "-m", "nmt_cli", "prepare", *words, "--vocab-size", str(PIECES), "--out", str(self.data)])
        processor = load_vocab(self.data / "vocab").source
        for path in files:
            lines = [" ".join(processor.encode(line, out_type=str)) for line in read_lines(path)]
            self.text(path.name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        for folder in (self.folder, self.folder / "raw"):
            (folder / "one.en").write_text(next(read_lines(folder / "test.en")) + "\n", encoding="utf-8")


class Rival:
    """One program. A subclass states its packages and implements the methods below."""

    name = ""
    packages: tuple[str, ...] = ()  # what pip installs, without dependencies: torch and others are those of nmt
    raw = False  # translates plain text, not pieces
    trains = has_help = True
    installed_version = ""

    def __init__(self, task: Task, environments: Path) -> None:
        self.task = task
        self.folder = task.folder / self.name
        self.bin = environments / self.name / "bin"

    def install(self) -> str:
        """Install the program into an environment of its own, and return its version. Raise Unavailable."""
        if not (self.bin / "python").exists():
            run([sys.executable, "-m", "venv", str(self.bin.parent)])
        # The environment sees the packages of nmt's own, so that all programs run on the same torch.
        (packages,) = self.bin.parent.glob("lib/python*/site-packages")
        (packages / "nmt.pth").write_text("".join(f"{folder}\n" for folder in site.getsitepackages()))
        for package in self.packages:
            options = ("--quiet", "--disable-pip-version-check", "--no-deps")
            run([str(self.bin / "python"), "-m", "pip", "install", *options, package])
        self.mend(packages)
        return self.version()

    def mend(self, packages: Path) -> None:
        """Change files of the installed program that do not work with current packages."""

    def version(self) -> str:
        package = re.split("[=<>]", self.packages[0])[0]
        code = f"import importlib.metadata as m; print(m.version({package!r}))"
        return run([str(self.bin / "python"), "-c", code]).strip()

    def configure(self) -> None:
        """Write vocabularies and the like, once."""

    def config_lines(self) -> int:
        """Lines of configuration that a user writes for this task; a flag counts as a line."""
        raise NotImplementedError

    def train(self, tokens: int, seconds: float, save: bool) -> list[float]:
        """Train for so many seconds and return the target tokens/s that the program reports. save: keep a model."""
        raise NotImplementedError

    def translate(self, source: Path, out: Path, beam: int) -> list[str]:
        """The command that translates a file with the model of `train`."""
        raise NotImplementedError

    def help(self) -> list[str]:
        raise NotImplementedError


def environment() -> dict[str, str]:
    """Pickles of one's own making may be loaded; nothing is downloaded."""
    own = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1", "HF_HUB_OFFLINE": "1", "PYTHONIOENCODING": "utf-8"}
    return {**os.environ, **own}


def run(command: Sequence[str], stdin: Path | None = None) -> str:
    """The output of a command. A command that fails is a reason."""
    with (stdin or Path(os.devnull)).open("rb") as stream:
        done = subprocess.run(command, stdin=stream, capture_output=True, text=True, env=environment())
    if done.returncode:
        raise Unavailable(f"{Path(command[0]).name}: {last_line(done.stderr) or last_line(done.stdout)}")
    return done.stdout


def last_line(printed: str) -> str:
    """The last line of a program's messages, without the folders of this machine."""
    return re.sub(r"/[\w./ -]*/", "", printed.strip().split("\n")[-1])[:200]


def run_for(command: Sequence[str], seconds: float, stop: signal.Signals = signal.SIGINT) -> str:
    """What a command prints until it is told to stop after so many seconds. It may end before."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **pipes, env=environment(), start_new_session=True) as process:
        try:
            return process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, stop)
        try:
            return process.communicate(timeout=60)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.communicate()[0]


def rates(pattern: str, printed: str) -> list[float]:
    """The rates in a program's messages."""
    return without_warm_up([float(rate) for rate in re.findall(pattern, printed)], last_line(printed))


def without_warm_up(reports: list[float], last_words: str) -> list[float]:
    """All reports of speed but the first two."""
    if len(reports) < 3:
        raise Unavailable(f"only {len(reports)} reports of speed; its last words: {last_words}")
    return reports[2:]


def seconds_of(command: Sequence[str]) -> float:
    began = time.perf_counter()
    run(command)
    return time.perf_counter() - began


def plain(path: Path) -> list[str]:
    """Lines of pieces as plain text."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [line.replace(" ", "").replace("▁", " ").strip() for line in lines]


def threads() -> int:
    return cores()


def report_every(tokens: int) -> int:
    """Updates between two reports of speed: about 10,000 tokens."""
    return max(1, 10 * 1024 // tokens)
