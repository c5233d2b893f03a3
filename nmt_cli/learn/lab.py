"""The small models that claims share. Each is trained once, by the session of `nmt train`, and kept in a folder.

A run that was interrupted continues, and a finished run is only loaded. The same seed gives the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmt_cli.data.prepare import prepare
from nmt_cli.demo import SPLITS, demo_corpus
from nmt_cli.errors import NmtError
from nmt_cli.files import replace_file
from nmt_cli.recipe.load import find_recipe, load_recipe
from nmt_cli.store.checkpoint import Trained, load_model
from nmt_cli.store.log import Train, read_log
from nmt_cli.terminal.console import ShowProgress
from nmt_cli.training.session import Interrupted, train
from nmt_cli.training.trainer import Diverged, Event

UPDATES = 600
VALID_LINES = 40  # few: no claim uses them

# Changes to the shipped recipe "demo" for every model: small, in single precision, in one process.
COMMON: dict[str, Any] = {
    "vocab.size": 1000,
    "model.dim": 64,
    "train.steps": UPDATES,
    "train.minutes": 0.0,
    "train.valid_minutes": 0.0,
    "train.valid_lines": VALID_LINES,
    "train.lr": 8e-3,
    "train.warmup": 100,
    "train.log_every": 10,
    "train.precision": "fp32",
    "train.processes": 1,
    "train.device": "cpu",
}
TRANSFORMER: dict[str, Any] = {"model.heads": 4, "model.ff": 256, "model.encoder_layers": 1, "model.decoder_layers": 1}
RECURRENT: dict[str, Any] = {"model.family": "rnn", "train.clip": 1.0}
# Deep, with a constant rate from the first update on, and stopped early.
UNPREPARED: dict[str, Any] = {
    **TRANSFORMER,
    "model.encoder_layers": 6,
    "model.decoder_layers": 6,
    "train.schedule": "constant",
    "train.warmup": 0,
    "train.lr": 4e-3,
    "train.ema": 0.0,
    "train.steps": 100,
}

MODELS: dict[str, dict[str, Any]] = {
    "transformer": TRANSFORMER,
    "learned-positions": {**TRANSFORMER, "model.positions": "learned"},
    "no-smoothing": {**TRANSFORMER, "train.label_smoothing": 0.0},
    "lstm": {**RECURRENT, "model.attention": "none"},
    "lstm-attention": {**RECURRENT, "model.attention": "additive"},
    "pre-norm": {**UNPREPARED, "model.norm": "pre"},
    "post-norm": {**UNPREPARED, "model.norm": "post"},
}


@dataclass
class Lab:
    folder: Path
    show: ShowProgress = lambda stage, done, total: None
    _loaded: dict[str, Trained] = field(default_factory=dict)

    def trained(self, name: str, seed: int) -> Trained:
        """A model of MODELS, trained with this seed."""
        run = f"{name}-{seed}"
        if run not in self._loaded:
            self._train(name, seed)
            self._loaded[run] = load_model(self._run_folder(name, seed))
        return self._loaded[run]

    def losses(self, name: str, seed: int) -> list[tuple[int, float]]:
        """(update, training loss) of a model of MODELS. If the training diverges, the last loss is not a number."""
        diverged = False
        try:
            self._train(name, seed)
        except Diverged:
            diverged = True
        log = read_log(self._run_folder(name, seed))
        losses = [(entry.step, entry.loss) for entry in log if isinstance(entry, Train)]
        return [*losses, (losses[-1][0] if losses else 0, math.nan)] if diverged else losses

    def _run_folder(self, name: str, seed: int) -> Path:
        return self.folder / "runs" / f"{name}-{seed}"

    def _train(self, name: str, seed: int) -> None:
        settings = {**COMMON, **MODELS[name], "train.seed": seed, "train.out": str(self._run_folder(name, seed))}
        steps, stage = settings["train.steps"], f"{name}, seed {seed}"

        def watch(event: Event) -> None:
            if isinstance(event, Train):
                self.show(stage, event.step, steps)

        self.show(stage, 0, steps)
        recipe = load_recipe(find_recipe("demo"), {**self._data(), **settings})
        try:
            prepare(recipe)  # does nothing if the data are there
            result = train(recipe, watch=watch)
        except NmtError as error:
            if "--force" not in error.hint:  # nmt learn has no such option for its models
                raise
            hint = f"remove the folder {self.folder} to start again, or choose another with --out"
            raise NmtError(error.message, hint) from None
        if result.signal:
            raise Interrupted(result)

    def _data(self) -> Mapping[str, Any]:
        """Write the demo corpus, and return the keys of a recipe that name it."""
        corpus = self.folder / "demo"
        corpus.mkdir(parents=True, exist_ok=True)
        for split in SPLITS:
            pairs = demo_corpus(split)[: VALID_LINES if split == "dev" else None]
            for language, lines in zip(("en", "fr"), zip(*pairs, strict=True), strict=True):
                path = corpus / f"{split}.{language}"
                if not path.exists():
                    replace_file(path, "".join(f"{line}\n" for line in lines))
        return {"data.folder": str(corpus.resolve()), "data.prepared": str(self.folder / "data")}
