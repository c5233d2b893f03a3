"""Tables without lines: columns of text are flush left, columns of numbers are flush right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # rich is imported only when a table is made: worker processes import this module and draw nothing
    from rich.table import Table


def new_table(*columns: str, title: str = "", left: Sequence[int] = (0,)) -> Table:
    """An empty table with these column heads. `left`: the columns of text, which are flush left."""
    from rich.table import Table

    table = Table(
        box=None, title=title or None, title_justify="left", title_style="bold", pad_edge=False, padding=(0, 2, 0, 0)
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index in left else "right", header_style="dim")
    return table


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Each line has a name and a text. A line without a name is a remark on the line before, in a dim color."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for name, text in rows:
        table.add_row(name, Text(text, style="" if name else "dim", overflow="fold"))
    return table
