"""Checkpoints on disk."""

from __future__ import annotations

import pytest
import torch

from nmt_cli.errors import NmtError
from nmt_cli.store.checkpoint import State, load_state, remove_old_checkpoints, save_state, save_tensors
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
    folder.state.write_text(folder.state.read_text().replace('"finished"', '"done"'))
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
    assert [path.name for path in run.half_written_checkpoints()] == [".step-20.tmp-1"]


def test_a_model_in_a_run_knows_the_run_and_a_copy_does_not(tmp_path):
    for name in ("run/model", "copy"):
        (tmp_path / name).mkdir(parents=True)
    run = run_of_model(tmp_path / "run/model")
    assert run is not None and run.path == tmp_path / "run"
    assert run_of_model(tmp_path / "copy") is None
