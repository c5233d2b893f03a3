"""Make the n-th operation that changes the disk fail, or kill the process there as kill -9 would.

Operations are counted where Python calls them: open for writing, write, fsync, rename, unlink, mkdir, rmdir, symlink,
and the file that safetensors writes. Errors are of three kinds:

    error   the n-th operation fails once, with an input/output error
    full    the disk is full from the n-th operation on: only fsync, rename, unlink and rmdir still work
    kill    the process ends before the n-th operation

A write that fails has written the first half of its data.
"""

from __future__ import annotations

import atexit
import builtins
import errno
import io
import os
import pathlib
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

KINDS = ("error", "full", "kill")
ALL = ("fsync", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "symlink", "sendfile")
NEED_SPACE = ("open", "write", "mkdir", "symlink", "sendfile", "save_file")


class Faults:
    """Counts operations. `number` 0: none fails."""

    def __init__(self, kind: str = "error", number: int = 0) -> None:
        self.kind, self.number = kind, number
        self.count = 0

    @property
    def happened(self) -> bool:
        return 0 < self.number <= self.count

    def next(self, operation: str, half: Callable[[], object] = lambda: None) -> None:
        """Count an operation, which may fail after `half` of it is done."""
        self.count += 1
        due = self.count == self.number or (self.kind == "full" and self.happened)
        if not due or (self.kind == "full" and operation not in NEED_SPACE):
            return
        half()
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        number = errno.ENOSPC if self.kind == "full" else errno.EIO
        raise OSError(number, os.strerror(number))

    @contextmanager
    def installed(self) -> Iterator[Faults]:
        from safetensors import SafetensorError

        from nmt_cli.store import checkpoint

        really_open, really_save = io.open, checkpoint.save_file

        def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **options: Any) -> Any:
                self.next(name)
                return function(*args, **options)

            return call

        def open_counted(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            is_written = not isinstance(file, int) and set(mode) & set("wax+") and not str(file).startswith("/dev/")
            if is_written:
                self.next("open")
            stream = really_open(file, mode, *args, **options)
            if is_written:
                really_write = stream.write

                def write(data: Any) -> int:
                    self.next("write", lambda: (really_write(data[: len(data) // 2]), stream.flush()))
                    return really_write(data)

                stream.write = write
            return stream

        def save_counted(tensors: Any, path: Path, metadata: Any = None) -> None:
            really_save(tensors, path, metadata)
            try:
                self.next("save_file", lambda: os.truncate(path, path.stat().st_size // 2))
            except OSError as error:
                raise SafetensorError(f"I/O error: {error.strerror}") from None

        with ExitStack() as stack:
            by_pathlib = getattr(pathlib, "_NormalAccessor", None)  # pathlib of Python 3.10 has its own references
            for name in ALL:
                call = counted(name, getattr(os, name))
                stack.enter_context(patch.object(os, name, call))
                if hasattr(by_pathlib, name):
                    stack.enter_context(patch.object(by_pathlib, name, staticmethod(call)))
            if by_pathlib:
                stack.enter_context(patch.object(by_pathlib, "open", staticmethod(open_counted)))
            stack.enter_context(patch.object(io, "open", open_counted))
            stack.enter_context(patch.object(builtins, "open", open_counted))
            stack.enter_context(patch.object(checkpoint, "save_file", save_counted))
            yield self


def install(request: str) -> None:
    """Install faults in this process for good: "kill 3 FILE". At the end FILE holds the number of operations."""
    kind, number, file = request.split(maxsplit=2)
    faults = Faults(kind, int(number))
    installed = faults.installed()
    installed.__enter__()

    def leave() -> None:
        installed.__exit__(None, None, None)
        Path(file).write_text(str(faults.count))

    atexit.register(leave)
