"""Drawings in tests: rendered without colors, and written down in the test as a person sees them."""

from __future__ import annotations

from rich.console import Console, RenderableType


def plain(renderable: RenderableType, width: int = 100) -> str:
    console = Console(width=width, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def drawing(text: str) -> str:
    """A drawing that stands indented in a test, with | at its left edge."""
    return "\n".join(line.strip().removeprefix("|") for line in text.strip().split("\n"))
