"""`nmt` in a process of its own, forked from a server that has imported everything already: that saves four seconds.

    python tests/support/forked.py < requests > answers

A request is a line of JSON. "start" forks a command and answers with its process id: args, cwd, env, and the files that
are its stdin, stdout and stderr. "wait" waits for a process id and answers with the exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from pathlib import Path


class Forked:
    """The client: it starts the server and sends one command after the other."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self.running: set[int] = set()

    def run(self, args: list[str], cwd: Path, env: dict[str, str], streams: list[Path], timeout: float) -> int:
        """The exit code of a command."""
        return self.wait(self.start(args, cwd, env, streams), timeout)

    def start(self, args: list[str], cwd: Path, env: dict[str, str], streams: list[Path]) -> int:
        """Start a command, the leader of a process group of its own, and return its process id."""
        start = {"args": args, "cwd": str(cwd), "env": env, "streams": list(map(str, streams))}
        process = self._ask({"start": start}, 600)
        self.running.add(process)
        return process

    def wait(self, process: int, timeout: float) -> int:
        code = self._ask({"wait": process}, timeout)
        self.running.remove(process)
        return code

    def _ask(self, request: dict, timeout: float) -> int:
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(request).encode() + b"\n")
        self.server.stdin.flush()
        if not select.select([self.server.stdout], [], [], timeout)[0]:
            self.close()
            raise TimeoutError(f"no answer in {timeout} s: {request}")
        return int(self.server.stdout.readline())

    def close(self) -> None:
        for leader in (*self.running, self.server.pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)
        self.server.wait()


def obey_file_modes() -> None:
    """Make root obey the modes of its own files, as other users do: drop CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
    if sys.platform == "linux" and os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        header, capabilities = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert libc.capget(header, capabilities) == 0
        capabilities[0] &= ~0b110  # effective
        capabilities[1] &= ~0b110  # permitted
        assert libc.capset(header, capabilities) == 0


def warm_up() -> None:
    """Do once what each command would do again: import, build the commands, read a word list, measure the processor."""
    for module in (
        *("data.prepare", "inspect.description", "inspect.draw", "scoring.metrics", "search.torch_engine"),
        *("store.verify", "training.screen", "training.session", "translate.translator", "scoring.draw", "ladder"),
    ):
        importlib.import_module(f"nmt_cli.{module}")
    # torch's optimizers import torch._dynamo, which takes more than a second.
    for library in (
        *("ctranslate2.specs", "sacrebleu.metrics", "sacrebleu.significance", "sentencex", "tomli_w"),
        *("encodings.utf_8_sig", "torch._dynamo"),
    ):
        with contextlib.suppress(ImportError):  # ctranslate2 is not on every platform
            importlib.import_module(library)

    import torch
    from typer.main import get_command

    from nmt_cli import cli
    from nmt_cli.model import linear
    from nmt_cli.text.spelling import general_words
    from nmt_cli.training import precision

    cli.app = get_command(cli.app)
    with contextlib.redirect_stdout(io.StringIO()):
        for words in (["recipes", "demo"], ["recipes", "--help"]):  # Typer imports its parser, and rich for the help
            cli.app(words, standalone_mode=False)
    linear.matrix_rate(torch.device("cpu"), torch.get_num_threads(), tf32=True)
    # A trial takes seconds; tests/training/test_precision.py makes one.
    precision._claimed_precision = lambda device: None
    general_words("en")
    train_and_search()
    assert threading.active_count() == 1 and (not TASKS.exists() or len(list(TASKS.iterdir())) == 1)


TASKS = Path("/proc/self/task")  # the threads of this process, also those that Python does not know


def train_and_search() -> None:
    """Make one update and one search, and read the keys of a recipe: the first of each takes longer than the next."""
    import torch

    from nmt_cli.data.batches import make_batch
    from nmt_cli.model.build import build_model
    from nmt_cli.model.device import Compute
    from nmt_cli.recipe.load import load_recipe
    from nmt_cli.recipe.schema import Train, Transformer
    from nmt_cli.search.beam import search
    from nmt_cli.search.contract import SearchOptions
    from nmt_cli.store.checkpoint import State
    from nmt_cli.training.loss import TrainingLoss
    from nmt_cli.training.step import Updater

    load_recipe(None)
    torch.manual_seed(1)
    model = build_model(Transformer(dim=8, heads=2, ff=8, encoder_layers=1, decoder_layers=1), 9, 9)
    loss = TrainingLoss(model, settings := Train()).train()
    batch = make_batch([[4, 5]], [[6, 7]])
    Updater(model, loss, settings, Compute(torch.device("cpu"), "fp32", ""), State(), print).update(
        [(batch, 1)], 3, 1e-3
    )
    search([model.eval()], torch.from_numpy(batch.src), SearchOptions(beam=2, max_length=3))


def serve() -> bool:
    """Answer requests. Return True in a forked child, which runs the command, and False at the end of the input."""
    warm_up()
    weakref.finalize._registry.clear()  # torch's finalizers would take 40 ms at the end of each child
    obey_file_modes()
    gc.freeze()  # the children's collectors skip these objects, so their memory stays shared
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            print(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]), flush=True)
            continue
        child = os.fork()
        if not child:
            request = request["start"]
            os.setpgid(0, 0)
            for number, name in enumerate(request["streams"]):
                os.dup2(os.open(name, os.O_WRONLY if number else os.O_RDONLY), number)
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)  # this one may be a terminal
            os.chdir(request["cwd"])
            os.environ.clear()
            os.environ.update(request["env"])
            sys.argv = ["nmt", *request["args"]]
            return True
        print(child, flush=True)
    return False


def start_workers_by_fork() -> None:
    """A worker process of the command is a fork, which need not import torch again."""
    get_context = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: get_context("fork")  # type: ignore[assignment]


def run_and_exit() -> None:
    """Run the command, then exit as Python does, but without freeing the modules one by one: that takes long."""
    from nmt_cli.cli import main

    code = 1
    if "NMT_TEST_FORK" in os.environ:
        start_workers_by_fork()
    if "NMT_TEST_HIDE" in os.environ:
        sys.modules[os.environ["NMT_TEST_HIDE"]] = None  # type: ignore[assignment]  # as if it were not installed
    if "NMT_TEST_FAULT" in os.environ:
        import faults

        faults.install(os.environ["NMT_TEST_FAULT"])
    if "NMT_TEST_AUDIT" in os.environ:
        import audit

        audit.install(os.environ["NMT_TEST_AUDIT"])
    try:
        # A test may change the command by code that runs here, before the command starts its workers. The process of
        # the test is not forked: torch has threads there, and a fork of a process with threads may wait forever.
        exec(os.environ.get("NMT_TEST_CODE", ""), {"__name__": "__main__"})
        main()
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # main has reported a full disk or a closed pipe already
            stream.flush()
    os._exit(code)


if __name__ == "__main__" and serve():
    run_and_exit()
