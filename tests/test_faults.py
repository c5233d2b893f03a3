"""Faults at the n-th operation on files: the old or the new is there, and the same command then ends as if undisturbed.

These tests try most operations of files.py and store/checkpoint.py, and a few operations of two commands.
`make torture` tries every operation of all commands that write (tests/torture/writers.py).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.faults import KINDS, Faults
from support.tiny_run import write_run
from support.trials import COMMANDS, Trial, write_inputs

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
    weights = {"weight": torch.full((2, 2), float(len(text))), "bias": torch.zeros(2)}
    save_checkpoint(RunFolder(place), weights, {}, {"x": torch.zeros(2)}, State(step=len(text)))


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


@pytest.mark.parametrize("name", ["prepare --force", "train"])
def test_after_a_fault_the_same_command_gives_the_undisturbed_result(forked, prepared, tmp_path, name):
    write_inputs(tmp_path / "inputs", prepared)
    trial = Trial(forked, tmp_path / "inputs", tmp_path / "place", COMMANDS[name])
    expected = trial.undisturbed()
    for kind, share in (("error", 0.9), ("full", 0.6), ("kill", 0.4)):
        trial.survive_fault(kind, round(share * expected.count), expected)
