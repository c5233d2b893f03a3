"""Fixtures for tests of scoring: small files, and the sacrebleu command on them."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest
from support.score_texts import FILES


@pytest.fixture
def files(write):
    """The texts of support/score_texts.py as files in tmp_path."""
    for name, lines in FILES.items():
        write(name, "\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def sacrebleu(tmp_path_factory):
    """sacrebleu("ref.de", "-i", "a.de") returns the output of the sacrebleu command. Each command runs once."""
    folder = tmp_path_factory.mktemp("sacrebleu")
    for name, lines in FILES.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    @cache
    def run(*arguments: str, seed: str = "12345") -> str:
        command = [sys.executable, "-m", "sacrebleu", *arguments, "--quiet", "--width", "8"]
        env = {**os.environ, "NO_COLOR": "1", "SACREBLEU_SEED": seed}
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env=env).stdout

    return run
