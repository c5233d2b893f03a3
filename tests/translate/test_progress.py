"""Warnings, figures and the progress bar of `nmt translate`."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from support.checks import PATIENCE, read_line
from support.small_language import SENTENCES, text_of

from nmt_cli.terminal.console import say, stages


def test_first_twenty_warnings_name_their_lines_and_others_are_counted(nmt, model):
    result = nmt(
        "translate", model, "--beam", 1, "--max-ratio", 0.1, stdin=b"x " * 400 + b"\n" + (b"y " * 400 + b"\n") * 24
    )
    assert result.code == 0 and len(result.text.splitlines()) == 25
    assert result.err.count("is too long for the model") == 20
    assert "warning: 5 more lines were flagged 'long'" in result.err


def test_stats_are_printed_to_stderr(nmt, model):
    result = nmt("translate", model, "--stats", stdin=text_of(SENTENCES[:2]))
    assert len(result.text.splitlines()) == 2
    parts = ("2 lines", "lines/s", "tokens/s", "start-up", "first line after", "MB at most in a process", "ctranslate2")
    assert all(part in result.err for part in parts), result.err


def test_keyboard_is_asked_for_lines(model):
    keyboard, screen = pytest.importorskip("pty").openpty()
    command = [sys.executable, "-m", "nmt_cli", "translate", str(model)]
    with subprocess.Popen(command, stdin=screen, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr.readline() == b"type a line and press Enter; Ctrl-D ends\n"
        os.write(keyboard, SENTENCES[0].encode() + b"\n")
        assert read_line(process).endswith(b"\n")
        os.write(keyboard, b"\x04")
        assert process.wait(PATIENCE) == 0 and process.stdout.read() == b""
    os.close(keyboard)
    os.close(screen)


def test_pipe_is_not_asked_for_lines(nmt, model):
    assert nmt("translate", model, stdin=text_of(SENTENCES[:1])).err == ""


@pytest.mark.parametrize(("files", "total"), [(True, "30/30"), (False, "30/?")])
def test_progress_bar_is_shown_only_if_stderr_alone_is_a_terminal(model, write, files, total):
    """If stdout is a terminal, too, a bar would stand between the lines. FORCE_COLOR does not turn a file into one."""
    source = write("x.en", text_of(SENTENCES[:30]))
    command = [sys.executable, "-m", "nmt_cli", "translate", str(model), *([str(source)] if files else [])]
    keyboard, screen = os.openpty()
    with source.open("rb") as lines:
        done = subprocess.run(command, stdin=lines, stdout=subprocess.PIPE, stderr=screen, check=True)
    os.close(screen)
    shown = os.read(keyboard, 1 << 16).decode()
    assert "translating" in shown and total in shown
    assert len(done.stdout.splitlines()) == 30 and b"\x1b" not in done.stdout
    keyboard, screen = os.openpty()
    with source.open("rb") as lines:
        subprocess.run(command, stdin=lines, stdout=screen, stderr=screen, check=True)
    os.close(screen)
    assert "translating" not in os.read(keyboard, 1 << 16).decode()
    colored = {**os.environ, "FORCE_COLOR": "1"}
    done = subprocess.run([*command, str(source)], capture_output=True, env=colored, check=True)
    assert done.stderr == b""


def test_closed_stderr_does_not_stop_the_translation(model, write):
    """The output is complete, even if stderr is closed or full."""
    long = " ".join(SENTENCES[:30])
    text = write("long.en", f"{long}\n" * 6)
    for where in ("2> >(head -1 > /dev/null)", "2>/dev/full", "2>&-"):
        script = f"{sys.executable} -m nmt_cli translate {model} {text} {where}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and done.stdout.count("\n") == 6, where


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_warning_beside_the_progress_bar_is_printed_unchanged(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", Terminal())
    warning = "warning: [/x] and [bold]text[/bold] :cat: in a\\[path]"
    with stages() as show:
        show("translating", 1, 2)
        say(warning)
    written = sys.stderr.getvalue()
    assert warning in written and "translating" in written
