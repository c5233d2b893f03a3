"""Heat maps against drawings made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console
from support.drawings import drawing

from nmt_cli.terminal.heatmap import fit, grid, heatmap, ink_of, raster

WEIGHTS = np.array([[0.9, 0.1, 0, 0], [0, 0.2, 0.7, 0.1], [0.05, 0.05, 0.3, 0.6]])
ROWS = ["J'", "aime", "猫"]
COLUMNS = ["I", "like", "the 猫咪", "🐈"]


@pytest.mark.parametrize(
    ("ink", "drawn"),
    [
        (
            "blocks",
            """
            |     I   like the 猫咪 🐈
            |  J' ███
            |aime     ░░░░ ▓▓▓▓▓▓▓▓
            |  猫          ░░░░░░░░ ▓▓▓
            |
            |0   ░░▒▒▓▓██ 0.9
            """,
        ),
        (
            "ascii",
            """
            |     I   like the 猫咪 🐈
            |  J' @@@ ....
            |aime     :::: ######## ...
            |  猫          -------- ***
            |
            |0   ..::--==++**##%%@@ 0.9
            """,
        ),
    ],
)
def test_heatmap_with_wide_characters(ink, drawn):
    assert heatmap(WEIGHTS, ROWS, COLUMNS, 60, ink).plain == drawing(drawn)


def test_columns_beyond_the_width_follow_below():
    drawn = heatmap(WEIGHTS, ROWS, ["I", "incomprehensibilities", "the", "cat"], 24, "blocks")
    assert drawn.plain == drawing(
        """
        |1-2 of 4
        |     I   incomprehensi…
        |  J' ███
        |aime     ░░░░░░░░░░░░░░
        |  猫
        |
        |3-4 of 4
        |     the cat
        |  J'
        |aime ▓▓▓
        |  猫 ░░░ ▓▓▓
        |
        |0   ░░▒▒▓▓██ 0.9
        """
    )


@pytest.mark.parametrize("width", [20, 30, 47, 60, 200])
@pytest.mark.parametrize("ink", ["ascii", "blocks", "color"])
def test_drawings_fit_their_width(width, ink):
    rows = ["Gänsefüßchen", "我喜欢绿色的猫", "👩‍👩‍👧", "e\u0301", ""] * 3
    columns = [*rows, "Donaudampfschifffahrtsgesellschaft"]
    weights = np.random.default_rng(1).dirichlet(np.ones(len(columns)), len(rows))
    maps = [(f"{n}: 1.23 bits", weights) for n in range(3)]
    for drawn in (heatmap(weights, rows, columns, width, ink), grid(maps, rows, columns, width, ink)):
        *body, _, _legend = drawn.plain.split("\n")
        assert max(map(cell_len, body)) <= width


def test_columns_are_aligned_with_their_words():
    """Every shade begins in the terminal cell where its word begins, whatever script the word has."""
    words = ["一", "ab", "🐈🐈🐈", "é"]
    head, *body = heatmap(np.eye(4), words, words, 80, "blocks").plain.split("\n")
    for word, line in zip(words, body, strict=False):
        assert cell_len(line[: line.index("█")]) == cell_len(head[: head.index(word, 6)])


def test_grid_of_two_maps():
    maps = [("1: 0.50 bits", WEIGHTS), ("2: 1.25 bits", WEIGHTS[:, ::-1])]
    assert grid(maps, ROWS, COLUMNS, 40, "ascii").plain == drawing(
        """
        |     1: 0.50 bits  2: 1.25 bits
        |     I l t 🐈      I l t 🐈
        |  J' @@..              ..@@
        |aime   ::##..      ..##::
        |  猫     --**      **--
        |
        |0   ..::--==++**##%%@@ 0.9
        """
    )
    below = grid(maps, ROWS, COLUMNS, 20, "ascii").plain
    assert below.index("1: 0.50 bits\n") < below.index("2: 1.25 bits\n")


def test_raster_of_positive_and_negative_values():
    drawn = raster(np.array([[-1, 0, 1.0], [1, 0, -1]]), 40, "blocks", "a", "b")
    assert drawn.plain == "1  ▒█\n2 █▒\n  a b\n\n-1   ░░▒▒▓▓██ 1"


def test_colored_cells_show_percentages():
    drawn = heatmap(WEIGHTS, ROWS, COLUMNS, 60, "color")
    console = Console(width=60, color_system="truecolor", force_terminal=True, legacy_windows=False)
    with console.capture() as capture:
        console.print(drawn)
    assert "\x1b[30;48;2;253;231;37m 90\x1b[0m" in capture.get()  # the largest weight is yellow
    assert drawn.plain.split("\n")[1] == "  J'  90  10" + " " * 14


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ({"force_terminal": True, "color_system": "truecolor"}, {"TERM": "xterm"}, "color"),
        ({"force_terminal": True, "color_system": "256"}, {"TERM": "xterm"}, "color"),
        ({"force_terminal": True, "color_system": "standard"}, {"TERM": "xterm"}, "blocks"),
        ({"force_terminal": True, "color_system": "256"}, {"TERM": "xterm", "NO_COLOR": "1"}, "blocks"),
        ({"force_terminal": True}, {"TERM": "dumb"}, "ascii"),
        ({"force_terminal": False}, {"TERM": "xterm"}, "blocks"),
    ],
)
def test_ink_follows_the_terminal(options, environment, expected):
    console = Console(_environ=environment, legacy_windows=False, **options)
    assert ink_of(console, False) == expected
    assert ink_of(console, True) == "ascii"
    assert ink_of(console, False, to_file=True) != "color"


@pytest.mark.parametrize(
    ("text", "width", "fitted"),
    [("ab", 4, "ab  "), ("abcde", 4, "abc…"), ("猫猫猫", 4, "猫…"), ("猫", 1, " "), ("猫", 3, "猫 ")],
)
def test_fit_counts_cells(text, width, fitted):
    assert fit(text, width).rstrip() == fitted.rstrip() and cell_len(fit(text, width)) == width
