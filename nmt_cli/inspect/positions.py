"""The position encoding of a recipe or of a trained model, as a picture: `nmt inspect RECIPE --show positions`."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Group, RenderableType
from rich.text import Text

from nmt_cli.errors import NmtError
from nmt_cli.model.build import build_model
from nmt_cli.recipe.schema import Recipe
from nmt_cli.store.checkpoint import load_model
from nmt_cli.terminal.heatmap import Ink, raster
from nmt_cli.text.vocab import EOS

_WIDEST = 130  # columns of the drawing
_LENGTH = 40  # positions that fit on one screen


def show_positions(recipe: Recipe, path: Path, width: int, ink: Ink) -> RenderableType:
    """The position encoding by its formula, or as the model in the folder `path` has learned it."""
    if recipe.model.learned_positions and not path.is_dir():
        raise NmtError(
            "this recipe learns its positions in training, so only a trained model has them",
            "name a run: nmt inspect RUN --show positions",
        )
    model = load_model(path).model if recipe.model.learned_positions else build_model(recipe.model, EOS + 1, EOS + 1)
    with torch.inference_mode():
        table = model.positions(min(_LENGTH, recipe.model.max_positions))  # (positions,D)
    if table is None:
        raise NmtError(f'model.family = "{recipe.model.family}" has no position encoding', "a transformer has one")
    # Sines and cosines alternate in the table. Drawn apart, sines left and cosines right, they look like waves.
    sines_then_cosines = torch.cat([table[:, ::2], table[:, 1::2]], 1).detach().double().numpy()
    title = f"position encoding: positions 1 to {len(table)} down, odd dimensions left, even dimensions right"
    ends = ("1, 3, ...", f"..., {table.shape[1]}")
    return Group(Text(title, style="bold"), raster(sines_then_cosines, min(width, _WIDEST), ink, *ends))
