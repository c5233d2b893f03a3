"""The README and docs/ name commands, options and files that exist; the wheel carries the files that nmt needs."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import typer

from nmt_cli.cli import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands_in(document: Path) -> list[str]:
    """The parts of code blocks that begin with nmt. Lines such as `nmt train   what it does` are descriptions."""
    blocks = re.findall(r"```\w*\n(.*?)```", document.read_text(encoding="utf-8"), flags=re.S)
    lines = (part.strip() for block in blocks for line in block.splitlines() for part in line.split("#")[0].split("|"))
    return [line for line in lines if re.match(r"nmt [a-z]+( |$)", line) and not re.match(r"nmt [a-z]+   ", line)]


COMMANDS = sorted({command for document in DOCUMENTS for command in commands_in(document)})


def options_of(name: str) -> set[str]:
    parameters = typer.main.get_command(app).commands[name].params
    return {"--help", *(option for each in parameters for option in (*each.opts, *getattr(each, "secondary_opts", ())))}


@pytest.mark.parametrize("command", COMMANDS)
def test_documented_commands_and_options_exist(command):
    name, *words = command.split()[1:]
    options = options_of(name)
    for option in (word.split("=")[0] for word in words if word.startswith("--")):
        assert option in options, f"{option} in: {command}"


def test_documents_link_to_existing_files():
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_wheel_carries_recipes_and_demo_corpus(tmp_path):
    """`pip install` without a checkout must bring recipes and demo corpus along, inside the package."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("no network: pip cannot fetch hatchling to build with")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for path in (ROOT / "recipes").glob("*.toml"):
        assert f"nmt_cli/recipes/{path.name}" in names
    assert "nmt_cli/inspect/attention.html" in names
    assert {f"nmt_cli/demo/{split}.tsv.xz" for split in ("train", "dev", "test")} <= set(names)
    assert not [name for name in names if name.startswith(("tests", "tools"))]
