"""Checkpoints on disk."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from support.tiny_run import write_run

from nmt_cli.errors import NmtError
from nmt_cli.recipe.load import load_recipe
from nmt_cli.store.checkpoint import (
    State,
    damage_of,
    load_state,
    remove_old_checkpoints,
    save_checkpoint,
    save_model,
    save_state,
    save_tensors,
    set_links,
)
from nmt_cli.store.folders import CheckpointFolder, RunFolder, run_of_model


def test_a_full_disk_is_an_error_with_a_hint(tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # a limit on the file size acts like a full disk
    try:
        with pytest.raises(NmtError, match="cannot be written"):
            save_tensors({"x": torch.zeros(100_000)}, tmp_path / "x.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_state_is_read_as_it_was_written(tmp_path):
    folder = CheckpointFolder(tmp_path)
    state = State(step=7, best_value=1.5, validated_steps=[5, 7], scaler={"scale": 2.0**16}, finished=True)
    save_state(folder, state)
    assert load_state(folder) == state
    other_version = {**asdict(state), "done": True}
    folder.state.write_text(json.dumps(other_version))
    with pytest.raises(NmtError, match=r"written by another version of nmt: .*done"):
        load_state(folder)


@pytest.mark.parametrize(("keep", "kept"), [(1, [10, 20, 25]), (2, [10, 15, 20, 25]), (9, [5, 10, 15, 20, 25])])
def test_the_last_validated_the_best_and_the_last_checkpoint_are_kept(tmp_path, keep, kept):
    """A signal saved step 25 between two validations."""
    run = RunFolder(tmp_path)
    for step in (5, 10, 15, 20, 25):
        run.checkpoint(step).path.mkdir(parents=True)
    remove_old_checkpoints(run, State(best_step=10, validated_steps=[5, 10, 15, 20]), keep)
    assert [folder.step for folder in run.saved_checkpoints()] == kept


def test_checkpoints_are_sorted_by_number(tmp_path):
    run = RunFolder(tmp_path)
    for name in ("step-100", "step-9", "step-x", ".step-20.tmp-1", "other"):
        (run.checkpoints / name).mkdir(parents=True)
    assert [folder.step for folder in run.saved_checkpoints()] == [9, 100]


LITTER = [
    *(
        ".recipe.toml.tmp-123",
        ".log.jsonl.tmp-123",
        ".vocab.tmp-123/",
        ".model.tmp-123/",
        "checkpoints/.step-20.tmp-123/",
    ),
    *("checkpoints/step-9/.state.json.tmp-123", f"model/.ctranslate2.tmp-{2**22 + 1}/", "model/.quality.json.tmp-123"),
]


def test_leftovers_of_killed_sessions_are_removed_and_nothing_else_is(tmp_path):
    run = RunFolder(tmp_path)
    kept = ["model/x", ".model.tmp", ".other.tmp-123", ".vocab.tmp-x", "checkpoints/step-9/state.json"]
    kept += [f"model/.ctranslate2.tmp-{os.getppid()}", "step-9.damaged-1/.state.json.tmp-123"]
    for name in (*LITTER, *kept):
        path = tmp_path / name / "inside" if name.endswith("/") else tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    run.remove_leftovers()
    assert not any((tmp_path / name).exists() for name in LITTER)
    assert all((tmp_path / name).exists() for name in kept)


def test_a_model_folder_that_was_being_replaced_is_put_back(tmp_path):
    (tmp_path / ".model.old").mkdir()
    RunFolder(tmp_path).remove_leftovers()
    assert (tmp_path / "model").is_dir() and not (tmp_path / ".model.old").exists()


def saved_checkpoint(run: RunFolder, step: int) -> CheckpointFolder:
    save_checkpoint(run, {"w": torch.ones(2, 2)}, {}, {"x": torch.zeros(3)}, State(step=step))
    return run.checkpoint(step)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("state.json", lambda path: path.write_text("{"), "cannot be read"),
        ("state.json", lambda path: path.write_bytes(b"\0" * 100), "cannot be read"),
        ("state.json", lambda path: path.write_text(path.read_text().replace("20", "10")), "is damaged"),
        ("state.json", Path.unlink, "cannot be read"),
        ("model.safetensors", cut, "is damaged"),
        ("model.safetensors", lambda path: path.write_bytes(b""), "is damaged"),
        ("model.safetensors", Path.unlink, "is missing"),
        ("optimizer.safetensors", cut, "is damaged"),
        ("averaged.safetensors", cut, "is damaged"),
    ],
)
def test_damage_of_a_checkpoint_is_found_and_named(tmp_path, name, damage, reason):
    folder = saved_checkpoint(RunFolder(tmp_path), 20)
    assert damage_of(folder) == ""
    damage(folder.path / name)
    assert name in damage_of(folder) and reason in damage_of(folder)


def test_links_point_at_checkpoints_or_are_not_there(tmp_path):
    run = RunFolder(tmp_path)
    saved_checkpoint(run, 20)
    for link in (run.best, run.last):
        link.symlink_to("step-30")
        link.with_name(f".{link.name}.tmp").symlink_to("step-30")
    set_links(run, State(step=20, best_step=10))
    assert [path.name for path in sorted(run.checkpoints.iterdir())] == ["last", "step-20"]
    assert run.last.resolve() == run.checkpoint(20).path


def test_links_that_were_copied_as_folders_become_links_again(tmp_path):
    """scp -r and cp -rL follow links. A folder that is no copy of a checkpoint stays."""
    run = RunFolder(tmp_path)
    shutil.copytree(saved_checkpoint(run, 20).path, run.last)
    shutil.copytree(saved_checkpoint(run, 10).path, run.best)
    (run.best / "state.json").write_text('{"step": 10, "of": "another run"}')
    set_links(run, State(step=20, best_step=10))
    assert run.last.is_symlink() and run.last.resolve() == run.checkpoint(20).path
    assert not run.best.is_symlink() and (run.best / "model.safetensors").exists()
    assert [path.name for path in sorted(run.checkpoints.iterdir())] == ["best", "last", "step-10", "step-20"]


def test_the_recipe_of_a_model_names_no_place(tmp_path):
    write_run(tmp_path)
    keys = ("data.folder", "data.prepared", "vocab.reuse", "train.out")
    paths = {key: str(tmp_path / key) for key in keys} | {"data.train": [[str(tmp_path / "a"), str(tmp_path / "b")]]}
    recipe = load_recipe(tmp_path / "toy.toml", paths)
    save_model(tmp_path / "new", {"x": torch.zeros(3)}, recipe, tmp_path / "vocab", {})
    assert str(tmp_path) not in (tmp_path / "new/model/recipe.toml").read_text()


def test_a_model_in_a_run_knows_the_run_and_a_copy_does_not(tmp_path):
    for name in ("run/model", "copy"):
        (tmp_path / name).mkdir(parents=True)
    run = run_of_model(tmp_path / "run/model")
    assert run is not None and run.path == tmp_path / "run"
    assert run_of_model(tmp_path / "copy") is None
