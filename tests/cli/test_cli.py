"""The command line as such: help, mistakes, and that the documents speak of commands that exist."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.checks import assert_user_error

ROOT = Path(__file__).parents[2]
VERBS = ["prepare", "train", "translate", "score", "inspect", "ladder", "export", "recipes", "demo"]


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], *([verb, "--help"] for verb in VERBS)])
def test_help(nmt, arguments):
    result = nmt(*arguments)
    assert result.code == 0 and "Usage" in result.text and "\x1b" not in result.text


def test_version(nmt):
    from nmt_cli import __version__

    assert nmt("--version").text == f"nmt {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepaer"], "prepaer"),
        (["prepare", "--uot", "x"], "--uot"),
        (["train"], "recipe"),
        (["train", "demo", "--minutes", "soon"], "--minutes"),
        (["inspect"], "model"),
        (["inspect", "x", "y", "--kind", "self"], "--kind"),
        (["recipes", "none-such"], "there is no recipe none-such"),
        (["demo", "a", "b"], "b"),
    ],
)
def test_mistakes(nmt, arguments, message):
    result = nmt(*arguments)
    assert_user_error(result, "hint: nmt" if message != "there is no recipe none-such" else message)
    assert message.lower() in result.err.lower()


def test_recipes_are_listed_and_printed(nmt):
    listed = nmt("recipes").text
    for path in (ROOT / "recipes").glob("*.toml"):
        assert path.stem in listed
    assert nmt("recipes", "demo").text == (ROOT / "recipes/demo.toml").read_text(encoding="utf-8")
    keys = nmt("recipes", "--keys").text
    assert "train.warmup" in keys and "4000" in keys


def test_demo_writes_its_files_and_overwrites_nothing(nmt, tmp_path):
    result = nmt("demo", "here")
    assert result.code == 0, result.err
    files = {path.name: path.read_text(encoding="utf-8").splitlines() for path in (tmp_path / "here").iterdir()}
    assert {name: len(lines) for name, lines in files.items()} == {
        **{"train.en": 20_000, "train.fr": 20_000, "dev.en": 500, "dev.fr": 500, "test.en": 500, "test.fr": 500}
    }
    assert nmt("demo", "here").code == 0  # the same content again
    (tmp_path / "here/dev.en").write_text("mine\n")
    assert_user_error(nmt("demo", "here"), "dev.en exists with other content", "--force")
    assert (tmp_path / "here/dev.en").read_text() == "mine\n"
    assert nmt("demo", "here", "--force").code == 0
    assert (tmp_path / "here/dev.en").read_text() != "mine\n"


def test_a_broken_pipe_is_quiet(tmp_path):
    script = f"{sys.executable} -m nmt_cli recipes --keys | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stderr == "" and done.stdout.strip() in ("0", "141")


def commands_in(document: Path) -> list[str]:
    """Lines of code blocks that begin with nmt, with the options they use."""
    blocks = re.findall(r"```\w*\n(.*?)```", document.read_text(encoding="utf-8"), flags=re.S)
    lines = (part.strip() for block in blocks for line in block.splitlines() for part in line.split("#")[0].split("|"))
    return [line for line in lines if re.match(r"nmt [a-z]+( |$)", line) and not re.match(r"nmt [a-z]+   ", line)]


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = sorted({command for document in DOCUMENTS for command in commands_in(document)})


@pytest.mark.parametrize("command", COMMANDS)
def test_documented_commands_exist(command):
    """Verb and options must be real; what they do is tested elsewhere."""
    verb, *rest = command.split()[1:]
    assert verb in VERBS
    help_text = _help(verb)
    for option in (word.split("=")[0] for word in rest if word.startswith("--")):
        assert option in help_text, f"{option} in: {command}"


def _help(verb: str, cache: dict[str, str] = {}) -> str:  # noqa: B006
    if verb not in cache:
        done = subprocess.run(
            [sys.executable, "-m", "nmt_cli", verb, "--help"], capture_output=True, text=True, check=True
        )
        cache[verb] = done.stdout
    return cache[verb]


def test_documents_link_to_files_that_are_there():
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_wheel_carries_the_recipes(tmp_path):
    """`pip install` from elsewhere than a checkout must bring recipes/ along, inside the package."""
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
    assert not [name for name in names if name.startswith("tests")]


def test_ctrl_c_before_there_is_anything_to_say():
    """Imports take a moment, in which Python would answer with a traceback."""
    script = "import nmt_cli.__main__, os, signal; os.kill(os.getpid(), signal.SIGINT)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGINT and done.stderr == ""
