"""What tests share: the real command in a process of its own, and a way to write small files."""

from __future__ import annotations

import os

# One thread per process: the tests run on all cores already, and threads that wait for each other burn them.
os.environ["OMP_NUM_THREADS"] = "1"

import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.checks import Result
from support.forked import Forked
from support.running import Piped, Running
from support.small_language import sentences
from support.toy_corpus import corpus
from support.toy_runs import RECIPE

# A shell starts background jobs with SIGINT ignored, and child processes inherit that: Ctrl-C tests would wait forever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def forked():
    """Where there is a fork; None elsewhere."""
    server = Forked() if hasattr(os, "fork") else None
    yield server
    if server is not None:
        server.close()


@pytest.fixture(scope="session")
def nmt_in(forked, tmp_path_factory):
    """nmt_in(folder, "prepare", "x.toml", stdin=b"...") runs the command there."""
    folder = tmp_path_factory.mktemp("streams")

    def run(cwd: Path, *args: object, stdin: bytes = b"", env: dict[str, str] | None = None) -> Result:
        words, environment = list(map(str, args)), {**os.environ, "COLUMNS": "100", **(env or {})}
        # Python and its C library read some variables when they start; cli.py reads the width when it is imported.
        at_start = any(name.startswith(("PYTHON", "LC_")) for name in env or {}) or int(environment["COLUMNS"]) < 80
        if forked is None or at_start:
            command = [sys.executable, "-m", "nmt_cli", *words]
            done = subprocess.run(command, input=stdin, capture_output=True, cwd=cwd, env=environment, timeout=600)
            return Result(done.returncode, done.stdout, done.stderr.decode())
        streams = [folder / name for name in ("stdin", "stdout", "stderr")]
        for stream, content in zip(streams, (stdin, b"", b""), strict=True):
            stream.write_bytes(content)
        code = forked.run(words, cwd, environment | {"NMT_TEST_FORK": "1"}, streams, timeout=600)
        return Result(code, streams[1].read_bytes(), streams[2].read_text())

    return run


@pytest.fixture
def nmt(nmt_in, tmp_path):
    """nmt("prepare", "x.toml", stdin=b"...") runs the command in tmp_path."""
    return partial(nmt_in, tmp_path)


@pytest.fixture(scope="session")
def in_a_fork(nmt_in, tmp_path_factory):
    """in_a_fork(function) is the result of a function without arguments, at the top level of its module.

    The process of the function is a fork of the server, which has torch and no threads. A fork of the process of the
    tests, where torch has threads, may wait forever.
    """
    if not hasattr(os, "fork"):
        pytest.skip("no fork on this system")

    def call(function: Callable[[], Any]) -> Any:
        folder = tmp_path_factory.mktemp(function.__name__)
        code = f"""
import pickle, runpy, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
function = runpy.run_path({function.__code__.co_filename!r})[{function.__name__!r}]
Path("result").write_bytes(pickle.dumps(function()))
sys.exit()
"""
        result = nmt_in(folder, env={"NMT_TEST_CODE": code})
        assert result.code == 0, result.err
        return pickle.loads((folder / "result").read_bytes())

    return call


@pytest.fixture
def start_nmt(forked, tmp_path, tmp_path_factory):
    """start_nmt("train", "x.toml") starts the command in tmp_path. The test sends signals and waits for the end.

    With pipes=True the test writes to the command and reads from it while it runs.
    """
    if forked is None:
        pytest.skip("no fork on this system")
    started: list[Running] = []
    folder = tmp_path_factory.mktemp("started")

    def start(*args: object, env: dict[str, str] | None = None, pipes: bool = False) -> Running:
        streams = [folder / f"{len(started)}.{name}" for name in ("stdin", "stdout", "stderr")]
        for stream in streams:
            os.mkfifo(stream) if pipes else stream.touch()
        environment = {**os.environ, "COLUMNS": "100", **(env or {})}
        process = forked.start(list(map(str, args)), tmp_path, environment, streams)
        started.append(Piped(forked, process, streams) if pipes else Running(forked, process, streams))
        return started[-1]

    yield start
    for running in started:
        if running.process in forked.running:  # the test has failed
            running.send_signal_to_group(signal.SIGKILL)
            running.wait()


@pytest.fixture
def write(tmp_path):
    """write("a.en", b"one\\n") or text; returns the path."""

    def save(name: str, content: bytes | str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return save


@pytest.fixture(scope="session")
def prepared(nmt_in, tmp_path_factory) -> Path:
    """A folder with the toy corpus, and its prepared data in data/."""
    folder = tmp_path_factory.mktemp("toy")
    for name, lines, first in (("a", 400, 1000), ("v", 20, 5000)):
        for side, text in zip(("en", "de"), corpus(lines, first), strict=True):
            (folder / f"{name}.{side}").write_text(text)
    (folder / "x").mkdir()
    (folder / "x/x.toml").write_text(RECIPE)
    assert nmt_in(folder, "prepare", "x/x.toml").code == 0
    return folder


@pytest.fixture
def toy(prepared, write) -> Path:
    """A recipe on the prepared toy corpus. Its run is tmp_path/runs/toy."""
    return write("toy.toml", RECIPE.replace("../", f"{prepared}/"))


@pytest.fixture(scope="session")
def model(nmt_in, tmp_path_factory) -> Path:
    """A run that masters a small language, and has met the characters of a larger one; exported, as every run is.

    The processes of pytest-xdist share it: the first trains, the others wait.
    """
    pytest.importorskip("ctranslate2")
    fcntl = pytest.importorskip("fcntl")
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "small-language"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "run/model/ctranslate2/model.bin").exists():
            train_small_language(nmt_in, folder)
    assert (folder / "run/model/ctranslate2/model.bin").exists()
    return folder / "run"


def train_small_language(nmt_in, folder: Path) -> None:
    from nmt_cli.demo import demo_corpus

    pairs = [*sentences(4000, seed=1), *demo_corpus("train")[:200]]
    for side, language in enumerate(("en", "fr")):
        (folder / f"a.{language}").write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    sets = ["model.dim=64", "model.heads=2", "model.ff=128", "model.encoder_layers=1", "model.decoder_layers=2"]
    sets += ["model.dropout=0.0", "train.batch_tokens=512", "train.warmup=30", "train.lr=2e-2", "train.steps=400"]
    sets += ["train.optimizer=muon", "train.schedule=linear", "train.precision=fp32"]
    sets += ["train.valid_every=400", "train.valid_lines=20"]
    options = [part for one in sets for part in ("--set", one)]
    files = ("--source", "a.en", "--target", "a.fr", "--vocab-size", "600", "--out", "data")
    for args in (("prepare", *files), ("train", "data", "--out", "run", *options)):
        result = nmt_in(folder, *args)
        assert result.code == 0, result.err


@pytest.fixture(scope="session")
def trained(model):
    from nmt_cli.store.checkpoint import load_model

    return load_model(model)


@pytest.fixture
def browser():
    """Chromium, driven by Playwright. Playwright's own download of a browser is not needed."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip(f"no browser is installed: none of {', '.join(names)}")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, timeout=180_000)
        yield chromium
        chromium.close()
