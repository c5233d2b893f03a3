"""Write files and folders atomically: a killed process leaves the old version or the new version, never a mix.

A folder that nmt writes has a record: a JSON file with the checksum of every file of the folder and of itself. Readers
compare the checksums, so a damaged file is an error and never a wrong result (docs/reliability.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from nmt_cli.errors import NmtError, quoted

_BLOCK = 1 << 20


def check_overwrite(
    path: Path, force: bool, foreign: Sequence[str] | None = None, option: str = "--out", note: str = ""
) -> None:
    """Refuse to replace `path` unless the user gave --force. Every command calls this before it replaces anything.

    `foreign` None: a file will be written. Otherwise a folder will be written, and `foreign` lists the files in it that
    nmt did not write: such a folder is not replaced, even with --force. `note` describes the existing content.
    """
    if foreign is None and not path.parent.is_dir():
        raise NmtError(f"there is no folder {path.parent}", f"create the folder first, or choose another with {option}")
    if not path.exists() or (foreign is None and _is_device(path)):
        return
    if foreign is None and path.is_dir():
        raise NmtError(f"{path} is a folder, but a file is to be written", f"choose a file with {option}")
    if foreign is not None and not path.is_dir():
        raise NmtError(f"{path} is a file, but a folder is to be written", f"choose a folder with {option}")
    if foreign is not None and path.is_mount():
        hint = f"choose a folder inside it, such as {option} {quoted(path / 'new')}"
        raise NmtError(f"{path} is a mount point, which cannot be replaced by a new folder", hint)
    if foreign:
        listed = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3:,} more" if len(foreign) > 3 else "")
        hint = f"choose another folder with {option}; --force replaces only folders that nmt wrote"
        raise NmtError(f"{path} contains files that nmt did not write: {listed}", hint)
    if not force and (path.is_file() or any(path.iterdir())):
        raise NmtError(f"{path} exists{note}", f"--force replaces it; or choose another with {option}")


def foreign_names(folder: Path, own: re.Pattern[str], record: str | None) -> list[str]:
    """The names in a folder that nmt did not write: those that `own` does not match.

    `record` is a file that proves that nmt wrote the folder. Without it, all names count.
    """
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    is_ours = record is None or record in names
    return [name for name in names if not (is_ours and own.fullmatch(name))]


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty temporary folder, which replaces `folder` when the block ends. An exception removes it."""
    folder = _behind_link(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    finish_replacement(folder)
    temporary, old = _temporary(folder), _old(folder)
    temporary.mkdir()
    try:
        yield temporary
        mode = stat.S_IMODE(temporary.stat().st_mode)  # 0777 without the bits of the umask
        for path in sorted(temporary.rglob("*")):
            path.chmod(mode if path.is_dir() else mode & 0o666)  # safetensors and copied files ignore the umask
            sync(path)
        sync(temporary)
        if folder.exists():
            folder.rename(old)
        temporary.rename(folder)
        sync(folder.parent)
    except BaseException:
        if not folder.exists():
            with suppress(OSError):  # there may be no old folder
                old.rename(folder)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def new_file(path: Path) -> Iterator[TextIO]:
    """Yield a temporary text file, which replaces `path` when the block ends. An exception removes it."""
    remove_leftovers(path)
    temporary = _temporary(path)
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
        sync(temporary)
        temporary.rename(path)
        sync(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def output_file(path: Path) -> Iterator[TextIO]:
    """A text file that the user named, after check_overwrite. It appears when everything is written.

    A link stays, and the file behind the link is replaced. A pipe or a device is written to, not replaced.
    """
    if _is_device(path):
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
    else:
        with new_file(path.resolve()) as stream:
            yield stream


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def replace_file(path: Path, text: str) -> None:
    with new_file(path) as stream:
        stream.write(text)


@contextmanager
def exclusive(path: Path, other: str) -> Iterator[None]:
    """Hold a lock file, so that two processes do not write the same folder. `other` names the holder in the error.

    Folders that were made for the lock file and got no other file are removed at the end.
    """
    made = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        check_regular(path)
    with path.open("w") as lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel frees the lock of a killed process
        except BlockingIOError:
            hint = "wait until it ends, or choose another folder"
            raise NmtError(f"{other} is already running in {path.parent}", hint) from None
        except (ImportError, OSError):  # Windows has no fcntl; some network disks have no locks
            pass
        try:
            yield
        finally:
            if made and list(path.parent.iterdir()) == [path]:
                path.unlink()
                for folder in made:
                    with suppress(OSError):  # another process has written into it
                        folder.rmdir()


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    with suppress(PermissionError):  # Windows cannot open folders, and does not need to
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_folder(folder: Path) -> None:
    """Remove a folder in one step: a killed process leaves the whole folder, or a leftover under another name."""
    temporary = _temporary(folder)
    folder.rename(temporary)
    shutil.rmtree(temporary)


def finish_replacement(folder: Path) -> None:
    """Clean up after killed writers of a folder. If one was killed between its two renames, put the old folder back."""
    folder = _behind_link(folder)
    old = _old(folder)
    if old.is_dir():
        if folder.exists():
            shutil.rmtree(old)
        else:
            old.rename(folder)
    remove_leftovers(folder)


def remove_leftovers(path: Path, locked: bool = False) -> None:
    """Remove the temporary files and folders that killed writers of `path` left behind.

    `locked`: the caller holds a lock, so no other process writes `path`. Otherwise those of running processes stay.
    """
    prefix = f".{path.name}.tmp-"
    with suppress(OSError):  # for example, the folder may be written but not listed
        for left in [left for left in path.parent.iterdir() if left.name.startswith(prefix)]:
            process = left.name.removeprefix(prefix)
            # In a container, a restarted process can have the same id as the killed process.
            if process.isdecimal() and (locked or int(process) == os.getpid() or not _is_running(int(process))):
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def _behind_link(folder: Path) -> Path:
    """If `folder` is a link, the folder that it leads to. This folder is replaced, and the link stays."""
    return folder.resolve() if folder.is_symlink() else folder


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp-{os.getpid()}")


def _old(folder: Path) -> Path:
    """Where new_folder puts the old folder while it moves the new one into its place."""
    return folder.with_name(f".{folder.name}.old")


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # any other error: the process belongs to another user
    return True


def check_regular(path: Path) -> None:
    """Refuse a device, a pipe or a folder in place of a file: reading it could last forever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise NmtError(f"{path} is not a regular file", "put the file there that nmt wrote")


def read_small(path: Path, most_megabytes: int = 256) -> bytes:
    """The content of a small file that nmt keeps in memory as a whole."""
    check_regular(path)
    if path.stat().st_size > most_megabytes << 20:
        raise NmtError(f"{path} has more than {most_megabytes} MB, so it is not what it should be", "check the file")
    return path.read_bytes()


def sha256_of(path: Path, show: Callable[[int], None] | None = None) -> str:
    """The checksum of a file. `show` gets the number of bytes of each block that was read."""
    check_regular(path)
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            if show:
                show(len(block))
    return digest.hexdigest()


def checksums(folder: Path) -> dict[str, str]:
    """The checksum of every file in a folder and its subfolders, by the path inside the folder."""
    return {
        path.relative_to(folder).as_posix(): sha256_of(path) for path in sorted(folder.rglob("*")) if path.is_file()
    }


def find_damage(
    folder: Path, files: Mapping[str, str], show: Callable[[int], None] | None = None
) -> Iterator[tuple[str, str]]:
    """For each file of `files`, its name and its problem: "is missing", "is damaged" or "" if it is as written."""
    for name, expected in files.items():
        try:
            problem = "" if sha256_of(folder / name, show) == expected else "is damaged: its content has changed"
        except (FileNotFoundError, NotADirectoryError):
            problem = "is missing"
        except NmtError:
            problem = "is not a regular file"
        except PermissionError:
            raise
        except OSError as error:  # a disk that cannot read its own blocks
            problem = f"cannot be read: {error.strerror}"
        yield name, problem


def check_files(folder: Path, files: Mapping[str, str], hint: str, show: Callable[[int], None] | None = None) -> None:
    """Raise an error that names the first file of `files` that is missing or damaged."""
    for name, problem in find_damage(folder, files, show):
        if problem:
            raise NmtError(f"{folder / name} {problem}", hint)


def write_record(path: Path, table: Mapping[str, Any], files: Mapping[str, str] | None = None) -> None:
    """Write the JSON file that describes its folder. It also has the checksums of all files, and its own.

    `files` has the checksums if they are known already. None: they are computed.
    """
    if files is None:
        files = {name: digest for name, digest in checksums(path.parent).items() if name != path.name}
    text = json.dumps({**table, "files": files, "checksum": ""}, indent=1, ensure_ascii=False) + "\n"
    before, key, after = text.rpartition('"checksum": "')
    replace_file(path, before + key + hashlib.sha256(text.encode()).hexdigest() + after)


def add_to_record(path: Path, name: str) -> None:
    """Add the checksum of a file that was written after the record of its folder, unless the record has it already."""
    table = read_record(path, "the record")
    files = table.pop("files", {})
    if files and name not in files:  # a folder of an older version stays without checksums
        write_record(path, table, {**files, name: sha256_of(path.parent / name)})


def read_record(path: Path, owner: str, verify: bool = True) -> dict[str, Any]:
    """Read the JSON file of write_record, without its own checksum. Older versions of nmt wrote no checksums."""
    text, table = _read_json(path, owner)
    own, files = table.pop("checksum", None), table.get("files", {})
    intact = own is None or hashlib.sha256(text.replace(str(own), "").encode()).hexdigest() == own
    intact = intact and isinstance(files, dict) and all(isinstance(digest, str) for digest in files.values())
    if intact and any(".." in Path(name).parts or Path(name).is_absolute() for name in files):
        raise NmtError(f"{path} names a file outside of its folder", "use only folders that nmt wrote")
    if verify and not intact:
        hint = f"nmt verify {quoted(path.parent)} says what can be done"
        raise NmtError(f"{path} is damaged: its content has changed", hint)
    return table


def read_json(path: Path, owner: str) -> dict[str, Any]:
    """Read a JSON file that nmt wrote. `owner` is for the error message: "the model's" file cannot be read."""
    return _read_json(path, owner)[1]


def _read_json(path: Path, owner: str) -> tuple[str, dict[str, Any]]:
    hint = "the file is damaged, or was not written by nmt"
    try:
        text = read_small(path).decode()
        value = json.loads(text)
    except PermissionError:
        raise
    except RecursionError:
        raise NmtError(f"{owner} {path} cannot be read: it is nested too deeply", hint) from None
    except (ValueError, OSError) as error:
        raise NmtError(f"{owner} {path} cannot be read: {error}", hint) from None
    if not isinstance(value, dict):
        raise NmtError(f"{owner} {path} is not a table", hint)
    return text, value
