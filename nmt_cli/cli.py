"""The `nmt` command: the list of verbs, and the boundary where exceptions become sentences and exit codes.

Nothing heavy is imported here or at the top of a command, so that `nmt --help` is instant.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from nmt_cli import __version__
from nmt_cli.commands import demo, export, inspect, ladder, prepare, recipes, score, train, translate
from nmt_cli.errors import NmtError

app = typer.Typer(
    name="nmt",
    help="Neural machine translation on the command line.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich" if shutil.get_terminal_size().columns >= 80 else None,  # whose table cuts long options
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("prepare")(prepare.prepare)
app.command("train")(train.train)
app.command("translate")(translate.translate)
app.command("ladder")(ladder.ladder)
app.command("export")(export.export)
app.command("score")(score.score)
app.command("inspect")(inspect.inspect)
app.command("recipes")(recipes.recipes)
app.command("demo")(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nmt {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


# The base of Typer's own complaints about the command line; where it lives has moved between versions.
_UsageError = typer.BadParameter.__mro__[1]


def main() -> NoReturn:
    """Run the command line; every way out ends here, with an honest exit code."""
    # How long OpenMP's threads spin while they wait. The default starves training when another program holds a core;
    # this is as fast on a quiet machine (docs/performance.md). It must be set before torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as __main__ left it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = sys.stdin or Path(os.devnull).open()  # noqa: SIM115
    # Someone has closed it: whoever writes there is told so.
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):  # whatever the locale says
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    signal.signal(signal.SIGTERM, _terminated)
    try:
        code = app(prog_name="nmt", standalone_mode=False) or 0
        sys.stdout.flush()  # now, while a full disk can still be reported
    except NmtError as error:
        code = _complain(error.message, error.hint)
    except typer.Abort:
        code = 130
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = _SIGPIPE
    except SystemExit as leaving:  # how rich and Typer take a broken pipe
        code = _SIGPIPE if isinstance(leaving.__context__, BrokenPipeError) else int(leaving.code or 0)
    except MemoryError:
        code = _complain("out of memory", "close other programs, or make batches or blocks smaller")
    except OSError as error:
        if error.errno is None:
            raise
        where = f"{error.filename}: " if error.filename else ""
        code = _complain(f"{where}{os.strerror(error.errno)}", _OS_HINTS.get(error.errno, ""))
    except Exception as error:
        if not isinstance(error, _UsageError):
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "nmt"
        code = _complain(error.format_message(), f"{command} --help shows the options")  # type: ignore[attr-defined]
    _leave(code)


def _terminated(number: int, frame: object) -> NoReturn:
    """Leave as after Ctrl-C: what was being written aside is removed."""
    sys.exit(128 + number)


_SIGPIPE = 141  # as if killed by SIGPIPE: the reader has seen enough, and nobody need be told

_OS_HINTS = {
    errno.ENOSPC: "the disk is full: make room, or write elsewhere",
    errno.EACCES: "check the permissions",
    errno.EBADF: "standard output is closed",
    errno.EROFS: "the file system is read-only: write elsewhere",
}


def _complain(message: str, hint: str) -> int:
    from rich.text import Text

    from nmt_cli.terminal.console import messages

    console = messages()
    console.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    if hint:
        console.print(Text.assemble(("hint: ", "bold"), hint), soft_wrap=True)
    return 1


def _leave(code: int) -> NoReturn:
    """Exit without Python's own last flush, which would turn a closed pipe into a message."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    if code and threading.active_count() > 1:
        # Threads still at work inside a C++ library would take the process down when Python ends before they do.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
