"""All file names of a training run. This module reads no file and does not import torch."""

from __future__ import annotations

from itertools import count
from pathlib import Path

_STEP = "step-"


class CheckpointFolder:
    """RUN/checkpoints/step-N."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.weights = path / "model.safetensors"
        self.moving_average = path / "averaged.safetensors"  # with train.ema
        self.optimizer = path / "optimizer.safetensors"
        self.state = path / "state.json"

    @property
    def step(self) -> int:
        return int(self.path.name.removeprefix(_STEP))


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.toml"  # the resolved recipe
        self.vocab = path / "vocab"  # the vocabulary of the prepared data
        self.log = path / "log.jsonl"  # every figure (log.py)
        self.tensorboard = path / "tensorboard"  # the same figures, if train.tensorboard is true
        self.model = path / "model"  # all that translation needs (model_folder.py)
        self.lock = path / ".lock"  # held while a process trains here
        self.checkpoints = path / "checkpoints"
        self.best = self.checkpoints / "best"  # best and last are links to checkpoints
        self.last = self.checkpoints / "last"

    def checkpoint(self, step: int) -> CheckpointFolder:
        return CheckpointFolder(self.checkpoints / f"{_STEP}{step}")

    def saved_checkpoints(self) -> list[CheckpointFolder]:
        """Oldest first."""
        names = (path.name.removeprefix(_STEP) for path in self.checkpoints.glob(f"{_STEP}*"))
        return [self.checkpoint(step) for step in sorted(int(name) for name in names if name.isdigit())]

    def half_written_checkpoints(self) -> list[Path]:
        """Folders that files.new_folder began, in sessions that were killed meanwhile."""
        return list(self.checkpoints.glob(f".{_STEP}*.tmp-*"))

    def is_begun(self) -> bool:
        """Did a training begin here? An empty folder, or one with a lock only, is not a run."""
        return self.recipe.exists() or self.log.exists() or self.checkpoints.exists()

    def old_name(self) -> Path:
        """Where --force moves this run: RUN.old-1, or the next free number."""
        path = self.path.resolve()
        return next(name for number in count(1) if not (name := path.with_name(f"{path.name}.old-{number}")).exists())


def run_of_model(model: Path) -> RunFolder | None:
    """The run that a model folder lies in. A model that was copied elsewhere has none."""
    run = RunFolder(model.resolve().parent)
    return run if run.model == model.resolve() else None
