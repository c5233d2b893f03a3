"""`nmt prepare` where its output exists, or where an earlier run was killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from support.checks import assert_user_error, wait_until
from support.prepared import meta
from support.toy_corpus import corpus

from nmt_cli.files import sha256_of


def test_a_second_run_does_nothing_and_other_content_needs_force(nmt, small, tmp_path, write):
    nmt(*small)
    before = meta(tmp_path / "out")["fingerprint"]
    stamp = (tmp_path / "out/meta.json").stat().st_mtime_ns
    again = nmt(*small)
    assert (again.code, again.out) == (0, b"") and "up to date" in again.err
    assert (tmp_path / "out/meta.json").stat().st_mtime_ns == stamp
    assert_user_error(nmt(*small, "--vocab-size", "61"), "out exists with other content or settings", "--force")
    write("a.en", corpus(400, 2000)[0])
    assert_user_error(nmt(*small), "out exists with other content or settings", "--force")
    assert (tmp_path / "out/meta.json").stat().st_mtime_ns == stamp
    assert nmt(*small, "--force").code == 0
    assert meta(tmp_path / "out")["fingerprint"] != before
    assert not list(tmp_path.glob(".*"))


def test_force_does_not_remove_a_folder_that_nmt_did_not_write(nmt, tmp_path):
    for name, text in zip(("a.en", "a.de"), corpus(300, 1000), strict=True):
        (tmp_path / name).write_text(text)
    command = ("prepare", "--source", "a.en", "--target", "a.de", "--out", "data", "--vocab-size")
    assert nmt(*command, 60).code == 0
    assert nmt(*command, 50, "--force").code == 0
    (tmp_path / "data/run").mkdir()
    assert_user_error(nmt(*command, 60, "--force"), "data contains files that nmt did not write: run")
    (tmp_path / "data/meta.json").write_text("{")
    assert_user_error(nmt(*command, 60, "--force"), "data contains files that nmt did not write: run")
    assert (tmp_path / "data/run").exists()
    (tmp_path / "data/run").rmdir()
    assert nmt(*command, 60, "--force").code == 0


def test_a_killed_prepare_leaves_no_data_or_whole_data(nmt, write, tmp_path):
    english, german = corpus(16_000, 10_000)  # four blocks: worker processes clean them
    write("a.en", english)
    write("a.de", german)
    options = ("prepare", "--source", "a.en", "--target", "a.de", "--out", "out", "--vocab-size", "60")
    # Kill while the files are checked, while text is cleaned, and while the last files are written.
    for name in ("spool/nmt-prepare-*", ".out.tmp-*", ".out.tmp-*/*train.source.ids"):
        (tmp_path / "spool").mkdir(exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "nmt_cli", *options],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path / "spool")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(lambda name=name, process=process: list(tmp_path.glob(name)) or process.poll() is not None)
        process.kill()
        process.wait()
        if (tmp_path / "out").exists():
            listed = meta(tmp_path / "out")["files"]
            assert all(sha256_of(tmp_path / "out" / name) == digest for name, digest in listed.items())
        shutil.rmtree(tmp_path / "spool")
    result = nmt(*options)
    assert result.code == 0, result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.de", "a.en", "out"]  # the leftovers are gone


def test_a_kill_between_the_two_renames_loses_nothing(nmt, small, tmp_path):
    nmt(*small)
    (tmp_path / "out").rename(tmp_path / ".out.old")  # the state between the two renames of new_folder
    assert nmt(*small, "--vocab-size", "61").code == 0
    assert sorted(path.name for path in tmp_path.glob("*out*")) == ["out"]
