"""Write docs/commands.md, the reference of every command and option, from the declarations of the commands.

    python tools/command_reference.py docs/commands.md        (or: make docs)

tests/cli/test_reference.py fails while the page is out of date.
"""

from __future__ import annotations

import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.models import ArgumentInfo, OptionInfo

from nmt_cli.cli import app
from nmt_cli.text.lines import write_text

_INTRODUCTION = """# Commands and options

`make docs` writes this page from the declarations of the commands. `nmt COMMAND --help` prints the same.
`nmt --install-completion` completes commands, options and shipped recipes in bash, zsh, fish and PowerShell.
"""
_TYPES = {Path: "path", str: "text", int: "integer", float: "number"}


def reference() -> str:
    parts = [_INTRODUCTION]
    for command in app.registered_commands:
        assert command.name is not None and command.callback is not None
        parts += [f"## nmt {command.name}\n", _description(command.callback), *_tables(command.callback)]
    return "\n".join(parts)


def _description(callback: Callable) -> str:
    r"""The docstring. A paragraph that begins with \b keeps its lines, as in --help."""
    paragraphs = []
    for paragraph in (inspect.getdoc(callback) or "").split("\n\n"):
        keeps_lines = paragraph.startswith("\b\n")
        paragraphs.append(f"```\n{paragraph[2:]}\n```" if keeps_lines else paragraph)
    return "\n\n".join(paragraphs) + "\n"


def _tables(callback: Callable) -> list[str]:
    """The arguments, the options, and each further panel of options as a table."""
    hints = typing.get_type_hints(callback, include_extras=True)
    tables: dict[str, list[str]] = {"Arguments": [], "Options": []}
    for name, parameter in inspect.signature(callback).parameters.items():
        hint = hints[name]
        if typing.get_origin(hint) is typing.Union:  # Python 3.10 makes Optional of every hint with the default None
            hint = typing.get_args(hint)[0]
        kind, declaration = typing.get_args(hint)
        if isinstance(declaration, ArgumentInfo):
            title, label = "Arguments", f"`{declaration.metavar or name.upper()}`"
        else:
            title = declaration.rich_help_panel or "Options"
            label = _option_names(name, kind, declaration)
        required = parameter.default is inspect.Parameter.empty
        cells = (label, _type(kind, declaration), "required" if required else _default(parameter.default))
        meaning = declaration.help or ""
        if declaration.envvar:
            meaning += f" Environment: `{declaration.envvar}`."
        tables.setdefault(title, []).append("| " + " | ".join((*map(_cell, cells), _cell(meaning))) + " |")
    head = "| {} | type | default | meaning |\n|---|---|---|---|\n"
    return [
        head.format(title.lower().rstrip("s") if title in ("Arguments", "Options") else title) + "\n".join(rows) + "\n"
        for title, rows in tables.items()
        if rows
    ]


def _option_names(name: str, kind: Any, option: OptionInfo) -> str:
    # In Annotated[T, typer.Option("--out", "-o")], Typer keeps the first name in `default`.
    names = [*([option.default] if isinstance(option.default, str) else []), *(option.param_decls or ())]
    if names:
        return ", ".join(f"`{option_name}`" for given in names for option_name in given.split("/"))
    long = "--" + name.replace("_", "-")
    return f"`{long}`, `--no-{long[2:]}`" if kind is bool else f"`{long}`"


def _type(kind: Any, declaration: ArgumentInfo | OptionInfo) -> str:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (kind,) = (part for part in typing.get_args(kind) if part is not types.NoneType)
    if typing.get_origin(kind) is list:
        return _type(typing.get_args(kind)[0], declaration) + ", repeatable"
    if typing.get_origin(kind) is tuple:
        return ", ".join(_type(part, declaration) for part in typing.get_args(kind))
    if kind is bool:
        return "flag"
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(kind))
    if issubclass(kind, enum.Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    low, high = declaration.min, declaration.max
    limits = f" {low:g}-{high:g}" if low is not None and high is not None else f" >= {low:g}" if low is not None else ""
    return _TYPES[kind] + limits


def _default(value: Any) -> str:
    if value is None or value is False or value == "":
        return ""
    if value is True:
        return "on"
    return f"`{value.value if isinstance(value, enum.Enum) else value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), reference())
