"""Damaged files of every kind: a run, its model, exports and prepared data. No file keeps its checksum."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nmt_cli.files import checksums
from torture.bench import Bench, Case, Failure, judge

TEXT = b"one two three.\nfour, five!\nnine 12 zero\n"
REPEATS = 18  # of each change of each file


def _part(content: bytes, chance: random.Random) -> tuple[int, int]:
    """The beginning and the end of a part of the content, of a byte or more."""
    start = chance.randrange(len(content))
    return start, min(len(content), start + 1 + chance.randrange(1 + min(4096, len(content) // 3)))


def _replace(content: bytes, chance: random.Random, make: Callable[[bytes], bytes]) -> bytes:
    start, stop = _part(content, chance)
    return content[:start] + make(content[start:stop]) + content[stop:]


def _swap(content: bytes, chance: random.Random) -> bytes:
    (a, b), (c, d) = sorted(_part(content, chance) for _ in range(2))
    c = max(b, c)
    return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:] if c < d else content[::-1]


def _flip(content: bytes, chance: random.Random) -> bytes:
    at, bit = chance.randrange(len(content)), 1 << chance.randrange(8)
    return content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]


CHANGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "a flipped bit": _flip,
    "flipped bits": lambda content, chance: _flip(_flip(_flip(content, chance), chance), chance),
    "cut off": lambda content, chance: content[: chance.randrange(len(content))],
    "empty": lambda content, chance: b"",
    "zeros in a part": lambda content, chance: _replace(content, chance, lambda part: bytes(len(part))),
    "zeros to the end": lambda content, chance: (
        content[: (at := chance.randrange(len(content)))] + bytes(len(content) - at)
    ),
    "random bytes in a part": lambda content, chance: _replace(
        content, chance, lambda part: chance.randbytes(len(part))
    ),
    "swapped parts": _swap,
    "a doubled part": lambda content, chance: _replace(content, chance, lambda part: part + part),
    "a removed part": lambda content, chance: _replace(content, chance, lambda part: b""),
    "an inserted part": lambda content, chance: _replace(content, chance, lambda part: chance.randbytes(8) + part),
    "appended bytes": lambda content, chance: content + chance.randbytes(1 + chance.randrange(100)),
}
OTHER, MISSING = "the file of another folder", "missing"


@dataclass(frozen=True)
class Reader:
    """A command that reads a folder, and its result: the standard output, or the files at these places."""

    words: tuple[str, ...]
    results: tuple[str, ...] = ()
    stdin: bytes = b""

    def result(self, bench: Bench) -> tuple[str, object]:
        """The verdict, and what the command has written."""
        done = bench.nmt(*self.words, stdin=self.stdin)
        verdict = judge(done)
        if verdict == "refused":
            return verdict, None
        return verdict, self.files(bench.place) if self.results else done.out

    def files(self, place: Path) -> dict[str, str]:
        folders = {folder for name in self.results for folder in place.glob(name)}
        return {f"{folder.relative_to(place)}/{name}": digest for folder in sorted(folders) for name, digest in
                checksums(folder).items() if not name.endswith(("state.json", "about.json", "log.jsonl"))}  # fmt: skip


TRAIN = ("train", "one/x/x.toml", "--set", "train.seed=1", "--set", "train.ema=0.9", "--set", "train.keep=2")
MODEL_READERS = (
    Reader(("translate", "one/run", "--engine", "torch", "--workers", "1", "--format", "jsonl"), stdin=TEXT),
    Reader(("translate", "one/run", "--engine", "ctranslate2", "--workers", "1", "--format", "jsonl"), stdin=TEXT),
    Reader(("inspect", "one/run", "one two three.")),
    Reader(("export", "one/run", "--to", "hf", "--out", "new"), ("new",)),
)
RUN_READERS = (
    Reader((*TRAIN, "--out", "one/run", "--set", "train.steps=42"), ("one/run/checkpoints/step-42", "one/run/model")),
)
DATA_READERS = (
    Reader((*TRAIN, "--out", "new", "--set", "train.steps=2"), ("new/checkpoints/step-2",)),
    Reader(("prepare", "one/x/x.toml"), ("one/data",)),
)
READERS = {"run/model": MODEL_READERS, "run": RUN_READERS, "data": DATA_READERS, "hf": (), "ct2": ()}
# `nmt verify` knows no checksum of these.
UNKNOWN = ("run/recipe.toml", "run/log.jsonl")


class Mutants:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.known: dict[Reader, tuple[str, object]] = {}

    def undisturbed(self, reader: Reader) -> tuple[str, object]:
        if reader not in self.known:
            self.bench.fresh("one")
            self.known[reader] = reader.result(self.bench)
            if self.known[reader][0] != "right" or not self.known[reader][1]:
                raise Failure(f"{reader.words} fails undisturbed: {self.known[reader]}")
        return self.known[reader]

    def mutate(self, name: str, change: str, chance: random.Random) -> bool:
        """Damage a file of the place. False: its content is the same by chance."""
        path = self.bench.place / "one" / name
        content = path.read_bytes()
        if change == MISSING:
            path.unlink()
            return True
        if change == OTHER:
            other = self.bench.inputs / "two"
            # The other run may have kept the checkpoints of other steps.
            found = other / name if (other / name).exists() else next(other.rglob(path.name))
            new = found.read_bytes()
        else:
            new = CHANGES[change](content, chance) if content else b"x"
        path.write_bytes(new)
        return new != content

    def read(self, name: str, change: str, reader: Reader, chance: random.Random) -> str:
        expected = self.undisturbed(reader)
        self.bench.fresh("one")
        self.mutate(name, change, chance)
        kept = _whole_lines(self.bench.place / "one" / name) if name == "run/log.jsonl" else set()
        verdict, found = reader.result(self.bench)
        if verdict == "right" and found != expected[1]:
            raise Failure(f"exit code 0 and a wrong result of {' '.join(reader.words[:2])}")
        if reader in RUN_READERS and kept - _whole_lines(self.bench.place / "one" / name):
            raise Failure("intact lines of the log are lost")
        return verdict

    def verify(self, folder: str, name: str, change: str, chance: random.Random) -> str:
        """`nmt verify` sees every change of a file with a checksum."""
        self.bench.fresh("one")
        is_changed = self.mutate(name, change, chance)
        result = self.bench.nmt("verify", f"one/{folder}")
        return judge(result, not is_changed or name in UNKNOWN)


def _whole_lines(log: Path) -> set[str]:
    """The entries of a log up to the checkpoint that training continues from."""
    lines = set()
    for line in log.read_bytes().split(b"\n")[:-1] if log.exists() else []:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int) and entry.get("kind") in ("train", "valid"):
            lines.add(line.decode())
    return lines


def cases(bench: Bench) -> Iterator[Case]:
    mutants = Mutants(bench)
    for folder, readers in READERS.items():
        root = bench.inputs / "one"
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            is_link = any(parent.is_symlink() for parent in (path, *path.parents) if parent.is_relative_to(root))
            if (
                not path.is_file()
                or is_link
                or path.name == ".lock"
                or (folder == "run" and name.startswith("run/model/"))
            ):
                continue
            for change in (*CHANGES, OTHER, MISSING):
                once = change in ("empty", OTHER, MISSING)
                for number in range(len(readers) + 1 if once else REPEATS):
                    reader = (*readers, None)[number % (len(readers) + 1)]
                    run = (
                        partial(mutants.read, name, change, reader)
                        if reader
                        else partial(mutants.verify, folder, name, change)
                    )
                    words = " ".join(reader.words[:4]) if reader else "verify"
                    yield Case("mutants", f"{name}, {change} {number}, {words}", run)
