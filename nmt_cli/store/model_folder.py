"""RUN/model without its weights. This module does not import torch, so `nmt translate` starts fast."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt_cli.errors import NmtError
from nmt_cli.files import read_json
from nmt_cli.recipe.load import load_recipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.store.run_folder import RunFolder
from nmt_cli.text.vocab import Vocab, load_vocab

# The types of weights that CTranslate2 has; float32 is exact, int8 is smallest.
CTRANSLATE2_TYPES = ("float32", "int8", "int8_float32", "int16", "float16", "int8_float16", "bfloat16", "int8_bfloat16")


class ModelFiles:
    """All file names of a model folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.weights = path / "model.safetensors"
        self.recipe = path / "recipe.toml"  # the experiment, without paths
        self.vocab = path / "vocab"
        self.about = path / "about.json"  # version, steps, data, scores
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

    @property
    def longest_source(self) -> int:
        """The most pieces of a source that the model was trained for. Longer sources have to be split."""
        limits = (self.recipe.model.max_positions - 1, self.recipe.data.clean.max_tokens)  # EOS takes one position
        return min((limit for limit in limits if limit > 0), default=sys.maxsize)


def find_model(path: Path) -> ModelFiles:
    """The model in a run, or in a model folder itself."""
    run = RunFolder(path)
    for files in (ModelFiles(run.model), ModelFiles(path)):
        if files.weights.is_file() and files.vocab.is_dir():
            return files
    if not path.exists():
        raise NmtError(f"there is no model {path}", "name the folder of a run, or its model/")
    if run.checkpoints.is_dir():
        raise NmtError(f"{path} has no model yet: the first validation writes it", "wait, or train longer")
    raise NmtError(f"{path} is not a model", "name the folder of a run (runs/NAME), or its model/")


def open_model(path: Path) -> ModelFolder:
    files = find_model(path)
    about = read_json(files.about, "the model's")
    return ModelFolder(files.path, load_recipe(files.recipe), load_vocab(files.vocab), about)
