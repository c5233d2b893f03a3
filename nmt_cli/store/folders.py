"""All file names of a training run and of its model folder, and the small files of a model.

This module does not import torch, so `nmt translate` starts fast.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from nmt_cli.errors import NmtError, quoted, raise_if_denied
from nmt_cli.files import check_files, check_regular, finish_replacement, read_record, remove_leftovers
from nmt_cli.recipe.load import load_recipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.text.vocab import Vocab, load_vocab

# The types of weights that CTranslate2 has; float32 is exact, int8 is smallest.
CTRANSLATE2_TYPES = ("float32", "int8", "int8_float32", "int16", "float16", "int8_float16", "bfloat16", "int8_bfloat16")
_STEP = "step-"
_PARAGRAPHS = 0.5  # share of training lines with several sentences, from which on a model translates paragraphs whole


class CheckpointFolder:
    """RUN/checkpoints/step-N."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.weights = path / "model.safetensors"
        self.moving_average = path / "averaged.safetensors"  # with train.ema
        self.optimizer = path / "optimizer.safetensors"
        self.state = path / "state.json"

    @property
    def is_numbered(self) -> bool:
        return self.path.name.removeprefix(_STEP).isdigit()

    @property
    def step(self) -> int:
        return int(self.path.name.removeprefix(_STEP))

    def damaged_name(self) -> Path:
        """Where `nmt train` moves this checkpoint if it is damaged: step-N.damaged-1, or the next free number."""
        return _free_name(f"{self.path}.damaged")


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.toml"  # the resolved recipe
        self.vocab = path / "vocab"  # the vocabulary of the prepared data
        self.log = path / "log.jsonl"  # every figure (log.py)
        self.tensorboard = path / "tensorboard"  # the same figures, if train.tensorboard is true
        self.model = path / "model"  # ModelFiles: all that translation needs
        self.lock = path / ".lock"  # held while a process trains here
        self.checkpoints = path / "checkpoints"
        self.best = self.checkpoints / "best"  # best and last are links to checkpoints
        self.last = self.checkpoints / "last"

    def checkpoint(self, step: int) -> CheckpointFolder:
        return CheckpointFolder(self.checkpoints / f"{_STEP}{step}")

    def saved_checkpoints(self) -> list[CheckpointFolder]:
        """Oldest first."""
        # glob would find nothing in a folder that must not be read, and training would start again.
        names = [path.name for path in self.checkpoints.iterdir()] if self.checkpoints.exists() else []
        steps = [name.removeprefix(_STEP) for name in names if name.startswith(_STEP)]
        return [self.checkpoint(step) for step in sorted(int(step) for step in steps if step.isdigit())]

    def remove_leftovers(self) -> None:
        """Remove what killed sessions left. Only the session that holds the lock may call this."""
        for folder in (self.model, self.vocab):
            finish_replacement(folder)
        hidden = [path.name for path in self.checkpoints.glob(f".{_STEP}*.tmp-*")]
        removed = {self.checkpoints / name[1:].rpartition(".tmp-")[0] for name in hidden}
        states = [folder.state for folder in self.saved_checkpoints()]
        model = ModelFiles(self.model)
        for path in (self.recipe, self.log, self.vocab, self.model, model.quality, model.about, *removed, *states):
            remove_leftovers(path, locked=True)
        remove_leftovers(model.ctranslate2)  # a running `nmt export` may write this one

    def is_begun(self) -> bool:
        """Did a training begin here? An empty folder, or one with a lock only, is not a run."""
        return self.recipe.exists() or self.log.exists() or self.checkpoints.exists()

    def old_name(self) -> Path:
        """Where --force moves this run: RUN.old-1, or the next free number."""
        return _free_name(f"{self.path.resolve()}.old")


def _free_name(path: str) -> Path:
    return next(name for number in count(1) if not (name := Path(f"{path}-{number}")).exists())


