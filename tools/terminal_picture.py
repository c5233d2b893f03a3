"""Record what a command shows in a real terminal, as two SVG pictures: NAME-light.svg and NAME-dark.svg.

    python tools/terminal_picture.py docs/pictures/attention 80 'nmt inspect runs/demo "I like the green cat."'

The command runs in tmux. The picture is the screen at the end of the command, in the terminal's own colors.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

ROWS = 60  # enough for any picture; blank rows at the end are cut
THEMES: dict[str, TerminalTheme] = {"light": DEFAULT_TERMINAL_THEME, "dark": SVG_EXPORT_THEME}


def recorded(command: str, columns: int) -> str:
    """The screen after the command has ended, with its ANSI codes."""
    session = f"picture-{time.time_ns()}"
    script = f"{command}; tmux wait-for -S {session}; sleep 60"
    subprocess.run(
        ["tmux", "new-session", "-d", "-s", session, "-x", str(columns), "-y", str(ROWS), script], check=True
    )
    try:
        subprocess.run(["tmux", "wait-for", session], check=True)
        screen = ["tmux", "capture-pane", "-e", "-p", "-t", session]
        return subprocess.run(screen, check=True, capture_output=True, text=True).stdout
    finally:
        subprocess.run(["tmux", "kill-session", "-t", session], check=False)


def picture(command: str, screen: str, columns: int, theme: TerminalTheme) -> str:
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}"), soft_wrap=True)
    console.print(Text.from_ansi(screen.rstrip()))
    return console.export_svg(title="nmt", theme=theme, unique_id="nmt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", type=Path)
    parser.add_argument("columns", type=int)
    parser.add_argument("command")
    arguments = parser.parse_args()
    screen = recorded(arguments.command, arguments.columns)
    arguments.name.parent.mkdir(parents=True, exist_ok=True)
    for name, theme in THEMES.items():
        path = arguments.name.with_name(f"{arguments.name.name}-{name}.svg")
        path.write_text(picture(arguments.command, screen, arguments.columns, theme), encoding="utf-8")


if __name__ == "__main__":
    main()
