"""Faults at the n-th operation on files: the old or the new is there, and the same command then ends as if undisturbed.

`make test` tries most operations of files.py and store/checkpoint.py, and a few operations of two commands.
`make torture` tries every operation of all commands that write.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.faults import KINDS, Faults
from support.tiny_run import write_run
from support.toy_corpus import corpus
from support.toy_runs import RECIPE

from nmt_cli.errors import NmtError
from nmt_cli.files import new_folder, replace_file, sha256_of
from nmt_cli.recipe.load import load_recipe
from nmt_cli.store.checkpoint import State, damage_of, save_checkpoint, save_model
from nmt_cli.store.folders import RunFolder

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def content(path: Path) -> dict[str, str]:
    """The hashes of all files, those of hidden files too."""
    files = [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]
    return {str(file.relative_to(path)): sha256_of(file) for file in files}


# ---------------------------------------------------------------------------------------------------------------------
# Functions: every operation of the shorter ones, a third of the operations of the longer ones


def write_folder(place: Path, text: str) -> None:
    with new_folder(place / "it") as temporary:
        (temporary / "sub").mkdir()
        for name in ("a", "sub/b"):
            (temporary / name).write_text(text)


def write_file(place: Path, text: str) -> None:
    replace_file(place / "it", text)


def write_checkpoint(place: Path, text: str) -> None:
    """A checkpoint is never replaced: the old one is another one."""
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, len(text))
    torch.nn.init.zeros_(model.bias)
    save_checkpoint(RunFolder(place), model, [], {"x": torch.zeros(2)}, State(step=len(text)))


def write_model(place: Path, text: str) -> None:
    recipe = load_recipe(place.parent / "toy.toml")
    save_model(place, {"x": torch.zeros(3)}, recipe, place.parent / "vocab", {"step": len(text)})


def fails(write: Callable[[Path, str], None], place: Path, faults: Faults) -> None:
    """Write with a fault, in a child process if the fault kills the process."""
    if faults.kind != "kill":
        with pytest.raises((OSError, NmtError)), faults.installed():
            write(place, "the new text")
            raise OSError("the fault was ignored")
        return
    child = os.fork()
    if not child:
        with faults.installed():
            write(place, "the new text")
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", [write_folder, write_file, write_checkpoint, write_model])
def test_after_a_fault_the_old_or_the_new_is_there_and_the_next_writer_cleans_up(tmp_path, write, kind):
    write_run(tmp_path)
    old, new, place = tmp_path / "old", tmp_path / "new", tmp_path / "place"
    for folder, text in ((old, "old"), (new, "old"), (new, "the new text")):
        folder.mkdir(exist_ok=True)
        counting = Faults()
        with counting.installed():
            write(folder, text)
    assert content(old) != content(new) and counting.count > 3
    step = 1 if counting.count < 20 else 3
    for number in range(1 + KINDS.index(kind) % step, counting.count + 1, step):
        shutil.copytree(old, place)
        fails(write, place, Faults(kind, number))
        for checkpoint in RunFolder(place).saved_checkpoints():
            assert damage_of(checkpoint) == ""
        if kind != "kill":
            # A folder that could not be removed stays under a hidden name.
            shown = {name: digest for name, digest in content(place).items() if not name.startswith(".")}
            assert shown in (content(old), content(new))
        write(place, "the new text")
        assert content(place) == content(new), number
        shutil.rmtree(place)


# ---------------------------------------------------------------------------------------------------------------------
# Commands


@dataclass(frozen=True)
class Case:
    """A command, the names of the files to compare, and a command that comes before it."""

    command: tuple[str, ...]
    results: tuple[str, ...]
    before: tuple[str, ...] = ()


PREPARE = ("prepare", "--source", "a.en", "--target", "a.de", "--out", "out", "--vocab-size")
TRAIN = ("train", "x/x.toml", "--out", "run")
WEIGHTS = ("checkpoints/step-*/*.safetensors", "model/*.safetensors", "model/ctranslate2/*", "vocab/*")
CASES = {
    "prepare": Case((*PREPARE, "60"), ("out/**/*",)),
    "prepare --force": Case((*PREPARE, "60", "--force"), ("out/**/*",), (*PREPARE, "50")),
    "train": Case(TRAIN, tuple(f"run/{name}" for name in WEIGHTS)),
    "train again": Case(
        (*TRAIN, "--set", "train.steps=6"), tuple(f"run/{name}" for name in WEIGHTS), (*TRAIN, "--set", "train.steps=2")
    ),
    "train --force": Case((*TRAIN, "--force"), tuple(f"run/{name}" for name in WEIGHTS), TRAIN),
    "translate --out": Case(("translate", "tiny/run", "x/x.toml", "--out", "out.txt", "--force"), ("out.txt",)),
    "export to hf": Case(("export", "tiny/run", "--to", "hf", "--out", "out", "--force"), ("out/**/*",)),
    "export to ctranslate2": Case(
        ("export", "tiny/run", "--to", "ctranslate2", "--out", "out", "--force"), ("out/**/*",)
    ),
    "demo": Case(("demo", "out"), ("out/**/*",)),
}


@pytest.fixture(scope="module")
def inputs(prepared, tmp_path_factory) -> Path:
    """Text, prepared data, a recipe and a small model."""
    place = tmp_path_factory.mktemp("faults") / "inputs"
    (place / "tiny").mkdir(parents=True)
    write_run(place / "tiny")
    for name, text in zip(("a.en", "a.de"), corpus(100, 1000), strict=True):
        (place / name).write_text(text)
    (place / "x").mkdir()
    recipe = RECIPE.replace("../", f"{prepared}/").replace("steps = 40", "steps = 4").replace("every = 10", "every = 2")
    (place / "x/x.toml").write_text(recipe + "keep = 1\n")
    return place


@dataclass
class Trial:
    """Runs a command in a fresh copy of the inputs, with faults."""

    forked: object
    inputs: Path
    place: Path
    case: Case

    def fresh(self) -> None:
        before = self.place.with_name("before")
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(before if before.exists() else self.inputs, self.place, symlinks=True)
        if not before.exists():
            assert not self.case.before or self.run(self.case.before) == 0
            shutil.copytree(self.place, before, symlinks=True)

    def run(self, command: tuple[str, ...], kind: str = "error", number: int = 0) -> int:
        streams = [self.inputs.parent / name for name in ("stdin", "stdout", "stderr")]
        for stream in streams:
            stream.write_text("")
        fault = {"NMT_TEST_FAULT": f"{kind} {number} {self.inputs.parent}/count", "TMPDIR": str(self.inputs.parent)}
        code = self.forked.run(list(command), self.place, {**os.environ, **fault}, streams, timeout=600)
        assert "Traceback" not in streams[2].read_text(), streams[2].read_text()
        return code

    def count(self) -> int:
        return int((self.inputs.parent / "count").read_text())

    def results(self) -> dict[str, str]:
        files = {file for name in self.case.results for file in self.place.glob(name) if file.is_file()}
        return {str(file.relative_to(self.place)): sha256_of(file) for file in sorted(files)}

    def litter(self) -> list[str]:
        return [str(path.relative_to(self.place)) for path in self.place.rglob(".*") if path.name != ".lock"]

    def undisturbed(self) -> tuple[dict[str, str], dict[str, str], int]:
        """The results before and after, and the number of operations."""
        self.fresh()
        old = self.results()
        assert self.run(self.case.command) == 0
        assert self.results() and self.litter() == [] and self.count() > 10
        return old, self.results(), self.count()


def survive(trial: Trial, kind: str, numbers: Iterable[int], old: dict[str, str], new: dict[str, str]) -> None:
    for number in numbers:
        trial.fresh()
        code = trial.run(trial.case.command, kind, number)
        is_training = trial.case.command[0] == "train"
        if code == 0:  # the fault came while something was removed or linked
            assert trial.results() == new
        elif not is_training and not trial.litter():
            files_are_new = trial.results().items() <= new.items()  # nmt demo writes one file after the other
            assert trial.results() in (old, new) or (files_are_new and trial.case.command[0] == "demo")
        assert trial.run(trial.case.command) == 0, (kind, number)
        assert trial.results() == new, (kind, number)
        assert trial.litter() == [], (kind, number)


@pytest.mark.parametrize("name", ["prepare --force", "train"])
def test_after_a_fault_the_same_command_gives_the_undisturbed_result(forked, inputs, tmp_path, name):
    trial = Trial(forked, inputs, tmp_path / "place", CASES[name])
    old, new, count = trial.undisturbed()
    for kind, shares in (("error", (0.2, 0.9)), ("full", (0.1, 0.6)), ("kill", (0.4, 0.8))):
        survive(trial, kind, [round(share * count) for share in shares], old, new)


@pytest.mark.torture
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_a_fault_at_every_operation_is_survived(forked, inputs, tmp_path, name, kind):
    trial = Trial(forked, inputs, tmp_path / "place", CASES[name])
    old, new, count = trial.undisturbed()
    survive(trial, kind, range(1, count + 1), old, new)
