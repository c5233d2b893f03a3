"""Slow and endless input, pipes, signals and terminals."""

from __future__ import annotations

import gzip
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.checks import assert_children_die, read_line
from support.small_language import ENGINES, SENTENCES, text_of

from nmt_cli.translate.stream import overlapped, windows


@pytest.mark.parametrize("engine", ENGINES)
def test_a_line_is_answered_before_the_end_of_input(model, engine):
    command = [sys.executable, "-m", "nmt_cli", "translate", str(model), "--engine", engine]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for sentence in SENTENCES[:3]:
        process.stdin.write(sentence.encode() + b"\n")
        process.stdin.flush()
        assert read_line(process, 60).endswith(b"\n")
    process.stdin.close()
    assert process.wait(30) == 0
    assert process.stdout.read() == b"" and b"Traceback" not in process.stderr.read()


def resident_mb(process: subprocess.Popen) -> float:
    (line,) = (line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmRSS" in line)
    return int(line.split()[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(("engine", "some", "many"), [("ctranslate2", 5000, 15_000), ("torch", 1000, 2000)])
def test_memory_is_bounded_on_endless_input(model, engine, some, many):
    """`yes` is a thousand times faster than we are, and then nobody reads: neither side may pile up."""
    with subprocess.Popen(["yes", "the cat sees the dog."], stdout=subprocess.PIPE) as endless:
        command = [sys.executable, "-m", "nmt_cli", "translate", str(model), "--beam", "1", "--engine", engine]
        process = subprocess.Popen(command, stdin=endless.stdout, stdout=subprocess.PIPE)
        for _ in range(some):
            assert read_line(process, 60)
        after_some = resident_mb(process)
        time.sleep(3)  # in which `yes` would write gigabytes
        after_a_rest = resident_mb(process)
        for _ in range(many):
            assert read_line(process, 60)
        after_many = resident_mb(process)
        process.kill()
        endless.kill()
    assert max(after_a_rest, after_many) < after_some + 60


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_command(model, number):
    """Or whoever reads the output would wait for its end for ever."""
    command = [sys.executable, "-m", "nmt_cli", "translate", str(model), "--engine", "torch", "--workers", "2"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(b"the cat.\n")
    process.stdin.flush()
    assert read_line(process, 60)
    assert_children_die(process, 0, number)
    assert process.stdout.read() == b""


def test_a_reader_that_leaves_is_no_error(model):
    nmt = f"{sys.executable} -m nmt_cli translate {model} --beam 1"
    script = f"yes 'the cat.' | {nmt} | head -3000 | sort -u | wc -l; echo ${{PIPESTATUS[@]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert done.stderr == "" and done.stdout.split()[0] == "1"
    assert done.stdout.split()[2] in ("0", "141")


def test_windows_grow_and_lose_nothing():
    rows = list(range(20_000))
    blocks = [rows[n : n + 3000] for n in range(0, len(rows), 3000)]
    cut = list(windows(blocks, lambda row: 1))
    assert [row for window in cut for row in window] == rows
    assert len(cut[0]) <= 64 and max(map(len, cut)) <= 4096 and len(cut) < 20


def test_windows_of_whole_documents_are_short():
    """Bounded memory: by characters, whatever the number of rows; one row is a window, however long."""
    random_ = random.Random(1)
    rows = [random_.choice((10, 50_000, 300_000, 2_000_000)) for _ in range(500)]
    cut = list(windows([rows[:300], rows[300:]], lambda row: row))
    assert [row for window in cut for row in window] == rows
    assert all(len(window) == 1 or sum(window) <= 1 << 19 for window in cut) and max(map(len, cut)) > 1


def test_windows_do_not_wait_and_pass_errors_on():
    def slow():
        for n in range(3):
            yield [n]
            time.sleep(0.2)
        raise ValueError("broken")

    seen = []
    with pytest.raises(ValueError, match="broken"):
        for window in windows(slow(), lambda row: 1):
            seen.append(window)
    assert seen == [[0], [1], [2]]


def test_a_line_waits_for_company_after_a_rest():
    """From when it came, not from when the last one left; and windows grow only while they are full."""

    def bursts():
        for burst in range(3):
            time.sleep(0.3)
            for n in range(3):
                yield [(burst, n)]

    assert [len(window) for window in windows(bursts(), lambda row: 1)] == [3, 3, 3]


def test_windows_overlap_and_keep_their_order():
    running, most = [], []

    def job(window):
        running.append(window)
        most.append(len(running))
        time.sleep(0.02 * (window[0] % 3))
        running.remove(window)
        return [2 * row for row in window]

    assert list(overlapped(job, iter([[n] for n in range(12)]))) == [[2 * n] for n in range(12)]
    assert 2 <= max(most) <= 3


def test_what_fails_in_a_window_is_raised():
    with pytest.raises(ZeroDivisionError):
        list(overlapped(lambda window: 1 / window[0], iter([[1], [0]])))


def test_a_full_disk_is_an_error(model):
    script = f"echo 'the cat.' | {sys.executable} -m nmt_cli translate {model} > /dev/full"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "the disk is full" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_is_quiet(model, engine):
    command = [sys.executable, "-m", "nmt_cli", "translate", str(model), "--engine", engine]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(text_of(SENTENCES))
    process.stdin.flush()
    assert read_line(process, 60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and err == b""


def test_the_fast_engine_starts_without_torch(model, tmp_path):
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
def test_a_signal_leaves_nothing_behind(model, tmp_path, engine, number):
    command = [sys.executable, "-m", "nmt_cli", "translate", str(model), "--engine", engine, "--out", "out.fr"]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b"the cat.\n")
    process.stdin.flush()
    deadline = time.monotonic() + 60
    while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(1)
    process.send_signal(number)
    assert process.wait(30) == 128 + number and b"Traceback" not in process.stderr.read()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_named_pipe_is_answered_line_by_line(model, tmp_path, suffix):
    import zstandard

    def packed(text: bytes) -> bytes:
        return {"": lambda t: t, ".gz": gzip.compress, ".zst": zstandard.compress}[suffix](text)

    pipe = tmp_path / f"pipe{suffix}"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "nmt_cli", "translate", str(model), str(pipe)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process, pipe.open("wb", buffering=0) as feed:
        for _ in range(2):
            feed.write(packed(b"the cat.\n"))
            assert select.select([process.stdout], [], [], 60)[0], "no answer before the end of input"
            assert process.stdout.readline().strip()
        feed.close()
        assert process.wait(60) == 0


def test_a_pipe_may_be_named_like_a_file(nmt, model):
    lines = "".join(line + "\n" for line in SENTENCES[:3])
    expected = nmt("translate", model, stdin=lines.encode()).text
    script = f"{sys.executable} -m nmt_cli translate {model} <(printf '%s' \"$1\")"
    done = subprocess.run(["bash", "-c", script, "bash", lines], capture_output=True, text=True, check=False)
    assert done.stdout == expected and expected.count("\n") == 3
    script += " --shard 1/2"
    done = subprocess.run(["bash", "-c", script, "bash", lines], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "--shard needs a file" in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_closed_descriptors(model, closed):
    script = f"echo 'the cat.' | {sys.executable} -m nmt_cli translate {model} {closed}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr and (done.returncode == 0 or closed != "2>&-")
    if closed == ">&-":
        assert done.returncode == 1 and "standard output is closed" in done.stderr
