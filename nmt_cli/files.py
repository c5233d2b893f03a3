"""Files that are there whole or not at all, whatever kills the process: write aside, flush to disk, rename."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from nmt_cli.errors import NmtError

_ASIDE = ".{name}.tmp-"  # the process's number follows
_OLD = ".{name}.old"


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty folder beside `folder`, and puts it in its place at the end; an error removes it.

    What stood there before is replaced, so ask first. A kill leaves the old one, the new one or neither, never a mix.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    aside = folder.with_name(_ASIDE.format(name=folder.name) + str(os.getpid()))
    aside.mkdir()
    try:
        yield aside
        for path in sorted(aside.rglob("*")):
            sync(path)
        sync(aside)
        old = folder.with_name(_OLD.format(name=folder.name))
        if folder.exists():
            folder.rename(old)
        aside.rename(folder)
        sync(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


@contextmanager
def new_file(path: Path) -> Iterator[IO[str]]:
    """Yields a text file that takes its place at the end; an error removes it. A reader sees the old one or the new."""
    if path.is_dir():
        raise NmtError(f"{path} is a folder", "name a file")
    aside = path.with_name(_ASIDE.format(name=path.name) + str(os.getpid()))
    try:
        with aside.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
        sync(aside)
        aside.rename(path)
        sync(path.parent)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def replace_file(path: Path, text: str) -> None:
    with new_file(path) as stream:
        stream.write(text)


@contextmanager
def exclusive(path: Path, other: str) -> Iterator[None]:
    """Hold a lock file, so that two processes do not write the same folder; the kernel lets go when one is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NmtError(f"{other} is at work in {path.parent}", "wait for it, or choose another folder") from None
        except (ImportError, OSError):  # Windows, and network disks without locks
            pass
        yield


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    with suppress(PermissionError):  # Windows cannot open folders, and does not need to
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove_leftovers(folder: Path) -> None:
    """What a killed process left: its half-written folder, or the old one in the instant between two renames."""
    old = folder.with_name(_OLD.format(name=folder.name))
    if old.exists():
        if folder.exists():
            shutil.rmtree(old)
        else:
            old.rename(folder)
    for path in folder.parent.glob(_ASIDE.format(name=folder.name) + "*"):
        number = path.name.rpartition("-")[2]
        # One's own number: in a container a restarted process has that of the one that was killed.
        if number.isdigit() and (int(number) == os.getpid() or not _alive(int(number))):
            shutil.rmtree(path, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for data in iter(lambda: stream.read(1 << 20), b""):
            digest.update(data)
    return digest.hexdigest()


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A JSON file that this toolkit wrote; `what` names it in the message if it is damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise NmtError(f"{what} {path} cannot be read: {error}", "it was not written by nmt, or is damaged") from None
    if not isinstance(value, dict):
        raise NmtError(f"{what} {path} is not a table", "it was not written by nmt, or is damaged")
    return value
