"""The `nmt` command: the list of commands, and main(), which turns exceptions into messages and exit codes.

No heavy module is imported here or at the top of a command module, so that `nmt --help` starts fast.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from nmt_cli import __version__
from nmt_cli.commands import (
    compare,
    demo,
    export,
    finetune,
    import_,
    inspect,
    ladder,
    learn,
    prepare,
    recipes,
    score,
    train,
    translate,
    verify,
)
from nmt_cli.errors import NmtError


def _without_types(params: list[Any]) -> list[Any]:
    """Hide the types of switches and arguments in --help. Typer would show <bool> and <str> beside them."""
    for param in params:
        if param.param_type_name == "argument" or param.is_flag:
            param.display_type_rich = lambda ctx: ""
    return params


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)
        return [piece.replace("{", "").replace("}", "") for piece in pieces]  # RUN..., not {RUN}...


class _Commands(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`nmt` and `nmt help` are `nmt --help`, and `nmt help VERB` is `nmt VERB --help`."""
        if args[:1] in ([], ["help"]):
            args = [*(arg for arg in args if arg != "help"), "--help"]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Group the commands in the plain help of narrow terminals as in rich's help, and show whole sentences."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            title = getattr(command, "rich_help_panel", None) or "Commands"
            groups.setdefault(title, []).append((name, command.get_short_help_str(limit=1000)))
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)


app = typer.Typer(
    name="nmt",
    cls=_Commands,
    help="Neural machine translation on the command line.\n\nnmt help COMMAND shows the options of a command.",
    pretty_exceptions_enable=False,
    # On narrow terminals rich's tables cut off long options, so the help is plain there.
    rich_markup_mode="rich" if shutil.get_terminal_size().columns >= 80 else None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (prepare.prepare, train.train, translate.translate, score.score, inspect.inspect):
    app.command(command.__name__, cls=_Command)(command)
_MORE = (
    finetune.finetune,
    compare.compare,
    recipes.recipes,
    demo.demo,
    export.export,
    import_.import_,
    ladder.ladder,
    learn.learn,
    verify.verify,
)
for more in _MORE:
    app.command(more.__name__.rstrip("_"), cls=_Command, rich_help_panel="More commands")(more)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"nmt {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


# Typer's base class of command-line errors. Not every version of Typer exports this class, but all export a subclass.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_CLOSED_PIPE = 141  # the exit code of a program that SIGPIPE ends
# The options for text files of commands that take no text file as an argument.
_TEXT_OPTIONS = {
    "nmt prepare": "nmt prepare --source FILE --target FILE --out FOLDER",
    "nmt train": "nmt prepare --source FILE --target FILE --out FOLDER",
    "nmt finetune": "nmt finetune MODEL --source FILE --target FILE",
}
_OS_HINTS = {
    errno.ENOSPC: "the disk is full: make room, or write elsewhere",
    errno.EACCES: "check the permissions",
    errno.EBADF: "standard output is closed",
    errno.EROFS: "the file system is read-only: write elsewhere",
}


def main() -> NoReturn:
    """Run the command line and exit. The exit code is 0 only if the command succeeded."""
    # OpenMP's threads spin while they wait. The default spins so long that training starves when another program uses
    # a core. This value is as fast on a quiet machine (docs/performance.md). torch reads the variable when imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # __main__ sets SIG_DFL during imports
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    _prepare_streams()
    try:
        code = app(sys.argv[1:], prog_name="nmt", standalone_mode=False) or 0
        sys.stdout.flush()  # here a full disk can still be reported
    except NmtError as error:
        code = _print_error(error.message, error.hint)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        code = _CLOSED_PIPE
    except SystemExit as error:  # rich and Typer call sys.exit when stdout is a closed pipe
        code = _CLOSED_PIPE if isinstance(error.__context__, BrokenPipeError) else int(error.code or 0)
    except MemoryError:
        code = _print_error("out of memory", "close other programs, or make batches or blocks smaller")
    except OSError as error:
        if error.errno is None:
            raise
        path = f"{error.filename}: " if error.filename else ""
        code = _print_error(f"{path}{os.strerror(error.errno)}", _OS_HINTS.get(error.errno, ""))
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        message = error.format_message()  # type: ignore[attr-defined]
        command = context.command_path if context else "nmt"
        hint = f"{command} --help {'shows the options' if ' ' in command else 'lists the commands'}"
        if message.endswith("is not readable."):  # Typer checks the permissions of files that options name
            message, hint = f"{message[:-1]}: {os.strerror(errno.EACCES)}", _OS_HINTS[errno.EACCES]
        if "unexpected extra argument" in message and command in _TEXT_OPTIONS:
            hint = f"text files are named with options: {_TEXT_OPTIONS[command]}; {hint}"
        code = _print_error(message, hint)
    _exit(code)


def _prepare_streams() -> None:
    """Replace streams that the caller has closed, and write UTF-8 whatever the locale is."""
    sys.stdin = sys.stdin or Path(os.devnull).open()  # noqa: SIM115
    # Read-only: writing results to a closed stdout must fail.
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]


def _exit_on_signal(number: int, frame: object) -> NoReturn:
    """Raise SystemExit, so that SIGTERM removes half-written files as Ctrl-C does."""
    sys.exit(128 + number)


def _print_error(message: str, hint: str) -> int:
    from rich.text import Text

    from nmt_cli.terminal.console import messages

    console = messages()
    console.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    if hint:
        console.print(Text.assemble(("hint: ", "bold"), hint), soft_wrap=True)
    return 1


def _exit(code: int) -> NoReturn:
    """Exit without a message if stdout is a closed pipe. Python's own flush at exit would print one."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # a further signal ends the process without a traceback
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    if code and threading.active_count() > 1:
        # A thread that still runs inside a C++ library would crash the process while Python shuts down.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
