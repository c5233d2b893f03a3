"""Validation: memory that runs out, and the average of checkpoints."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from support.toy_runs import sets

from nmt_cli.model.device import in_parts
from nmt_cli.scoring.metrics import Scores
from nmt_cli.store.checkpoint import average, load_state
from nmt_cli.store.folders import RunFolder
from nmt_cli.store.log import Average, read_log
from nmt_cli.training.validation import Validation


def test_validation_halves_a_batch_that_does_not_fit_into_memory():
    def work(rows: slice) -> list[int]:
        if rows.stop - rows.start > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return list(range(100))[rows]

    assert [n for part in in_parts(work, slice(5, 50)) for n in part] == list(range(5, 50))
    with pytest.raises(RuntimeError, match="a bug"):
        list(in_parts(lambda rows: (_ for _ in ()).throw(RuntimeError("a bug")), slice(0, 9)))


def test_the_value_of_a_better_average_must_be_beaten(train_toy, monkeypatch):
    values = iter([1.0, 2.0, 5.0])
    monkeypatch.setattr(Validation, "measure", lambda *args: (1.0, Scores(next(values), 0.0, "")))
    result, _ = train_toy("train.steps=20", "train.average=2")
    assert load_state(RunFolder(result.run).checkpoint(20)).best_value == 5.0
    assert isinstance(result.best, Average) and result.best.bleu == 5.0


def test_the_last_checkpoints_are_averaged(nmt, toy, tmp_path):
    result = nmt("train", toy, *sets("train.average=3", "train.metric=loss"))
    assert result.code == 0, result.err
    run = RunFolder(tmp_path / "runs/toy")
    entry = next(entry for entry in read_log(run.path) if isinstance(entry, Average))
    assert entry.checkpoints == ("step-20", "step-30", "step-40")
    folders = [run.checkpoint(step) for step in (20, 30, 40)]
    mean = average(folders)
    parts = [load_file(folder.weights) for folder in folders]
    for name in mean:
        torch.testing.assert_close(mean[name], sum(part[name] for part in parts) / 3)
    if entry.best:
        kept = load_file(run.model / "model.safetensors")
        assert all(torch.equal(kept[name], mean[name]) for name in mean)
