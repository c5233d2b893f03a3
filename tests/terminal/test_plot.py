"""Plots in characters, against drawings made by hand."""

from __future__ import annotations

import pytest

from nmt_cli.terminal.plot import bar, bins, counted, curve, framed, overlaid


@pytest.mark.parametrize(
    ("value", "drawn"), [(0, ""), (-1, ""), (8, "████"), (4, "██"), (1, "▌"), (3, "█▌"), (0.01, "▏"), (0.25, "▏")]
)
def test_bar_is_exact_to_an_eighth(value, drawn):
    assert bar(value, 8, 4) == drawn


def test_curve_rises_with_its_values():
    assert curve([0, 1, 2, 3, 4], 5, 1) == [" ▂▄▆█"]
    assert curve([0, 4], 2, 2) == [" █", " █"]
    assert curve([5, 5], 4, 1, low=0.0) == ["████"]
    assert curve([], 5, 2) == []


def test_curve_repeats_values_to_fill_the_width():
    assert curve([0, 1], 6, 1) == ["   ███"]


def test_framed_curve_has_labels():
    drawn = framed([0, 2, 4], 7, 2, "a", "b", "{:.0f}").split("\n")  # the curve has four columns: 0, 2, 2, 4
    assert drawn == ["4 │   █", "0 │ ███", "  └────", "   a  b"]


def test_curves_share_a_frame_and_the_first_is_on_top():
    drawn = overlaid({"a": [(0, 1), (4, 3)], "b": [(1, 3), (2, 1)]}, 10, 3).split("\n")
    assert drawn == [
        "3.0 │ ■ ●●",  # the columns are steps 0 to 4
        "    │  ●",
        "1.0 │●●■",
        "    └─────",
        "     step 4",
        "     ● a",
        "     ■ b",
    ]


def test_curves_of_one_point_and_of_one_height():
    assert overlaid({"a": [(0, 2.0), (0, 2.0)]}, 8, 2).split("\n")[:2] == ["2.0 │", "2.0 │●"]
    assert overlaid({"a": [(5, 2.0)]}, 8, 2).split("\n")[:2] == ["2.0 │", "2.0 │  ●"]


@pytest.mark.parametrize(
    ("histogram", "expected"),
    [
        ([0, 5, 5], [(0, 0, 0), (1, 1, 5), (2, 2, 5)]),
        ([1] * 100, [(low, low + 9, 10) for low in range(0, 100, 10)]),
        ([0] * 5 + [995] + [0] * 94 + [5], [(n, n, 995 if n == 5 else 0) for n in range(6)] + [(6, 100, 5)]),
    ],
)
def test_bins_have_round_widths_and_a_tail(histogram, expected):
    assert bins(histogram, 10) == expected


def test_bins_keep_every_item():
    histogram = [n * n % 17 for n in range(731)]
    assert sum(count for _, _, count in bins(histogram, 10)) == sum(histogram)


def test_a_number_has_its_noun_in_the_right_form():
    assert [counted(number, "update") for number in (0, 1, 2000, 3_000_000)] == [
        "0 updates", "1 update", "2,000 updates", "3,000,000 updates",
    ]  # fmt: skip
    assert [counted(number, "minute") for number in (0.5, 1.0, 15.0)] == ["0.5 minutes", "1 minute", "15 minutes"]
