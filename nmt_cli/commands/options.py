"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

RecipeName = Annotated[
    str, Argument(metavar="RECIPE", help="A TOML file, a folder with recipe.toml, or a shipped recipe.")
]
Overrides = Annotated[
    list[str] | None, Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe. May be repeated.")
]
DryRun = Annotated[bool, Option("--dry-run", help="Show what would be done, and write nothing.")]
Force = Annotated[bool, Option("--force", help="Replace existing output.")]
