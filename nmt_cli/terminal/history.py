"""Draw the history of a training run: the curves of training loss and validation BLEU."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from nmt_cli.terminal.plot import framed


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def curves(losses: Sequence[tuple[int, float]], bleus: Sequence[tuple[int, float]]) -> list[RenderableType]:
    """(step, value) of the training loss and of the validation BLEU. Too few values make no curve."""
    parts: list[RenderableType] = []
    if len(losses) > 3:
        values = [loss for _, loss in losses]
        drawn = framed(values, 60, 5, "", f"step {losses[-1][0]:,}", "{:.2f}", low=0.9 * min(values))
        parts += ["", Text("training loss"), Text(drawn)]
    if len(bleus) > 1:
        drawn = framed([bleu for _, bleu in bleus], 60, 5, "", f"step {bleus[-1][0]:,}", "{:.1f}")
        parts += ["", Text("validation BLEU"), Text(drawn)]
    return parts
