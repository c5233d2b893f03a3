"""The commands of docs/tutorial.md run as written, on a small corpus and in seconds instead of minutes."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from nmt_cli.demo import demo_corpus

PAGE = (Path(__file__).parents[2] / "docs/tutorial.md").read_text(encoding="utf-8")


def test_the_commands_of_the_tutorial_run_in_their_order(nmt, write, tmp_path):
    parts = {"docs": ("train", 300), "new": ("dev", 60), "dev": ("dev", 20), "test": ("test", 20)}
    for name, (split, lines) in parts.items():
        for side, language in enumerate(("en", "fr")):
            write(f"{name}.{language}", "".join(pair[side] + "\n" for pair in demo_corpus(split)[:lines]))
    commands = re.findall(r"^\$ ((?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
    assert len(commands) >= 10
    for command in commands:
        output = b""
        for part in command.replace("\\\n", " ").split(" | "):
            part, _, file = part.partition(" > ")
            program, *words = shlex.split(part)
            if program != "nmt":
                output = subprocess.run([program, *words], input=output, capture_output=True, cwd=tmp_path).stdout
                continue
            words = shlex.split(re.sub(r"--minutes \d+", "--minutes 0.03", shlex.join(words)))
            if words[0] == "train" and "--from" not in words:
                words += ["--set", "model.dim=16"]
            result = nmt(*words, stdin=output)
            assert result.code == 0, (command, result.err)
            output = result.out
            if file:
                write(file.strip(), output)
