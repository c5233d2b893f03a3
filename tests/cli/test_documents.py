"""README.md and docs/: their commands exist and run on small data, their links lead to files.

A command is run, or `<!-- not run: REASON -->` stands before its block. Commands that take long have the
marker torture.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import typer
from support.documents import (
    DOCUMENTS,
    ROOT,
    Command,
    commands_of_document,
    commands_of_make_demo,
    commands_of_recipe,
    inline_commands,
)
from support.hf_folders import marian_folder, multilingual_folder
from support.small_world import SmallWorld

from nmt_cli.cli import app
from nmt_cli.recipe.help import sections
from nmt_cli.recipe.load import shipped_recipes

RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
SECTIONS = [commands_of_make_demo(), *map(commands_of_document, DOCUMENTS)]
COMMANDS = [command for section in SECTIONS for command in section]
VERBS = typer.main.get_command(app).commands
KEYS = {key.name for _, keys in sections() for key in keys}


def named(command: Command) -> str:
    return f"{command.document.name}: {command.text}"


def trains(command: Command) -> bool:
    return any(words[0] in ("train", "finetune", "ladder", "learn") for words in command.words_of_nmt())


def takes_long(command: Command) -> bool:
    """Trainings beyond those of README.md and the tutorial, models of many languages, and the examples of --help."""
    if command.document.name in ("README.md", "tutorial.md", "wmt14.md", "Makefile"):
        return False
    return trains(command) or command.document.name == "commands.md" or "--target-lang" in command.text


def test_commands_are_found_in_blocks_with_their_marks(write):
    page = """`nmt score x`

```
nmt train data/x \\
    --minutes 3      # a comment
nmt verify           what it does
OMP_NUM_THREADS=1 nmt learn
```

<!-- not run: no GPU -->
```
torchrun -m nmt_cli train RECIPE
```

<!-- not run: minutes -->

    python benchmarks/train.py
    y = f(x)

```python
nmt = 3
```

```
$ nmt prepare x |
  cut -f1
make believe
```
"""
    found = [(command.text, command.not_run) for command in commands_of_document(write("page.md", page))]
    assert found == [
        ("nmt train data/x --minutes 3", ""),
        ("OMP_NUM_THREADS=1 nmt learn", ""),
        ("torchrun -m nmt_cli train RECIPE", "no GPU"),
        ("python benchmarks/train.py", "minutes"),
        ("nmt prepare x | cut -f1", ""),
    ]


@pytest.mark.parametrize("command", [*COMMANDS, *(c for path in RECIPES for c in commands_of_recipe(path))], ids=named)
def test_documented_command_is_well_formed(command):
    if command.not_run.startswith("the general form"):
        assert options_in(command.text) <= options_of(command.text.split()[1])
        return
    for words in command.words_of_nmt():
        name, *rest = words
        with VERBS[name].make_context(name, list(rest)) as context:  # Typer refuses what does not exist
            settings = context.params.get("overrides") or []
        assert {setting.split("=")[0] for setting in settings} <= KEYS, command.text
        if name in ("train", "prepare") and rest and re.fullmatch(r"[a-z0-9-]+", rest[0]):
            assert rest[0] in shipped_recipes() or rest[0].startswith("-"), command.text
    for program, *words in command.stages():
        if program == "make":
            subprocess.run(["make", "--dry-run", *words], cwd=ROOT, check=True, capture_output=True)
        elif program == "torchrun":
            from torch.distributed.run import parse_args

            assert parse_args(words).training_script == "nmt_cli"
        elif program == "python":
            script = (ROOT / words[0]).read_text(encoding="utf-8")
            assert all(f'"{option}"' in script for option in options_in(" ".join(words))), command.text
        elif program == "pytest":
            assert (ROOT / words[0]).exists()


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))


def options_of(name: str) -> set[str]:
    parameters = VERBS[name].params
    return {"--help", *(option for each in parameters for option in (*each.opts, *each.secondary_opts))}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_options_of_commands_within_sentences_exist(document):
    for command in inline_commands(document):
        name = command.split()[1]
        assert options_in(command) <= options_of(name), command


@pytest.fixture
def world(nmt_in, tmp_path) -> SmallWorld:
    world = SmallWorld(tmp_path, nmt_in)
    world.build([command for command in COMMANDS if not command.not_run])
    return world


def run_documents(world: SmallWorld, model: Path, chosen: list[Command]) -> None:
    """Run the commands document by document. A command that several documents share is run once."""
    failures, seen = [], set()
    for section in SECTIONS:
        world.set_demo(model)
        for command in section:
            if command in chosen and command.text not in seen:
                seen.add(command.text)
                try:
                    world.run(command)
                except AssertionError as error:
                    failures.append(f"{command.document.name}: {error}")
    assert not failures, "\n\n".join(failures)
    assert len(seen) > 50


def test_commands_of_the_documents_run(world, model):
    run_documents(world, model, [command for command in COMMANDS if not command.not_run and not takes_long(command)])


@pytest.mark.torture
def test_all_commands_of_the_documents_run(world, model, tmp_path):
    pytest.importorskip("transformers")
    marian_folder(tmp_path / "opus-mt-en-ROMANCE", languages=("fr", "es"), steps=0)
    multilingual_folder(tmp_path / "nllb-200-distilled-600M", "nllb", steps=0)
    multilingual_folder(tmp_path / "m2m100_418M", "m2m_100", steps=0)
    run_documents(world, model, [command for command in COMMANDS if not command.not_run])


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
