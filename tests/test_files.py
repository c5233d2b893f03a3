"""Files that appear whole, locks, and the overwrite policy of all commands (nmt_cli/files.py)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nmt_cli.errors import NmtError
from nmt_cli.files import check_overwrite, exclusive, new_folder, replace_file


def test_a_file_is_replaced_only_with_force(tmp_path):
    path = tmp_path / "x"
    check_overwrite(path, force=False)
    path.write_text("old")
    with pytest.raises(NmtError) as caught:
        check_overwrite(path, force=False)
    assert caught.value.message == f"{path} exists"
    assert caught.value.hint == "--force replaces it; or choose another with --out"
    check_overwrite(path, force=True)


def test_an_empty_folder_may_be_used(tmp_path):
    check_overwrite(tmp_path, force=False, foreign=[])


def test_a_folder_of_nmt_is_replaced_only_with_force(tmp_path):
    (tmp_path / "meta.json").write_text("{}")
    with pytest.raises(NmtError, match="exists with other settings"):
        check_overwrite(tmp_path, force=False, foreign=[], note=" with other settings")
    check_overwrite(tmp_path, force=True, foreign=[])


@pytest.mark.parametrize("force", [False, True])
def test_foreign_files_are_never_replaced(tmp_path, force):
    with pytest.raises(NmtError, match="contains files that nmt did not write: a, b, c and 1 more"):
        check_overwrite(tmp_path, force, foreign=["a", "b", "c", "d"])


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_is_not_replaced_by_a_file_nor_a_file_by_a_folder(tmp_path, force):
    with pytest.raises(NmtError, match="is a folder"):
        check_overwrite(tmp_path, force)
    (tmp_path / "x").write_text("")
    with pytest.raises(NmtError, match="is a file"):
        check_overwrite(tmp_path / "x", force, foreign=[])


def test_the_folder_behind_a_link_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for content in ("old", "new"):
        with new_folder(tmp_path / "link") as folder:
            (folder / "x").write_text(content)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real/x").read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"real", "link"}


@pytest.mark.parametrize("force", [False, True])
def test_a_mount_point_is_refused_before_the_work(tmp_path, monkeypatch, force):
    """Such as the volume of a container: it can be written, but not renamed."""
    volume = tmp_path / "my volume"
    volume.mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == volume)
    with pytest.raises(NmtError, match="is a mount point") as caught:
        check_overwrite(volume, force, foreign=[])
    assert caught.value.hint == f"choose a folder inside it, such as --out '{volume}/new'"


def test_a_missing_parent_folder_is_named(tmp_path):
    with pytest.raises(NmtError, match="there is no folder"):
        check_overwrite(tmp_path / "none/x", force=False)


def test_leftovers_of_a_killed_process_with_the_same_id_are_removed(tmp_path):
    """In a container the first process always has the id 1."""
    left = tmp_path / f".model.tmp-{os.getpid()}"
    left.mkdir()
    (left / "half").write_text("x")
    with new_folder(tmp_path / "model") as aside:
        (aside / "whole").write_text("y")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["whole"] and not left.exists()


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("failing", [1, 2])
def test_a_rename_that_fails_leaves_the_old_folder(tmp_path, monkeypatch, failing):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/x").write_text("old")
    rename, calls = Path.rename, iter(range(1, 100))

    def rename_or_fail(path: Path, target: Path) -> Path:
        if next(calls) == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_or_fail)
    with pytest.raises(OSError, match="Input/output error"), new_folder(tmp_path / "model") as aside:
        (aside / "x").write_text("new")
    assert content(tmp_path) == {"model/x": "old"}


def test_a_signal_between_the_two_renames_leaves_the_old_folder(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    rename = Path.rename

    def rename_and_stop(path: Path, target: Path) -> None:
        monkeypatch.setattr(Path, "rename", rename)
        rename(path, target)
        raise SystemExit(143)

    monkeypatch.setattr(Path, "rename", rename_and_stop)
    with pytest.raises(SystemExit), new_folder(tmp_path / "model"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_leftovers_of_killed_writers_of_a_file_are_removed(tmp_path):
    """The name has characters that are special in patterns of file names."""
    out = tmp_path / "out[1].txt"
    for name in (
        f".out[1].txt.tmp-{2**22 + 1}",
        f".out[1].txt.tmp-{os.getppid()}",
        ".out1.txt.tmp-4194305",
        ".out[1].txt.old",
    ):
        (tmp_path / name).write_text("x")
    replace_file(out, "new")
    assert out.read_text() == "new"
    kept = {out.name, f".out[1].txt.tmp-{os.getppid()}", ".out1.txt.tmp-4194305", ".out[1].txt.old"}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_disk_without_locks_is_not_an_error(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def no_locks(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with exclusive(tmp_path / ".lock", "another"):
        pass
