"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option


def shipped_names(incomplete: str) -> list[str]:
    """The shipped recipes whose names begin with `incomplete`. If there are none, the shell completes file names."""
    from nmt_cli.recipe.load import shipped_recipes

    return [name for name in shipped_recipes() if name.startswith(incomplete)]


RecipeName = Annotated[
    str,
    Argument(
        metavar="RECIPE",
        help="A TOML file, a folder with recipe.toml, or a shipped recipe.",
        autocompletion=shipped_names,
    ),
]
Overrides = Annotated[
    list[str] | None, Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe. May be repeated.")
]
DryRun = Annotated[bool, Option("--dry-run", help="Show what would be done, and write nothing.")]
Force = Annotated[bool, Option("--force", help="Replace existing output.")]
