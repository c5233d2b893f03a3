"""Draw small plots with characters, for terminals and text files: pure functions from numbers to strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, cycle, pairwise

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_RISING = " ▁▂▃▄▅▆▇█"


def bar(value: float, largest: float, width: int) -> str:
    """A horizontal bar, exact to an eighth of a character. A value above zero is always visible."""
    if value <= 0 or largest <= 0:
        return ""
    eighths = max(1, round(value / largest * width * 8))
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def curve(values: Sequence[float], width: int, height: int, low: float = 0.0) -> list[str]:
    """A filled curve of `height` lines, top line first. Values are left out or repeated to fill `width` columns."""
    if not values:
        return []
    step = (len(values) - 1) / max(1, width - 1)
    columns = [values[round(index * step)] for index in range(max(1, width))]
    span = (max(columns) - low) or 1.0
    eighths = [round((value - low) / span * height * 8) for value in columns]
    return ["".join(_RISING[min(8, max(0, top - 8 * row))] for top in eighths) for row in reversed(range(height))]


def framed(values: Sequence[float], width: int, height: int, left: str, right: str, form: str, low: float = 0.0) -> str:
    """A curve with its highest and lowest value on the left. `left` and `right` label the two ends of its axis."""
    top, bottom = form.format(max(values)), form.format(low)
    margin = max(len(top), len(bottom))
    lines = curve(values, width - margin - 2, height, low)
    labels = [top, *[""] * (height - 2), bottom]
    drawn = [f"{label:>{margin}} │{line.rstrip()}" for label, line in zip(labels, lines, strict=True)]
    gap = max(1, len(lines[0]) - len(left) - len(right))
    return "\n".join([*drawn, f"{'':>{margin}} └{'─' * len(lines[0])}", f"{'':>{margin}}  {left}{' ' * gap}{right}"])


def curves(losses: Sequence[tuple[int, float]], bleus: Sequence[tuple[int, float]]) -> list[str]:
    """Plot the (step, value) pairs of training loss and validation BLEU. A few values are needed for a plot."""
    parts: list[str] = []
    if len(losses) > 3:
        values = [loss for _, loss in losses]
        drawn = framed(values, 60, 5, "", f"step {losses[-1][0]:,}", "{:.2f}", low=0.9 * min(values))
        parts += ["", "training loss", drawn]
    if len(bleus) > 1:
        drawn = framed([bleu for _, bleu in bleus], 60, 5, "", f"step {bleus[-1][0]:,}", "{:.1f}")
        parts += ["", "validation BLEU", drawn]
    return parts


_MARKS = "●■×+◆o"  # one for each curve of a plot; further curves use the marks again


def overlaid(named: Mapping[str, Sequence[tuple[int, float]]], width: int, height: int, axis: str = "") -> str:
    """Several curves of (step, value) pairs in one frame, each with a mark of its own, and the legend of the marks."""
    values = [value for points in named.values() for _, value in points]
    last = max(step for points in named.values() for step, _ in points) or 1
    low, span = min(values), (max(values) - min(values)) or 1.0
    margin = max(len(f"{value:.1f}") for value in values)
    columns = max(2, width - margin - 2)
    rows = [[" "] * columns for _ in range(height)]
    marked = list(zip(cycle(_MARKS), named.items()))
    for mark, (_, points) in reversed(marked):  # the first curve is drawn last, over the others
        first, end = (round(step / last * (columns - 1)) for step in (points[0][0], points[-1][0]))
        for column in range(first, end + 1):
            value = _interpolated(points, column / (columns - 1) * last)
            rows[height - 1 - round((value - low) / span * (height - 1))][column] = mark
    labels = [f"{max(values):.1f}", *[""] * (height - 2), f"{low:.1f}"]
    lines = [f"{label:>{margin}} │{''.join(row).rstrip()}" for label, row in zip(labels, rows, strict=True)]
    below = [
        f"{f'{last:,} {axis}' if axis else f'step {last:,}':>{columns}}",
        *(f"{mark} {name}" for mark, (name, _) in marked),
    ]
    line = f"{'':>{margin}} └{'─' * columns}"
    return "\n".join([*lines, line, *(f"{'':>{margin}}  {line}" for line in below)])


def _interpolated(points: Sequence[tuple[int, float]], step: float) -> float:
    """The value of the line through the points. It is level before the first point and after the last."""
    for (left, low), (right, high) in pairwise(points):
        if left <= step <= right and left < right:
            return low + (high - low) * (step - left) / (right - left)
    return points[0][1] if step < points[0][0] else points[-1][1]


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def counted(number: float, noun: str) -> str:
    """The number with its noun: 1 minute, 0.5 minutes, 2,000 updates."""
    text = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{text} {noun}" if number == 1 else f"{text} {noun}s"


def bins(histogram: Sequence[int], most: int) -> list[tuple[int, int, int]]:
    """Merge a histogram of single values into at most `most` + 1 bins (from, to, count) of equal, round width."""
    # The last bin holds the longest 1 % of the items. Without this bin, one long item would make all bins too wide.
    below = list(accumulate(histogram))
    edge = next(length for length, count in enumerate(below) if count >= 0.99 * below[-1])
    width = next(width for width in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000) if width * most > edge)
    cut = [(start, start + width - 1, sum(histogram[start : start + width])) for start in range(0, edge + 1, width)]
    tail = sum(histogram[cut[-1][1] + 1 :])
    return [*cut, (cut[-1][1] + 1, len(histogram) - 1, tail)] if tail else cut


def bin_label(low: int, high: int, longest: int) -> str:
    """3, 1-5, or 41+ for the last bin."""
    if low == high:
        return str(low)
    return f"{low}+" if high >= longest - 1 else f"{low}-{high}"


# The characters of all drawings, and an ASCII character that looks like each.
_ASCII = str.maketrans("░▒▓█▁▂▃▄▅▆▇▏▎▍▌▋▊▉│└─├●■×◆…", ".:*#_..::||...:###|+-|*#x@~")


def to_ascii(drawn: str) -> str:
    """The same drawing for a terminal or font without block characters."""
    return drawn.translate(_ASCII)
