"""nmt loads no pickle and opens no connection, neither when it is imported nor when its commands run."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import audit
from support.tiny_run import write_run
from support.toy_corpus import corpus
from support.toy_runs import RECIPE, TWO_PROCESSES, sets

import nmt_cli


def test_importing_all_modules_opens_no_socket_and_loads_no_pickle(tmp_path):
    record = tmp_path / "events"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, audit.__file__, record], env=environment, check=True)
    # A torch with CUDA asks ldconfig where the libraries of the driver are.
    events = [event for event in audit.events(record) if event[:2] != ["subprocess.Popen", "/sbin/ldconfig"]]
    assert events == []


def test_a_connection_and_a_pickle_would_be_recorded(tmp_path):
    code = f"""import pickle, socket, sys
sys.path.insert(0, {str(Path(audit.__file__).parent)!r})
import audit
audit.install({str(tmp_path / "events")!r})
socket.socket().close()
pickle.loads(pickle.dumps(audit.install))"""
    subprocess.run([sys.executable, "-c", code], check=True)
    names = [event for event, *_ in audit.events(tmp_path / "events")]
    assert names == ["socket.__new__", "pickle.find_class"]


def last_name(function: ast.expr) -> str:
    return str(getattr(function, "attr", getattr(function, "id", "")))


def test_no_module_reads_pickles_or_runs_text_as_code():
    """multiprocessing pickles what nmt sends to its own worker processes. No file is read that way, except by torch's
    loader for plain weights, which runs nothing (`nmt import`)."""
    forbidden = {"pickle.load", "pickle.loads", "torch.load", "marshal.load", "marshal.loads", "eval", "exec"}
    last_names = {name.rpartition(".")[2] for name in forbidden}
    for path in Path(nmt_cli.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and last_name(node.func) in last_names:
                only_weights = "weights_only=True" in map(ast.unparse, node.keywords)
                assert only_weights or ast.unparse(node.func) not in forbidden, f"{path}, line {node.lineno}"


@pytest.fixture(scope="module")
def place(prepared, tmp_path_factory) -> Path:
    """Text, prepared data, a recipe and a small model."""
    place = tmp_path_factory.mktemp("offline")
    write_run(place)
    for name, text in zip(("a.en", "a.de"), corpus(50, 1000), strict=True):
        (place / name).write_text(text)
    recipe = RECIPE.replace("../", f"{prepared}/").replace("steps = 40", "steps = 2")
    (place / "x.toml").write_text(recipe)
    return place


@pytest.mark.parametrize(
    "command",
    [
        ["prepare", "--source", "a.en", "--target", "a.de", "--vocab-size", "60", "--out", "data"],
        ["train", "x.toml", "--out", "new"],
        ["translate", "run", "a.en", "--engine", "torch", "--workers", "1"],  # processes exchange pickles by pipes
        ["export", "run", "--to", "hf", "--out", "hf"],
        ["export", "run", "--to", "ctranslate2", "--out", "ct2"],
        ["inspect", "run", "I like the green cat."],
        ["score", "a.en", "--ref", "a.de"],
    ],
    ids=lambda command: " ".join(command[:1] + command[3:4]),
)
def test_commands_open_no_socket_and_load_no_pickle(forked, place, tmp_path, command):
    assert events_of(forked, place, tmp_path, command) == []


def test_processes_that_train_together_use_no_socket_of_python(forked, place, tmp_path):
    """They are started by multiprocessing, and gloo connects them over the loopback interface.

    Here they are forks, which record their events too.
    """
    command = ["train", "x.toml", "--out", "two", *TWO_PROCESSES, *sets("train.steps=1")]
    names = {event for event, *_ in events_of(forked, place, tmp_path, command, {"NMT_TEST_FORK": "1"})}
    assert not {name for name in names if not name.startswith("pickle.")}


def events_of(
    forked, place: Path, tmp_path: Path, command: list[str], environment: dict[str, str] | None = None
) -> list[list[str]]:
    if forked is None:
        pytest.skip("no fork on this system")
    streams = [tmp_path / name for name in ("stdin", "stdout", "stderr")]
    for stream in streams:
        stream.touch()
    record = tmp_path / "events"
    environment = {**os.environ, "NMT_TEST_AUDIT": str(record), **(environment or {})}
    code = forked.run(command, place, environment, streams, timeout=600)
    assert code == 0, streams[2].read_text()
    return audit.events(record)
