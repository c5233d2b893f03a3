"""Streams, limits and dead processes: each command is a real process with the pipes of a shell."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from support.checks import Result

from torture.bench import PATIENCE, Bench, Case, Failure, judge
from torture.mutants import TEXT

REPEATS = 20  # of each scene
LINES = TEXT * 10
NMT = (sys.executable, "-m", "nmt_cli")
ENGINES = ("ctranslate2", "torch")


def translate(engine: str, workers: int = 1) -> tuple[str, ...]:
    return (*NMT, "translate", "one/run", "--engine", engine, "--workers", str(workers))


class Streams:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.known: dict[str, bytes] = {}

    def expected(self, engine: str) -> bytes:
        if engine not in self.known:
            self.known[engine] = self.run(translate(engine), LINES).out
        return self.known[engine]

    def start(self, command: tuple[str, ...], **options: object) -> subprocess.Popen:
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(command, cwd=self.bench.place, start_new_session=True, **{**streams, **options})

    def run(self, command: tuple[str, ...], stdin: bytes, **options: object) -> Result:
        return self.finish(self.start(command, **options), stdin)

    def finish(self, process: subprocess.Popen, stdin: bytes | None = None) -> Result:
        try:
            out, err = process.communicate(stdin, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise Failure("hung") from None
        return Result(process.returncode, out or b"", (err or b"").decode(errors="replace"))

    def scene(self, play: Callable[[str, random.Random], str], engine: str, chance: random.Random) -> str:
        self.bench.fresh("one")
        self.expected(engine)
        return play(engine, chance)

    def dribbling_writer(self, engine: str, chance: random.Random) -> str:
        """The input comes in small parts, with pauses."""
        process = self.start(translate(engine))
        assert process.stdin is not None
        done = 0
        while done < len(TEXT):
            more = chance.randrange(1, 12)
            process.stdin.write(TEXT[done : done + more])
            process.stdin.flush()
            done += more
            time.sleep(chance.random() * 0.02)
        result = self.finish(process)
        return judge(result, result.out == self.expected(engine)[: len(result.out)] and result.out.count(b"\n") == 3)

    def stalled_reader(self, engine: str, chance: random.Random) -> str:
        """The reader of the output waits for a while, with a pipe that is full."""
        process = self.start(translate(engine), bufsize=0)
        assert process.stdin is not None and process.stdout is not None
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        writer = os.fork()
        if not writer:
            with contextlib.suppress(OSError):
                for _ in range(10):
                    process.stdin.write(LINES)
            os._exit(0)
        process.stdin.close()
        process.stdin = None
        first = process.stdout.read(chance.randrange(1, 50))
        time.sleep(chance.uniform(0, 2))
        result = self.finish(process)
        os.waitpid(writer, 0)
        return judge(result, first + result.out == self.expected(engine) * 10)

    def reader_that_leaves(self, engine: str, chance: random.Random) -> str:
        """As `| head -1` does: no message, and the code of a closed pipe."""
        process = self.start(translate(engine))
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(LINES)
            process.stdin.flush()
        process.stdout.read(1) if chance.random() < 0.7 else None
        process.stdout.close()
        process.stdout = None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(LINES)
        result = self.finish(process)
        if "error" in result.err or result.code not in (0, 141):
            raise Failure(f"exit code {result.code}: {result.err[-300:]}")
        return "right"

    def dead_worker(self, engine: str, chance: random.Random) -> str:
        """One of two worker processes of the torch engine is killed."""
        process = self.start(translate("torch", 2))
        assert process.stdin is not None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + PATIENCE
        process.stdin.write(LINES)
        process.stdin.flush()
        born: list[int] = []
        while process.poll() is None and not born and time.monotonic() < deadline:
            born = [int(child) for child in children.read_text().split()] if children.exists() else []
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 3))
        for child in born[-1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        result = self.finish(process, LINES * 5)
        return judge(result, result.out == self.expected("torch") * 6)

    def closed_descriptors(self, engine: str, chance: random.Random) -> str:
        closed = [number for number in range(3) if chance.random() < 0.5] or [1]
        shell = " ".join(f"{number}{'<' if not number else '>'}&-" for number in closed)
        command = ("bash", "-c", f'"$@" {shell}', "bash", *translate(engine))
        result = self.run(command, LINES)
        if 2 in closed:
            return self._without_message(result, 1 not in closed, engine, 0 in closed)
        if 1 in closed:
            return judge(result, 0 in closed)  # without input there is nothing to write
        return judge(result, result.out == (b"" if 0 in closed else self.expected(engine)))

    def _without_message(self, result: Result, can_write: bool, engine: str, is_empty: bool) -> str:
        """Standard error is closed or full, so only the exit code and the output tell."""
        right = result.out == (b"" if is_empty else self.expected(engine))
        if result.code == 0 and (can_write or is_empty) and right:
            return "right"
        if result.code in (1, 141) and not can_write:
            return "refused"
        raise Failure(f"exit code {result.code}, {len(result.out)} bytes: {result.err[-300:]}")

    def full_disk(self, engine: str, chance: random.Random) -> str:
        """/dev/full as standard output, standard error or both."""
        full = chance.choice([(1,), (2,), (1, 2)])
        shell = " ".join(f"{number}>/dev/full" for number in full)
        result = self.run(("bash", "-c", f'"$@" {shell}', "bash", *translate(engine)), LINES)
        if 2 in full:
            return self._without_message(result, 1 not in full, engine, False)
        return judge(result, False)

    def little_memory(self, engine: str, chance: random.Random) -> str:
        """ulimit -v: a right result, or an error. C++ libraries may abort; they print why."""
        megabytes = chance.randrange(100, 4000 if engine == "torch" else 1500)
        limit = partial(resource.setrlimit, resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
        result = self.run(translate(engine), LINES, preexec_fn=limit)
        if result.code and (b"\n" not in result.out or self.expected(engine).startswith(result.out)):
            return "refused"  # the import of a library may fail in any way
        return judge(result, result.out == self.expected(engine))

    def few_files(self, engine: str, chance: random.Random) -> str:
        """ulimit -n."""
        number = chance.randrange(3, 64)
        limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (number, number))
        result = self.run(translate(engine), LINES, preexec_fn=limit)
        if result.code and number < 16 and not result.out:
            return "refused"  # Python itself does not start
        return judge(result, result.out == self.expected(engine))

    def small_files(self, engine: str, chance: random.Random) -> str:
        """ulimit -f, with --out: the file is whole or not there."""
        size = chance.randrange(0, 2 * len(self.expected(engine)))
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
        result = self.run((*translate(engine), "--out", "out.txt"), LINES, preexec_fn=limit)
        out = self.bench.place / "out.txt"
        if out.exists() and out.read_bytes() != self.expected(engine):
            raise Failure("half-written")
        left = [path.name for path in self.bench.place.iterdir() if path.name.startswith(".out.txt")]
        if result.code >= 0 and left:
            raise Failure(f"litter: {left}")
        return judge(result, out.exists())

    def signals(self, engine: str, chance: random.Random) -> str:
        """Ctrl-C or SIGTERM at a random moment, with --out: no traceback, and the file is whole or not there."""
        process = self.start((*translate(engine), "--out", "out.txt"))
        assert process.stdin is not None
        process.stdin.write(LINES * 10)
        process.stdin.flush()
        time.sleep(chance.uniform(0, 4))
        number = chance.choice([signal.SIGINT, signal.SIGTERM])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        result = self.finish(process, LINES)
        out = self.bench.place / "out.txt"
        if "Traceback" in result.err or (out.exists() and out.read_bytes() != self.expected(engine) * 11):
            raise Failure(f"exit code {result.code}: {result.err[-600:]}")
        if result.code not in (0, 128 + number, -number):
            raise Failure(f"exit code {result.code}: {result.err[-300:]}")
        return "right"


def cases(bench: Bench) -> Iterator[Case]:
    streams = Streams(bench)
    scenes = (
        streams.dribbling_writer, streams.stalled_reader, streams.reader_that_leaves, streams.dead_worker,
        streams.closed_descriptors, streams.full_disk, streams.little_memory, streams.few_files, streams.small_files,
        streams.signals,
    )  # fmt: skip
    for play in scenes:
        for number in range(REPEATS):
            engine = ENGINES[number % 2]
            yield Case("streams", f"{play.__name__}, {engine} {number}", partial(streams.scene, play, engine))


def torchrun_cases(bench: Bench) -> Iterator[Case]:
    """The tests with the mark `torture`."""
    tests = Path(__file__).parent.parent
    files = [
        tests / name for name in ("training/test_processes.py", "training/test_nodes.py", "translate/test_machines.py")
    ]

    def run(name: str, chance: random.Random) -> str:
        command = (
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "torture",
            *map(str, files),
            "-k",
            name,
        )
        done = subprocess.run(command, cwd=tests.parent, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failure(done.stdout[-2000:])
        return "right"

    for name in (
        "two_processes_give_the_weights_of_one",
        "torchrun_restarts_a_killed_worker",
        "test_nodes",
        "machines",
    ):
        yield Case("torchrun", name, partial(run, name))