class ModelFiles:
    """All file names of a model folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.weights = path / "model.safetensors"
        self.recipe = path / "recipe.toml"  # the experiment, without paths
        self.vocab = path / "vocab"
        self.about = path / "about.json"  # version, steps, data, scores, checksums of all files
        self.quality = path / "quality.json"  # estimates of confidence and omissions (search/quality.py)
        self.ctranslate2 = path / "ctranslate2"  # the same weights for CTranslate2, if exported


@dataclass(frozen=True)
class ModelFolder:
    """A model folder whose small files have been read."""

    path: Path
    recipe: Recipe
    vocab: Vocab
    about: dict[str, Any]

    @property
    def ctranslate2(self) -> Path:
        return ModelFiles(self.path).ctranslate2

    def check_weights(self) -> None:
        """Compare the checksum of the weights. `open_model` has compared those of all other files."""
        name = ModelFiles(self.path).weights.name
        files = {listed: digest for listed, digest in self.about.get("files", {}).items() if listed == name}
        check_files(self.path, files, _damage_hint(self.path))

    def check_ctranslate2(self, advice: str = "") -> None:
        """Compare the checksums of the exported model, and those of the weights and the vocabulary it was made from.

        `advice` ends the hint of an error."""
        hint = f"nmt export {quoted(self.path)} --to ctranslate2 --force writes it again{advice}"
        about = ModelFiles(self.ctranslate2).about
        if "files" not in self.about and not about.exists():  # both were written by an older version
            return
        export = read_record(about, "the exported model's")
        check_files(self.ctranslate2, export.get("files", {}), hint)
        if export.get("model") != made_from(self.about):
            raise NmtError(f"{self.ctranslate2} was exported from another model or vocabulary", hint)

    @property
    def longest_source(self) -> int:
        """The most pieces of a source that the model was trained for. Longer sources have to be split."""
        limits = (self.recipe.model.max_positions - 1, self.recipe.data.clean.max_tokens)  # EOS takes one position
        return min((limit for limit in limits if limit > 0), default=sys.maxsize)

    @property
    def known_cases(self) -> frozenset[str]:
        """The cases that the model was trained for: "capitals", "title_case"."""
        augment = self.recipe.train.augment
        return frozenset(case for case in ("capitals", "title_case") if getattr(augment, case))

    @property
    def reads_paragraphs(self) -> bool:
        """Was the model trained on lines of several sentences? Models of older versions do not say."""
        share = self.about.get("several_sentences")
        return isinstance(share, float) and share >= _PARAGRAPHS


def find_model(path: Path) -> ModelFiles:
    """The model in a run, or in a model folder itself."""
    run = RunFolder(path)
    for files in (ModelFiles(run.model), ModelFiles(path)):
        raise_if_denied(files.weights)
        if files.weights.exists():
            check_regular(files.weights)
        # An imported CTranslate2 model has no other weights.
        if (files.weights.is_file() or (files.ctranslate2 / "model.bin").is_file()) and files.vocab.is_dir():
            return files
    if not path.exists():
        raise NmtError(f"there is no model {path}", "name the folder of a run, or its model/")
    if run.checkpoints.is_dir():
        raise NmtError(f"{path} has no model yet: the first validation writes it", "wait, or train longer")
    if (path / "meta.json").is_file() and (path / "train.source.ids").is_file():
        raise NmtError(f"{path} holds prepared data, not a model", f"train it first: nmt train {quoted(path)}")
    raise NmtError(f"{path} is not a model", "name the folder of a run (runs/NAME), or its model/")


def is_model(path: Path) -> bool:
    """Whether `path` is a run that has a model, or a model folder."""
    try:
        find_model(path)
    except NmtError:
        return False
    return True


def open_model(path: Path, verify: bool = True) -> ModelFolder:
    """Read the small files of a model. `verify` compares their checksums first."""
    files = find_model(path)
    about = read_record(files.about, "the model's", verify)
    if not files.weights.exists() and about.get("imported") != "CTranslate2":
        raise NmtError(f"{files.weights} is missing", _damage_hint(files.path))
    if verify:
        small = {name: digest for name, digest in about.get("files", {}).items() if name != files.weights.name}
        check_files(files.path, small, _damage_hint(files.path))
    recipe = load_recipe(files.recipe, may_extend=False)
    return ModelFolder(files.path, recipe, load_vocab(files.vocab), about)


def made_from(about: dict[str, Any]) -> dict[str, str]:
    """The checksums of the weights and the vocabulary of a model, for the about.json of an export."""
    files: dict[str, str] = about.get("files", {})
    return {name: files[name] for name in files if name == "model.safetensors" or name.startswith("vocab/")}


def _damage_hint(model: Path) -> str:
    return f"nmt verify {quoted(model)} lists what is damaged, and says what can be done"


def run_of_model(model: Path) -> RunFolder | None:
    """The run that a model folder lies in. A model that was copied elsewhere has none."""
    run = RunFolder(model.resolve().parent)
    return run if run.model == model.resolve() else None
