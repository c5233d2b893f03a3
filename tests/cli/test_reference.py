"""docs/commands.md lists every command and option as they are declared."""

from __future__ import annotations

import runpy
from pathlib import Path

import typer

from nmt_cli.cli import app

ROOT = Path(__file__).parents[2]


def test_command_reference_is_up_to_date():
    reference = runpy.run_path(str(ROOT / "tools/command_reference.py"))["reference"]()
    assert (ROOT / "docs/commands.md").read_text(encoding="utf-8") == reference, "run: make docs"


def test_command_reference_has_every_command_and_option():
    """The page is compared with Typer's parsed commands, which the tool does not read."""
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    for name, command in typer.main.get_command(app).commands.items():
        section = page.partition(f"## nmt {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for parameter in command.params:
            for option in (*parameter.opts, *getattr(parameter, "secondary_opts", ())):
                if option.startswith("-") and option not in ("-h", "--help"):
                    assert f"`{option}`" in section, (name, option)
