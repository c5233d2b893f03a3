"""Several hosts, joined by torchrun as docs/training.md says: faults of processes, of hosts and of the network."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.hosts import INTERFACE, Host, Network, ssh_options, start_sshd, until, why_not
from support.toy_runs import sets, steps_saved

from nmt_cli.store.log import End, Start, Train, read_log

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.torture
STEPS = 250
OPTIONS = sets(
    f"train.steps={STEPS}", "train.valid_every=50", "train.log_every=25", "train.valid_lines=2", "train.patience=0"
)
PATIENCE = 300  # seconds; every fault must be over by then


@pytest.fixture(scope="module")
def reason() -> str:
    return why_not()


def documented_command() -> tuple[dict[str, str], str]:
    """The environment and the command for each host, as docs/training.md has them."""
    section = (ROOT / "docs/training.md").read_text(encoding="utf-8").partition("\n## Several hosts\n")[2]
    block = re.sub(r" +# .*", "", section.split("```\n")[1]).replace("\\\n", " ")
    *exports, command = block.replace("=eth0", f"={INTERFACE}").splitlines()
    return dict(line.removeprefix("export ").split("=") for line in exports), command


class Cluster:
    """Hosts that train the toy recipe together."""

    def __init__(self, hosts: list[Host], folder: Path, recipe: Path, nodes: str) -> None:
        self.hosts, self.folder, self.recipe, self.nodes = hosts, folder, recipe, nodes
        self.run = folder / "runs/toy"
        self.outputs = [folder / f"{host.address}.txt" for host in hosts]
        self.agents: dict[Host, subprocess.Popen[bytes]] = {}

    def start(self, *hosts: Host) -> None:
        for host in hosts:
            first = self.hosts[0]
            places = {
                "torchrun": f"{sys.executable} -m torch.distributed.run",
                "--nnodes 2": f"--nnodes {self.nodes}",
                "--nproc-per-node 8": "--nproc-per-node 1",
                "NAME": "toy",
                "FIRST": first.address,
                "is_host=1": f"is_host={int(host is first)}",
                "ADDRESS": host.address,
                "RECIPE": str(self.recipe),
            }
            variables, command = documented_command()
            for place, value in places.items():
                assert place in command
                command = command.replace(place, value)
            output = self.outputs[self.hosts.index(host)]
            self.agents[host] = host.start([*command.split(), *OPTIONS], self.folder, output, **variables)

    def until_checkpoint(self, step: int) -> None:
        until(lambda: self.run.exists() and max(steps_saved(self.run), default=0) >= step, PATIENCE)

    def worker(self, host: Host) -> int:
        """The process that trains on this host: the child of torchrun."""
        return next(pid for pid in host.pids() if b"torch.distributed.run" not in cmdline(pid))

    def texts(self) -> list[str]:
        return [output.read_text() if output.exists() else "" for output in self.outputs]

    def wait(self) -> None:
        for agent in self.agents.values():
            assert agent.wait(PATIENCE) == 0, "\n".join(self.texts())


def cmdline(pid: int) -> bytes:
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_bytes() if path.exists() else b""


@pytest.fixture
def cluster(reason, toy, tmp_path, request):
    if reason:
        pytest.skip(reason)
    count, nodes = getattr(request, "param", (2, "2"))
    with Network(count) as hosts:
        yield Cluster(hosts, tmp_path, toy, nodes)


@pytest.fixture(scope="module")
def tokens(prepared, nmt_in, tmp_path_factory) -> dict[int, int]:
    """The tokens by step of a run in one process."""
    folder = tmp_path_factory.mktemp("alone")
    done = nmt_in(folder, "train", prepared / "x/x.toml", "--out", folder / "alone", *OPTIONS)
    assert done.code == 0, done.err
    return {entry.step: entry.tokens for entry in read_log(folder / "alone") if isinstance(entry, Train)}


def assert_right(cluster: Cluster, tokens: dict[int, int]) -> list[Start]:
    """All hosts have ended, the log has no gap, and no process is left. Returns the starts."""
    cluster.wait()
    log = list(read_log(cluster.run))
    # A session that was asked to stop has logged one line more.
    logged = {entry.step: entry.tokens for entry in log if isinstance(entry, Train)}
    assert {step: logged.get(step) for step in tokens} == tokens
    assert isinstance(log[-1], End) and log[-1].step == STEPS
    assert "Traceback" not in "".join(cluster.texts())
    assert [host.pids() for host in cluster.hosts] == [[] for _ in cluster.hosts]
    return [entry for entry in log if isinstance(entry, Start)]


def test_two_hosts(cluster, tokens):
    cluster.start(*cluster.hosts)
    assert [start.processes for start in assert_right(cluster, tokens)] == [2]


@pytest.mark.parametrize("which", [0, 1], ids=["first host", "second host"])
def test_a_worker_is_killed(cluster, tokens, which):
    cluster.start(*cluster.hosts)
    cluster.until_checkpoint(50)
    os.kill(cluster.worker(cluster.hosts[which]), signal.SIGKILL)
    starts = assert_right(cluster, tokens)
    assert [start.processes for start in starts] == [2, 2] and starts[-1].step >= 50
    gone, survivor = cluster.hosts[which], cluster.texts()[1 - which]
    assert f"error: the connection to the process on {gone.address} is lost" in survivor


def test_a_host_is_killed_and_comes_back(cluster, tokens):
    cluster.start(*cluster.hosts)
    cluster.until_checkpoint(50)
    cluster.hosts[1].die()
    time.sleep(5)
    cluster.start(cluster.hosts[1])
    assert assert_right(cluster, tokens)[-1].step >= 50


def test_a_host_loses_its_power_and_comes_back(cluster, tokens):
    """No connection is closed: the other host hears nothing."""
    cluster.start(*cluster.hosts)
    cluster.until_checkpoint(50)
    cluster.hosts[1].cut()
    cluster.hosts[1].die()
    time.sleep(5)
    cluster.hosts[1].mend()
    cluster.start(cluster.hosts[1])
    assert assert_right(cluster, tokens)[-1].step >= 50


def test_the_first_host_is_killed_and_all_start_again(cluster, tokens):
    """The first host holds the meeting point, so torchrun ends on all hosts."""
    cluster.start(*cluster.hosts)
    cluster.until_checkpoint(50)
    cluster.hosts[0].die()
    assert cluster.agents[cluster.hosts[1]].wait(PATIENCE) != 0
    until(lambda: not cluster.hosts[1].pids(), 60)
    for output in cluster.outputs:
        output.unlink()  # torchrun's own traceback
    cluster.start(*cluster.hosts)
    assert assert_right(cluster, tokens)[-1].step >= 50


def test_the_link_is_cut_and_mended(cluster, tokens):
    cluster.start(*cluster.hosts)
    cluster.until_checkpoint(50)
    cluster.hosts[1].cut()
    time.sleep(30)
    cluster.hosts[1].mend()
    assert_right(cluster, tokens)


def test_a_link_that_stays_cut_is_noticed(cluster, tokens):
    """Linux sends a packet 15 times before it gives up, which takes a quarter of an hour. Here it sends it 6 times."""
    for host in cluster.hosts:
        host.start(["sysctl", "-q", "net.ipv4.tcp_retries2=6"], cluster.folder, cluster.folder / "sysctl.txt").wait()
    cluster.start(*cluster.hosts)
    cluster.until_checkpoint(50)
    cluster.hosts[1].cut()
    until(lambda: f"the process on {cluster.hosts[1].address} is lost" in cluster.texts()[0], PATIENCE)
    assert cluster.agents[cluster.hosts[1]].wait(PATIENCE) != 0  # it cannot reach the meeting point
    assert not cluster.hosts[1].pids()
    cluster.outputs[1].unlink()  # torchrun's own traceback
    cluster.hosts[1].mend()
    cluster.start(cluster.hosts[1])
    assert assert_right(cluster, tokens)[-1].step >= 50


@pytest.mark.parametrize("cluster", [(3, "2:3")], indirect=True)
def test_a_host_joins_late(cluster, tokens):
    cluster.start(*cluster.hosts[:2])
    cluster.until_checkpoint(50)
    cluster.start(cluster.hosts[2])
    starts = assert_right(cluster, tokens)
    assert starts[0].processes == 2 and starts[-1].processes == 3


def test_a_host_stands_still_for_a_while(cluster, tokens):
    cluster.start(*cluster.hosts)
    cluster.until_checkpoint(50)
    worker = cluster.worker(cluster.hosts[1])
    os.kill(worker, signal.SIGSTOP)
    time.sleep(20)
    os.kill(worker, signal.SIGCONT)
    assert len(assert_right(cluster, tokens)) == 1


@pytest.mark.skipif(not shutil.which("sshd"), reason="sshd is not installed")
def test_the_script_that_starts_torchrun_by_ssh(cluster, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} {ssh_options(tmp_path)} "$@"\n')
    (tmp_path / "bin/ssh").chmod(0o755)
    for host in cluster.hosts:
        start_sshd(host, tmp_path)
    command = ["bash", str(ROOT / "docs/examples/train-ssh.sh"), str(cluster.recipe)]
    command += [host.address for host in cluster.hosts]
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "INTERFACE": INTERFACE}
    environment["PYTHON"] = f"env OMP_NUM_THREADS=1 PYTHONPATH={ROOT} {sys.executable}"
    script = cluster.hosts[0].start(command, tmp_path, cluster.outputs[0], **environment)
    assert script.wait(PATIENCE) == 0, cluster.texts()[0]
    log = list(read_log(cluster.run))
    assert isinstance(log[0], Start) and log[0].processes == 2
    assert isinstance(log[-1], End) and log[-1].step == 40
