"""`nmt --help`, `nmt --version`, and shell completion."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache

import pytest
from support.checks import Result

MAIN_COMMANDS = ["prepare", "train", "translate", "score", "inspect"]
MORE_COMMANDS = ["finetune", "compare", "recipes", "demo", "export", "import", "ladder", "learn", "verify"]


@pytest.fixture(scope="module")
def help_of(nmt_in, tmp_path_factory):
    """help_of("train", "--help", columns=80) is the result of the command. Tests share it."""
    folder = tmp_path_factory.mktemp("help")

    @cache
    def run(*arguments: str, columns: int = 80) -> Result:
        return nmt_in(folder, *arguments, env={"COLUMNS": str(columns)})

    return run


@pytest.fixture(scope="module")
def plain_help() -> dict[str, str]:
    """The help in 60 columns, of each main command and of nmt itself (""). One process prints them all."""
    script = (
        "import json, sys; from nmt_cli.cli import app\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    assert app(words, prog_name='nmt', standalone_mode=False) in (None, 0)\n"
        "    print('\\f', end='')"  # a form feed between two pages
    )
    names = ["", *MAIN_COMMANDS]
    command = [sys.executable, "-c", script, json.dumps([[*name.split(), "--help"] for name in names])]
    environment = {**os.environ, "COLUMNS": "60"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, encoding="utf-8")
    *pages, rest = done.stdout.split("\f")
    assert rest == done.stderr == ""
    return dict(zip(names, pages, strict=True))


@pytest.mark.parametrize("arguments", [[], ["-h"], *([name, "--help"] for name in MAIN_COMMANDS + MORE_COMMANDS)])
def test_help_goes_to_stdout_without_colors(help_of, arguments):
    result = help_of(*arguments)
    assert result.code == 0 and "Usage" in result.text and "\x1b" not in result.text and result.err == ""


@pytest.mark.parametrize(
    ("arguments", "same"), [([], ["--help"]), (["help"], ["--help"]), (["help", "train"], ["train", "--help"])]
)
def test_nmt_help_is_the_help_of_the_command(help_of, arguments, same):
    assert help_of(*arguments).text == help_of(*same).text


WIDTHS = [*((name, 80) for name in MAIN_COMMANDS + MORE_COMMANDS), *((name, 60) for name in MAIN_COMMANDS)]


@pytest.mark.parametrize(("name", "columns"), WIDTHS)
def test_help_names_no_types_of_python(help_of, plain_help, name, columns):
    text = plain_help[name] if columns == 60 else help_of(name, "--help", columns=columns).text
    assert "Usage" in text
    assert not re.search(r"<(bool|str|int|float|path|list)\b", text) and not set("{}") & set(text)
    assert max(map(len, text.splitlines())) <= columns or columns == 60  # plain help does not wrap examples


@pytest.mark.parametrize("columns", [60, 100])
def test_help_shows_the_five_main_commands_first(help_of, plain_help, columns):
    """60 columns get plain text, 100 columns get rich's tables."""
    wide = help_of("--help", columns=100)
    text = plain_help[""] if columns == 60 else wide.text
    assert wide.code == 0 and ("╭" in text) == (columns == 100)
    first, title, second = text.partition("More commands")
    assert title
    listed = [re.findall(r"^[ │]+([a-z]+)  +[A-Z]", part, flags=re.M) for part in (first, second)]
    assert listed == [MAIN_COMMANDS, MORE_COMMANDS]
    assert max(map(len, text.splitlines())) <= columns


def test_plain_help_shows_whole_sentences(nmt):
    """A command of its own, as a user in a narrow terminal starts it."""
    result = nmt("--help", env={"COLUMNS": "60"})
    assert result.code == 0 and "..." not in result.text.partition("Commands:")[2]
    assert "each number with its signature." in " ".join(result.text.split())


def test_version(nmt):
    from nmt_cli import __version__

    assert nmt("--version").text == f"nmt {__version__}\n"


def test_help_does_not_import_torch_or_other_slow_packages():
    script = (
        "import sys; from nmt_cli.cli import app\n"
        "try: app(['--help'], prog_name='nmt')\n"
        "except SystemExit: pass\n"
        "slow = {'torch', 'numpy', 'sacrebleu', 'sentencepiece', 'ctranslate2', 'transformers'} & set(sys.modules)\n"
        "print(sorted(slow), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n" and "Usage" in done.stdout


def test_bash_completes_commands_options_and_choices(tmp_path):
    """After `nmt --install-completion`, bash calls the completion function, as it does after a tab."""
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    expected = {
        "nmt tr": "train translate",
        "nmt score a.de --metr": "--metrics",
        'nmt score a.de --format ""': "table json tsv",
        "nmt help insp": "inspect",
        "nmt train multi30k-en": "multi30k-en-de-quick multi30k-en-de multi30k-en-fr",
        "nmt prepare --val": "--valid-source --valid-target --valid-tsv",
    }
    (tmp_path / "nmt").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nmt_cli "$@"\n')
    (tmp_path / "nmt").chmod(0o755)
    script = (
        'nmt --install-completion >&2; . ~/.bashrc; function=$(complete -p nmt | sed -E "s/.*-F ([^ ]+) .*/\\1/")\n'
    )
    for line in expected:
        script += (
            f'COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); $function nmt; echo "${{COMPREPLY[@]}}"\n'
        )
    env = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env, check=False)
    assert done.stdout.splitlines() == list(expected.values()), done.stderr
