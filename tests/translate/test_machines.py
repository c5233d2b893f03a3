"""Translation on several machines: GNU parallel and ssh, as docs/translate.md says."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest
from support.hosts import Network, ssh_options, start_sshd, why_not
from support.small_language import sentences

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.torture
@pytest.mark.skipif(not shutil.which("sshd"), reason="sshd is not installed")
@pytest.mark.skipif(not shutil.which("parallel"), reason="GNU parallel is not installed")
def test_shards_on_two_hosts_and_again_after_a_host_was_away(nmt, model, tmp_path):
    if reason := why_not():
        pytest.skip(reason)
    (tmp_path / "big.en").write_text("".join(source + "\n" for source, _ in sentences(40, seed=7)))
    whole = nmt("translate", model, "big.en").out
    (tmp_path / "nmt").write_text(
        f'#!/bin/sh\nhostname >> hosts.txt\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m nmt_cli "$@"\n'
    )
    (tmp_path / "nmt").chmod(0o755)
    ssh = f"ssh {ssh_options(tmp_path)}"
    translate = f"./nmt translate {shlex.quote(str(model))} big.en --shard {{}}/4 --out out.{{}}"
    command = ["parallel", "--sshloginfile", "hosts", "-j", "1", "--ssh", ssh, "--wd", str(tmp_path)]
    command += ["--joblog", "jobs", "--resume-failed", translate, ":::", "1", "2", "3", "4"]
    with Network(3) as (here, *hosts):
        (tmp_path / "hosts").write_text("".join(f"{host.address}\n" for host in hosts))

        def run() -> int:
            process = here.start(command, tmp_path, tmp_path / "parallel.txt", PARALLEL_HOME=str(tmp_path))
            return process.wait(300)

        start_sshd(hosts[0], tmp_path)
        assert run() != 0  # the second host is down: its shards fail
        done = {path.name for path in tmp_path.glob("out.?")}
        assert 0 < len(done) < 4
        times = {name: (tmp_path / name).stat().st_mtime_ns for name in done}
        start_sshd(hosts[1], tmp_path)
        assert run() == 0, (tmp_path / "parallel.txt").read_text()
        assert times == {name: (tmp_path / name).stat().st_mtime_ns for name in done}  # only failed shards run again
    assert b"".join((tmp_path / f"out.{number}").read_bytes() for number in range(1, 5)) == whole
    assert {line.rpartition("-")[2] for line in (tmp_path / "hosts.txt").read_text().split()} == {"host2", "host3"}
