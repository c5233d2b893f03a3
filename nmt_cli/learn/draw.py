"""A result for the terminal: the verdict, a table of all seeds, a picture, a paragraph."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nmt_cli.learn.results import Bars, Claim, Curves, Picture, Result
from nmt_cli.terminal.heatmap import Ink, grid, heatmap
from nmt_cli.terminal.plot import bar, overlaid, to_ascii
from nmt_cli.terminal.tables import new_table

_WIDEST = 72  # columns of a picture


def claim_table(claims: Sequence[Claim]) -> Table:
    table = new_table("name", "claim", left=(0, 1))
    for claim in claims:
        table.add_row(claim.name, claim.sentence)
    return table


def verdict(result: Result) -> str:
    return "held here" if result.held else "did not hold here"


def figure(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{value:.1e}" if value and abs(value) < 0.001 else f"{value:.4g}"


def draw_result(result: Result, width: int, ink: Ink) -> RenderableType:
    """The verdict, the rule, the figures of all seeds, the picture of the first seed, the paragraph."""
    claim = result.claim
    table = new_table("", *(f"seed {seed}" for seed in result.measurements))
    for name in next(iter(result.measurements.values())).figures:
        table.add_row(name, *(figure(each.figures[name]) for each in result.measurements.values()))
    head = Text.assemble((claim.sentence, "bold"), "\n", (verdict(result), "bold green" if result.held else "bold red"))
    first = next(iter(result.measurements))
    return Group(
        head,
        Text(f"rule: {claim.rule}", style="dim"),
        "",
        table,
        "",
        Text(f"{result.picture.title}, seed {first}", style="bold"),
        draw_picture(result.picture, min(width, _WIDEST), ink),
        "",
        Text(claim.lesson),
    )


def draw_picture(picture: Picture, width: int, ink: Ink) -> RenderableType:
    match picture:
        case Curves():
            curves = drawn_curves(picture)
            if not curves:
                return Text("nothing to draw", style="dim")
            drawn = overlaid(curves, width, 12, picture.axis)
            note = "\nvertical: powers of ten" if picture.powers else ""
            return Text((to_ascii(drawn) if ink == "ascii" else drawn) + note, no_wrap=True)
        case Bars():
            table = new_table("", "", "", left=(0, 2))
            largest = max(value for _, value in picture.bars)
            for name, value in picture.bars:
                drawn = bar(value, largest, 30)
                table.add_row(name, figure(value), to_ascii(drawn) if ink == "ascii" else drawn)
            table.show_header = False
            return table
        case _:
            maps = [(name, np.array(weights)) for name, weights in picture.maps.items()]
            if len(maps) == 1:
                return heatmap(maps[0][1], picture.rows, picture.columns, width, ink)
            return grid(maps, picture.rows, picture.columns, width, ink)


def drawn_curves(picture: Curves) -> dict[str, list[tuple[int, float]]]:
    """The values to draw: with `powers`, their logarithms. A value of 0 has none and is left out.

    A curve without values, such as the losses of a training that diverges at once, is left out.
    """
    drawn = {
        name: [(x, math.log10(y)) for x, y in points if y > 0] if picture.powers else list(points)
        for name, points in picture.curves.items()
    }
    return {name: points for name, points in drawn.items() if points}
