"""Draw matrices for `nmt inspect` and `nmt ladder`. Widths count terminal cells: a Chinese character takes two."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

Ink = Literal["ascii", "blocks", "color"]

_RAMPS = {"ascii": " .:-=+*#%@", "blocks": " ░▒▓█"}
# Viridis: its steps look even, also to color-blind eyes and in gray print.
_VIRIDIS = ((68, 1, 84), (72, 40, 120), (62, 74, 137), (49, 104, 142), (38, 130, 142), (31, 158, 137), (53, 183, 121),
            (110, 206, 88), (181, 222, 43), (253, 231, 37))  # fmt: skip

_WIDEST_COLUMN = 14  # cells; a longer word above a column is cut


def ink_of(console: Console, ascii_only: bool, to_file: bool = False) -> Ink:
    """Color on a terminal with 256 or more colors, ASCII on a dumb terminal or with --ascii, blocks elsewhere."""
    if ascii_only or console.is_dumb_terminal:
        return "ascii"
    terminal = console.is_terminal and not to_file
    return "color" if terminal and not console.no_color and console.color_system in ("256", "truecolor") else "blocks"


def heatmap(weights: np.ndarray, rows: Sequence[str], columns: Sequence[str], width: int, ink: Ink) -> Text:
    """Draw weights (R,C), none negative. Columns that do not fit into the width follow below."""
    margin = _margin(rows, width)
    room = max(1, width - margin - 1)
    widths = [min(room, max(3, min(_WIDEST_COLUMN, cell_len(word)))) for word in columns]
    top = float(weights.max(initial=0.0))
    drawn = Text()
    for page in _pages(widths, room):
        if len(page) < len(columns):
            drawn.append(f"{page.start + 1}-{page.stop} of {len(columns)}\n", "dim")
        drawn.append(" " * margin + "".join(" " + fit(columns[c], widths[c]) for c in page).rstrip() + "\n", "bold")
        for word, values in zip(rows, weights, strict=True):
            drawn.append(fit(word, margin, right=True), "bold")
            for c in page:
                drawn.append(" ")
                _shade(drawn, values[c] / (top or 1), widths[c], ink, f"{100 * values[c]:.0f}")
            drawn.append("\n")
        drawn.append("\n")
    return _with_legend(drawn, 0, top, ink)


def grid(
    maps: Sequence[tuple[str, np.ndarray]], rows: Sequence[str], columns: Sequence[str], width: int, ink: Ink
) -> Text:
    """Small maps of the same words, as many side by side as fit. A shade means the same weight in all maps."""
    margin = min(10, _margin(rows, width))
    room = max(1, width - margin - 1)
    cell = 2 if 2 * len(columns) <= room else 1  # cells of a column
    most = max(1, room // cell)  # columns that fit into one map
    top = max(float(weights.max(initial=0.0)) for _, weights in maps)
    drawn = Text()
    for start in range(0, len(columns), most):
        part = slice(start, min(start + most, len(columns)))
        if most < len(columns):
            drawn.append(f"{part.start + 1}-{part.stop} of {len(columns)}\n\n", "dim")
        wide = min(room, max(cell * len(columns[part]), *(cell_len(title) for title, _ in maps)))
        per_line = max(1, (room + 2) // (wide + 2))  # maps side by side
        for first in range(0, len(maps), per_line):
            group = maps[first : first + per_line]
            drawn.append(" " * margin + "".join(" " + fit(title, wide + 1) for title, _ in group) + "\n", "bold")
            initials = "".join(fit(word[:1], cell) for word in columns[part])
            drawn.append(" " * margin + "".join(" " + fit(initials, wide + 1) for _ in group) + "\n", "dim")
            for r, word in enumerate(rows):
                drawn.append(fit(word, margin, right=True), "dim")
                for place, (_, weights) in enumerate(group):
                    drawn.append("  " + " " * (wide - cell * len(columns[part])) if place else " ")
                    for value in weights[r, part]:
                        _shade(drawn, value / (top or 1), cell, ink)
                drawn.append("\n")
            drawn.append("\n")
    return _with_legend(drawn, 0, top, ink)


def raster(values: np.ndarray, width: int, ink: Ink, left: str, right: str) -> Text:
    """Draw values (R,C) of any sign, without words. If not all columns fit, take columns at even distances."""
    margin = len(str(len(values)))
    count = min(values.shape[1], max(1, width - margin - 1))
    columns = np.linspace(0, values.shape[1] - 1, count).round().astype(int)
    low, high = float(values.min()), float(values.max())
    drawn = Text()
    for number, row in enumerate(values[:, columns], 1):
        drawn.append(f"{number:>{margin}} ", "dim")
        for value in row:
            _shade(drawn, (value - low) / ((high - low) or 1), 1, ink)
        drawn.append("\n")
    gap = " " * max(1, count - len(left) - len(right))
    drawn.append(" " * (margin + 1) + left + gap + right + "\n\n", "dim")
    return _with_legend(drawn, low, high, ink)


def fit(text: str, width: int, right: bool = False) -> str:
    """The text in exactly `width` cells: padded, or cut with an ellipsis."""
    if cell_len(text) > width:
        text = set_cell_size(text, width - 1).rstrip() + "…" if width > 1 else set_cell_size(text, width)
    gap = " " * (width - cell_len(text))
    return gap + text if right else text + gap


def _shade(drawn: Text, share: float, width: int, ink: Ink, figure: str = "") -> None:
    """Append a shade for a share from 0 to 1, `width` cells wide. A colored shade shows the figure unless it is 0."""
    share = min(1.0, max(0.0, float(share)))
    if ink == "color":
        shown = figure.center(width) if figure != "0" and len(figure) < width else " " * width
        place = share * (len(_VIRIDIS) - 1)
        low = min(int(place), len(_VIRIDIS) - 2)
        mixed = [a + (b - a) * (place - low) for a, b in zip(_VIRIDIS[low], _VIRIDIS[low + 1], strict=True)]
        color = "black" if share > 0.6 else "bright_white"
        drawn.append(shown, Style(bgcolor=Color.from_rgb(*mixed), color=color))
    else:
        ramp = _RAMPS[ink]
        drawn.append(ramp[round(share * (len(ramp) - 1))] * width)


def _margin(rows: Sequence[str], width: int) -> int:
    """Cells for the words on the left: at most a third of the width."""
    return max(1, min(_WIDEST_COLUMN + 6, width // 3, max(map(cell_len, rows), default=1)))


def _pages(widths: Sequence[int], room: int) -> list[range]:
    """Split the columns into groups that fit side by side, each column with a space before it."""
    cuts, used = [0], 0
    for c, width in enumerate(widths):
        if used and used + 1 + width > room + 1:
            cuts.append(c)
            used = 0
        used += 1 + width
    return [range(a, b) for a, b in pairwise([*cuts, len(widths)])]


def _with_legend(drawn: Text, low: float, high: float, ink: Ink) -> Text:
    """Append the scale of shades. Remove spaces at the ends of lines, except spaces with a background color."""
    legend = Text(f"{low:.2g} ", style="dim")
    steps = len(_VIRIDIS) if ink == "color" else len(_RAMPS[ink])
    for step in range(steps):
        _shade(legend, step / (steps - 1), 2, ink)
    lines = drawn.append_text(legend.append(f" {high:.2g}", "dim")).split("\n", allow_blank=True)
    for line in lines:
        if not any(isinstance(span.style, Style) for span in line.spans):
            line.rstrip()
    return Text("\n", no_wrap=True, overflow="ignore").join(lines)
