"""`nmt recipes`: list the shipped recipes, print one, or list all keys."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from nmt_cli.commands.options import shipped_names
from nmt_cli.errors import NmtError


def recipes(
    name: Annotated[
        str | None,
        Argument(
            metavar="NAME", help="Print this recipe, for example to start your own.", autocompletion=shipped_names
        ),
    ] = None,
    keys: Annotated[bool, Option("--keys", help="List every key with its type, default and meaning.")] = False,
) -> None:
    """List the shipped recipes, print one, or list every key that a recipe may have."""
    from nmt_cli.recipe.help import comments, key_tables
    from nmt_cli.recipe.load import find_recipe, shipped_recipes
    from nmt_cli.terminal.console import output, say
    from nmt_cli.text.lines import read_lines

    if keys and name:
        raise NmtError("--keys lists the keys of every recipe, but one recipe is named", "leave one of them out")
    if keys:
        output().print(key_tables())
    elif name:
        typer.echo("\n".join(read_lines(find_recipe(name))))
    else:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold")
        table.add_column()
        for shipped, path in shipped_recipes().items():
            table.add_row(shipped, comments(path)[0])
        output().print(table)
        say("\nnmt recipes NAME prints a recipe; nmt prepare NAME and nmt train NAME use it.")
