"""Warnings, figures and the progress bar of `nmt translate`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.small_language import SENTENCES, text_of


def test_warnings_are_named_up_to_a_number_and_then_counted(nmt, model):
    result = nmt(
        "translate", model, "--beam", 1, "--max-ratio", 0.1, stdin=b"x " * 400 + b"\n" + (b"y " * 400 + b"\n") * 24
    )
    assert result.code == 0 and len(result.text.splitlines()) == 25
    assert result.err.count("is too long for the model") == 20
    assert "warning: 5 more lines were flagged 'split'" in result.err


def test_stats_are_on_stderr(nmt, model):
    result = nmt("translate", model, "--stats", stdin=text_of(SENTENCES[:2]))
    assert len(result.text.splitlines()) == 2
    for part in (
        *("2 lines", "lines/s", "tokens/s", "start-up", "first line after"),
        "MB at most in a process",
        "ctranslate2",
    ):
        assert part in result.err


@pytest.mark.parametrize(("files", "total"), [(True, "30/30"), (False, "30/?")])
def test_a_bar_for_those_who_watch(model, write, files, total):
    """On stderr, if that is a terminal and the output goes elsewhere."""
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
    with source.open("rb") as lines:  # both on the terminal: a bar would be in the way
        subprocess.run(command, stdin=lines, stdout=screen, stderr=screen, check=True)
    os.close(screen)
    assert "translating" not in os.read(keyboard, 1 << 16).decode()
    coloured = {**os.environ, "FORCE_COLOR": "1"}  # is no terminal
    done = subprocess.run([*command, str(source)], capture_output=True, env=coloured, check=True)
    assert done.stderr == b""


def test_nobody_needs_to_read_the_warnings(model, write):
    """The output is there whole, wherever stderr goes."""
    long = " ".join(SENTENCES[:30])
    text = write("long.en", f"{long}\n" * 6)
    for where in ("2> >(head -1 > /dev/null)", "2>/dev/full", "2>&-"):
        script = f"{sys.executable} -m nmt_cli translate {model} {text} {where}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and done.stdout.count("\n") == 6, where
