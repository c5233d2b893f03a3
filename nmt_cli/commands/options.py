"""Options that several commands share, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nmt_cli.recipe.load import find_recipe, load_recipe, parse_overrides
from nmt_cli.recipe.schema import Recipe

RecipeName = Annotated[
    str,
    typer.Argument(
        help="A TOML file, a folder that holds recipe.toml, or the name of a shipped recipe.", metavar="RECIPE"
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe; may be repeated.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]


def open_recipe(name: str | None, settings: list[str] | None, options: dict[str, Any] | None = None) -> Recipe:
    """The recipe of that name, or the defaults; then the values of typed options; then `--set`."""
    path: Path | None = find_recipe(name) if name else None
    return load_recipe(path, {**(options or {}), **parse_overrides(settings or [])})
