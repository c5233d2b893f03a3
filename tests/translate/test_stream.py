"""Slow and endless input, pipes, signals and terminals."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.checks import Result, is_running, wait_until
from support.small_language import ENGINES, SENTENCES, text_of

from nmt_cli.translate import stream
from nmt_cli.translate.stream import overlapped, windows


@pytest.mark.parametrize("engine", ENGINES)
def test_line_is_answered_before_the_end_of_input(start_nmt, model, engine):
    running = start_nmt("translate", model, "--engine", engine, pipes=True)
    for sentence in SENTENCES[:3]:
        running.stdin.write(sentence.encode() + b"\n")
        assert running.read_line().endswith(b"\n")
    running.stdin.close()
    assert running.wait() == Result(0, b"", "")


def resident_mb(process: int) -> float:
    (line,) = (line for line in Path(f"/proc/{process}/status").read_text().splitlines() if "VmRSS" in line)
    return int(line.split()[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(("engine", "some", "many"), [("ctranslate2", 3000, 6000), ("torch", 600, 1200)])
def test_memory_is_bounded_on_endless_input(start_nmt, model, engine, some, many):
    """Neither unread output nor fast input may fill the memory: `yes` is a thousand times faster than the model."""
    running = start_nmt("translate", model, "--beam", "1", "--engine", engine, pipes=True)
    with subprocess.Popen(["yes", "the cat sees the dog."], stdout=running.stdin) as endless:
        running.stdin.close()
        running.skip_lines(some)
        after_some = resident_mb(running.process)
        time.sleep(2)  # time for `yes` to write gigabytes
        after_a_rest = resident_mb(running.process)
        running.skip_lines(many)
        after_many = resident_mb(running.process)
        running.send_signal(signal.SIGKILL)
        running.wait()
        endless.kill()
    assert max(after_a_rest, after_many) < after_some + 60


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_worker_processes_end_with_the_command(start_nmt, model, number):
    """A worker that lived on would keep the output pipe open."""
    running = start_nmt("translate", model, "--engine", "torch", "--workers", "2", pipes=True)
    running.stdin.write(b"the cat.\n")
    assert running.read_line()
    workers = running.children()
    assert len(workers) >= 2 or not Path("/proc/self/task").exists()
    running.send_signal(number)
    assert running.wait().out == b""
    wait_until(lambda: not any(map(is_running, workers)))


def test_closed_output_pipe_is_no_error(model):
    nmt = f"{sys.executable} -m nmt_cli translate {model} --beam 1"
    script = f"yes 'the cat.' | {nmt} | head -300 | sort -u | wc -l; echo ${{PIPESTATUS[@]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert done.stderr == "" and done.stdout.split()[0] == "1"
    assert done.stdout.split()[2] in ("0", "141")


def test_windows_grow_and_keep_all_rows():
    rows = list(range(20_000))
    blocks = [rows[n : n + 3000] for n in range(0, len(rows), 3000)]
    cut = list(windows(blocks, lambda row: 1))
    assert [row for window in cut for row in window] == rows
    assert len(cut[0]) <= 64 and max(map(len, cut)) <= 4096 and len(cut) < 20


def test_windows_are_limited_by_characters():
    """This bounds memory for input with long lines. One row may be longer than the limit."""
    random_ = random.Random(1)
    rows = [random_.choice((10, 50_000, 300_000, 2_000_000)) for _ in range(500)]
    cut = list(windows([rows[:300], rows[300:]], lambda row: row))
    assert [row for window in cut for row in window] == rows
    assert all(len(window) == 1 or sum(window) <= 1 << 19 for window in cut) and max(map(len, cut)) > 1


def test_slow_rows_are_not_held_back_and_errors_come_last():
    received = threading.Event()

    def slow():
        for n in range(3):
            yield [n]
            assert received.wait(300), "the row was held back"
            received.clear()
        raise ValueError("broken")

    seen = []
    with pytest.raises(ValueError, match="broken"):
        for window in windows(slow(), lambda row: 1):
            seen.append(window)
            received.set()
    assert seen == [[0], [1], [2]]


def test_rows_before_an_error_are_yielded_first():
    def broken():
        yield [0, 1]
        raise ValueError("broken")

    seen = []
    with pytest.raises(ValueError, match="broken"):
        for result in overlapped(lambda window: window, windows(broken(), lambda row: 1)):
            seen += result
    assert seen == [0, 1]


def test_rows_of_a_burst_share_a_window(monkeypatch):
    """A row waits for more rows from the time when it came, not from the time when the last window left."""
    monkeypatch.setattr(stream, "MAX_WAIT", 1.0)
    received = threading.Event()

    def bursts():
        for burst in range(2):
            for n in range(3):
                yield [(burst, n)]
            assert received.wait(300)
            received.clear()

    sizes = []
    for window in windows(bursts(), lambda row: 1):
        sizes.append(len(window))
        received.set()
    assert sizes == [3, 3]


def test_windows_overlap_and_keep_their_order():
    """Two jobs run at once: each waits at the barrier for another."""
    both, running, most = threading.Barrier(2, timeout=300), [], []

    def job(window):
        running.append(window)
        both.wait()
        most.append(len(running))
        running.remove(window)
        return [2 * row for row in window]

    assert list(overlapped(job, iter([[n] for n in range(12)]))) == [[2 * n] for n in range(12)]
    assert max(most) <= 2


def test_error_of_a_job_is_raised():
    with pytest.raises(ZeroDivisionError):
        list(overlapped(lambda window: 1 / window[0], iter([[1], [0]])))


def test_full_disk_is_an_error(model):
    script = f"echo 'the cat.' | {sys.executable} -m nmt_cli translate {model} > /dev/full"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "the disk is full" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_is_quiet(start_nmt, model, engine):
    running = start_nmt("translate", model, "--engine", engine, pipes=True)
    running.stdin.write(text_of(SENTENCES))
    assert running.read_line()
    running.send_signal(signal.SIGINT)
    result = running.wait()
    assert result.code == 130 and result.err == ""


def test_ctranslate2_engine_starts_without_torch(model, tmp_path):
    script = (
        "import sys; sys.argv = ['nmt', 'translate', sys.argv[1]]\n"
        "from nmt_cli.cli import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, 'ctranslate2' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script, model], input=b"the cat.\n", capture_output=True)
    assert done.returncode == 0 and done.stderr.strip() == b"False True", done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("engine", ENGINES)
def test_signal_removes_the_unfinished_file(start_nmt, model, tmp_path, engine, number):
    running = start_nmt("translate", model, "--engine", engine, "--out", "out.fr", pipes=True)
    running.stdin.write(b"the cat.\n")
    wait_until(lambda: any(path.stat().st_size for path in tmp_path.iterdir()))  # the first line is in the file
    running.send_signal(number)
    result = running.wait()
    # A process that Python ends by the signal itself has the negative code; a shell shows both as 128 + number.
    assert result.code in (128 + number, -number) and "Traceback" not in result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_named_pipe_is_answered_line_by_line(start_nmt, model, tmp_path, suffix):
    import zstandard

    def packed(text: bytes) -> bytes:
        return {"": lambda t: t, ".gz": gzip.compress, ".zst": zstandard.compress}[suffix](text)

    pipe = tmp_path / f"pipe{suffix}"
    os.mkfifo(pipe)
    running = start_nmt("translate", model, pipe, pipes=True)
    with pipe.open("wb", buffering=0) as feed:
        for _ in range(2):
            feed.write(packed(b"the cat.\n"))
            assert running.read_line().strip()
    assert running.wait().code == 0


def test_process_substitution_is_read_once(nmt, model):
    lines = "".join(line + "\n" for line in SENTENCES[:3])
    expected = nmt("translate", model, stdin=lines.encode()).text
    script = f"{sys.executable} -m nmt_cli translate {model} <(printf '%s' \"$1\")"
    done = subprocess.run(["bash", "-c", script, "bash", lines], capture_output=True, text=True, check=False)
    assert done.stdout == expected and expected.count("\n") == 3
    script += " --shard 1/2"
    done = subprocess.run(["bash", "-c", script, "bash", lines], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "--shard needs a file" in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_closed_standard_streams_give_no_traceback(model, closed):
    script = f"echo 'the cat.' | {sys.executable} -m nmt_cli translate {model} {closed}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr and (done.returncode == 0 or closed != "2>&-")
    if closed == ">&-":
        assert done.returncode == 1 and "standard output is closed" in done.stderr
