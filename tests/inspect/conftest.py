from __future__ import annotations

import pytest
from support.tiny_run import write_run
from typer.main import get_command

from nmt_cli.cli import app
from nmt_cli.store.checkpoint import Trained, load_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with toy.toml, vocab/ and run/."""
    path = tmp_path_factory.mktemp("inspect")
    write_run(path)
    return path


@pytest.fixture(scope="session")
def trained(folder) -> Trained:
    return load_model(folder / "run")


@pytest.fixture(scope="session")
def command():
    """`nmt`, built once: Typer would build it for each call."""
    return get_command(app)


@pytest.fixture
def run(folder, command, capsys, monkeypatch):
    """run("TEXT", "--ascii") is `nmt inspect run TEXT --ascii` inside this process: torch is imported only once."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: object, model: object = "run") -> str:
        capsys.readouterr()
        command(["inspect", str(model), *map(str, arguments)], standalone_mode=False)
        captured = capsys.readouterr()
        assert captured.err == "" or "--out" in arguments
        return captured.out

    return call
