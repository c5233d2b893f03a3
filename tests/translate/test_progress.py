"""Warnings, figures and the progress bar of `nmt translate`."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(("files", "total"), [(["x.en"], "30/30"), ([], "30/?"), (["-"], "30/?")])
def test_progress_bar_is_shown_only_if_stderr_alone_is_a_terminal(forked, model, write, tmp_path, files, total):
    """If stdout is a terminal, too, a bar would stand between the lines. FORCE_COLOR does not turn a file into one."""
    source, out = write("x.en", text_of(SENTENCES[:30])), write("out", "")
    write("-", "")  # on the command line, - is standard input all the same
    command = ["translate", str(model), *files]

    def shown(stdout: Path | None, environment: dict[str, str]) -> str:
        """What the terminal shows, which is stderr, and also stdout if `stdout` is None."""
        keyboard, screen = os.openpty()
        terminal = Path(os.ttyname(screen))
        assert forked.run(command, tmp_path, environment, [source, stdout or terminal, terminal], PATIENCE) == 0
        os.write(screen, b"end")  # a terminal without output would let the reader wait
        text = os.read(keyboard, 1 << 16).decode()
        os.close(screen)
        os.close(keyboard)
        return text

    environment = {**os.environ, "TERM": "xterm"}
    bar = shown(out, environment)
    assert "translating" in bar and total in bar
    assert len(out.read_bytes().splitlines()) == 30 and b"\x1b" not in out.read_bytes()
    assert "translating" not in shown(None, environment)
    err = write("err", "")
    assert forked.run(command, tmp_path, environment | {"FORCE_COLOR": "1"}, [source, out, err], PATIENCE) == 0
    assert err.read_bytes() == b""


def test_closed_stderr_does_not_stop_the_translation(model, write):
    """The output is complete, even if stderr is closed or full."""
    long = " ".join(SENTENCES[:30])
    text = write("long.en", f"{long}\n" * 6)
    for where in ("2> >(head -1 > /dev/null)", "2>/dev/full", "2>&-"):
        script = f"{sys.executable} -m nmt_cli translate {model} {text} --beam 1 {where}"
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
