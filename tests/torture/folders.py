"""Hostile folders: a stranger changed the files and wrote the right checksums. Any result is right, if nmt survives."""

from __future__ import annotations

import json
import os
import random
import struct
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from nmt_cli.files import read_record, sha256_of, write_record
from torture.bench import Bench, Case, judge
from torture.mutants import CHANGES, TEXT, TRAIN

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPEATS = 40  # of each kind of change of each file
NASTY: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 10**12, 1e308, 1e-308, float("nan"), float("inf"), "", "x", "a" * 100_000, "\0",
    "../..", "/dev/zero", [], {}, [[]], [1] * 10_000, {"a": 1}, "nfc", "\ud7ff\u2028\n", [None], ["x"], 3.5, "1",
]  # fmt: skip


def _nasty_value(table: Any, chance: random.Random) -> Any:
    """The table with one value exchanged, removed or added, at any depth."""
    if not isinstance(table, (dict, list)) or not table or chance.random() < 0.05:
        return chance.choice(NASTY)
    key = chance.choice(list(table) if isinstance(table, dict) else list(range(len(table))))
    copy = dict(table) if isinstance(table, dict) else list(table)
    deed = chance.random()
    if deed < 0.1:
        del copy[key]
    elif deed < 0.15 and isinstance(copy, dict):
        copy[chance.choice(["x", "", "files", "extends", "family"])] = chance.choice(NASTY)
    else:
        copy[key] = _nasty_value(copy[key], chance)
    return copy


def _without_null(value: Any) -> Any:
    """TOML has no null."""
    if isinstance(value, dict):
        return {key: _without_null(part) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_without_null(part) for part in value if part is not None]
    return value


def _change_json(path: Path, chance: random.Random) -> None:
    path.write_text(json.dumps(_nasty_value(json.loads(path.read_text()), chance)))


def _change_record(path: Path, chance: random.Random) -> None:
    """Another record, with its right checksum."""
    table = _nasty_value(read_record(path, "the"), chance)
    if isinstance(table, dict) and isinstance(table.get("files"), dict):
        write_record(path, table, table.pop("files"))
    else:
        path.write_text(json.dumps(table))


def _change_toml(path: Path, chance: random.Random) -> None:
    changed = _without_null(_nasty_value(tomllib.loads(path.read_text()), chance))
    path.write_text(tomli_w.dumps(changed) if isinstance(changed, dict) else f"x = {changed!r}\n", errors="replace")


def _change_safetensors(path: Path, chance: random.Random) -> None:
    """Another header: names, types, shapes, offsets, or its length."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    if chance.random() < 0.2:
        length = chance.choice([0, 1, length - 1, length + 1, 2**32, 2**63, 2**64 - 1])
        path.write_bytes(struct.pack("<Q", length) + content[8:])
        return
    if chance.random() < 0.3:
        part = chance.choice([entry for name, entry in header.items() if name != "__metadata__"])
        part.update(chance.choice([{"dtype": kind} for kind in ("F64", "I8", "BOOL", "U8", "F16", "BF16", "X")] + [
            {"shape": shape} for shape in ([], [0], [1], [-1], [2**40, 2**40], [2**63])] + [
            {"data_offsets": [0, 0]}, {"data_offsets": [8, 4]}, {"data_offsets": [0, 2**60]}]))  # fmt: skip
    else:
        header = _nasty_value(header, chance)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def _change_bytes(path: Path, chance: random.Random) -> None:
    path.write_bytes(CHANGES[chance.choice(list(CHANGES))](path.read_bytes(), chance))


def _change_type(path: Path, chance: random.Random) -> None:
    """Something else in place of a file."""
    path.unlink()
    match chance.randrange(9):
        case 0:
            os.mkfifo(path)
        case 1:
            path.mkdir()
        case 2:
            path.symlink_to(
                chance.choice(["/dev/zero", "/dev/full", "/dev/null", "/dev/random", "/dev/stdin", "/proc/self/mem"])
            )
        case 3:
            path.symlink_to(path)
        case 4:
            path.symlink_to("nowhere")
        case 5:
            with path.open("wb") as stream:
                stream.truncate(1 << 30)
        case 6:
            path.write_bytes(b"x")
            path.chmod(0)
        case 7:
            path.symlink_to("/etc/passwd")
        case _:
            path.symlink_to("..")


def _change(path: Path) -> Callable[[Path, random.Random], None]:
    by_kind = {".json": _change_json, ".toml": _change_toml, ".safetensors": _change_safetensors}
    return by_kind.get(path.suffix, _change_bytes)


MODEL = "one/run/model"
READERS = {
    MODEL: (
        ("translate", MODEL, "--engine", "torch", "--workers", "1"),
        ("translate", MODEL, "--engine", "ctranslate2", "--workers", "1"),
        ("translate", MODEL, "--engine", "torch", "--workers", "1", "--no-verify"),
        ("inspect", MODEL, "one two three."),
        ("export", MODEL, "--to", "hf", "--out", "new"),
        (*TRAIN, "--from", MODEL, "--out", "new", "--set", "train.steps=2"),
        ("verify", "one/run"),
    ),
    "one/data": (
        (*TRAIN, "--out", "new", "--set", "train.steps=2"),
        ("prepare", "one/x/x.toml"),
        ("verify", "one/data"),
    ),
    "one/run/checkpoints/step-40": (
        (*TRAIN, "--out", "one/run", "--set", "train.steps=42"),
        ("verify", "one/run/checkpoints/step-40"),
    ),
    "one/run": (
        (*TRAIN, "--out", "one/run", "--set", "train.steps=42"),
        ("compare", "one/run", "one/run"),
        ("inspect", "one/run"),
    ),
}
RECORDS = {MODEL: "about.json", "one/data": "meta.json", "one/run/checkpoints/step-40": "state.json"}


class Folders:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def read(self, folder: str, name: str, is_file: bool, words: tuple[str, ...], chance: random.Random) -> str:
        self.bench.fresh("one")
        place = self.bench.place / folder
        record = place / RECORDS.get(folder, "none")
        export = place / "ctranslate2"
        if is_file and Path(name).name == record.name:
            _change_record(place / name, chance)
        else:
            (_change(place / name) if is_file else _change_type)(place / name, chance)
        if is_file and export.is_dir() and name.startswith("ctranslate2/") and name != "ctranslate2/about.json":
            self._sign(export / "about.json")
        if is_file and folder in RECORDS and name != record.name and not name.startswith("ctranslate2/"):
            self._sign(record)
            if export.is_dir():
                self._sign(export / "about.json", read_record(place / "about.json", "the")["files"])
        return judge(self.bench.nmt(*words, stdin=TEXT))

    def _sign(self, record: Path, made_from: dict[str, str] | None = None) -> None:
        """Write the right checksums into a record, as a stranger would."""
        table = read_record(record, "the")
        listed = table.pop("files")
        if made_from:
            table["model"] = {name: made_from.get(name, digest) for name, digest in table["model"].items()}
        write_record(record, table, {name: sha256_of(record.parent / name) for name in listed})


def cases(bench: Bench) -> Iterator[Case]:
    folders = Folders(bench)
    for folder, readers in READERS.items():
        root = bench.inputs / folder
        names = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file()]
        if folder == "one/run":
            names = ["recipe.toml", "log.jsonl"]
        for name in names:
            for number in range(REPEATS):
                words = readers[number % len(readers)]
                is_file = number % 4 > 0
                run = partial(folders.read, folder, name, is_file, words)
                yield Case("folders", f"{folder}/{name}, {number}, {' '.join(words[:4])}", run)
