"""Tables of this toolkit: first column to the left, numbers to the right, hardly any lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # rich is imported where something is table: the processes that clean and encode draw nothing
    from rich.table import Table


def new_table(*columns: str, title: str = "") -> Table:
    """An empty table; change `columns[n].justify` for text that stands further right."""
    from rich.table import Table

    table = Table(
        box=None, title=title or None, title_justify="left", title_style="bold", pad_edge=False, padding=(0, 2, 0, 0)
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", header_style="dim")
    return table
