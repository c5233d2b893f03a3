"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from nmt_cli.recipe import load
from nmt_cli.recipe.schema import Recipe

RecipeName = Annotated[
    str,
    typer.Argument(
        help="A TOML file, a folder that holds recipe.toml, or the name of a shipped recipe.", metavar="RECIPE"
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe. May be repeated.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and write nothing.")]
Force = Annotated[bool, typer.Option("--force", help="Replace existing output.")]


def open_recipe(name: str | None, settings: list[str] | None, options: dict[str, Any] | None = None) -> Recipe:
    """Load the recipe of that name (None: the defaults), then apply `options`, then the settings of `--set`."""
    return load.open_recipe(name, {**(options or {}), **load.parse_overrides(settings or [])})
