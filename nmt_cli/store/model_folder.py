"""RUN/model as `nmt translate` and `nmt export` see it: everything but the weights, without importing torch.

model/
  model.safetensors    weights
  recipe.toml          the experiment, without paths
  vocab/               pieces of both sides
  about.json           version, steps, data, scores
  ctranslate2/         the same weights for the fast engine, if exported
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt_cli.errors import NmtError
from nmt_cli.files import read_json
from nmt_cli.recipe.load import load_recipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.text.vocab import Vocab, load_vocab

CTRANSLATE2 = "ctranslate2"
# The types of weights that CTranslate2 has; float32 is exact, int8 is smallest.
CTRANSLATE2_TYPES = ("float32", "int8", "int8_float32", "int16", "float16", "int8_float16", "bfloat16", "int8_bfloat16")


@dataclass(frozen=True)
class ModelFolder:
    path: Path
    recipe: Recipe
    vocab: Vocab
    about: dict[str, Any]

    @property
    def ctranslate2(self) -> Path:
        return self.path / CTRANSLATE2

    @property
    def longest_source(self) -> int:
        """Pieces of a source that the model was made for; longer ones have to be split."""
        limits = (self.recipe.model.max_positions - 1, self.recipe.data.clean.max_tokens)  # EOS has a position
        return min((limit for limit in limits if limit > 0), default=sys.maxsize)


def find_model(path: Path) -> Path:
    """A run, its model/ or a copy of that."""
    for folder in (path / "model", path):
        if (folder / "model.safetensors").is_file() and (folder / "vocab").is_dir():
            return folder
    if not path.exists():
        raise NmtError(f"there is no model {path}", "name the folder of a run, or its model/")
    if (path / "checkpoints").is_dir():
        raise NmtError(f"{path} has no model yet: it appears with the first validation", "wait, or train longer")
    raise NmtError(f"{path} is not a model", "name the folder of a run (runs/NAME), or its model/")


def open_model(path: Path) -> ModelFolder:
    folder = find_model(path)
    recipe = load_recipe(folder / "recipe.toml")
    return ModelFolder(folder, recipe, load_vocab(folder / "vocab"), read_json(folder / "about.json", "the model's"))
