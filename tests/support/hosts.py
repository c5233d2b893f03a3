"""Hosts that exist in this kernel only: network namespaces with an address and a name each, joined by a bridge.

The names resolve nowhere, as in many clusters. All hosts see the same files. Only root on Linux can make them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

INTERFACE = "eth0"


def why_not() -> str:
    """Why this machine cannot have such hosts; empty if it can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "only root can make network namespaces"
    if missing := [name for name in ("ip", "unshare") if shutil.which(name) is None]:
        return f"{missing[0]} is not installed"
    name = f"nmt-try-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if done.returncode:
        return f"network namespaces are not allowed: {done.stderr.strip()}"
    _ip("netns", "del", name)
    return ""


class Host:
    def __init__(self, number: int) -> None:
        self.name, self.address = f"nmt-{os.getpid()}-host{number}", f"10.87.0.{number}"
        self.switch, self.port = f"nmt-{os.getpid()}-switch", f"port{number}"
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, command: list[str], cwd: Path, output: Path, **env: str) -> subprocess.Popen[bytes]:
        """Start a command on this host. Its output is appended to a file."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name, *command]
        with output.open("ab") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *named],
                cwd=cwd,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def pids(self) -> list[int]:
        """All processes of this host."""
        return [int(pid) for pid in _ip("netns", "pids", self.name).split()]

    def send_signal(self, number: int) -> None:
        for pid in self.pids():
            os.kill(pid, number)

    def cut(self) -> None:
        """Unplug the cable. Packets vanish, and no connection is closed."""
        _ip("-n", self.switch, "link", "set", self.port, "down")

    def mend(self) -> None:
        _ip("-n", self.switch, "link", "set", self.port, "up")

    def die(self) -> None:
        """Kill all processes of this host."""
        while self.pids():
            self.send_signal(signal.SIGKILL)
            for process in self.started:
                process.poll()


class Network(ExitStack):
    """with Network(2) as hosts: two hosts. At the end their processes are killed."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.hosts = [Host(number) for number in range(1, count + 1)]

    def __enter__(self) -> list[Host]:  # type: ignore[override]
        switch = self.hosts[0].switch
        self._add(switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for host in self.hosts:
            self._add(host.name)
            self.callback(host.die)
            _ip("-n", switch, "link", "add", host.port, "type", "veth", "peer", INTERFACE, "netns", host.name)
            _ip("-n", switch, "link", "set", host.port, "master", "bridge", "up")
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", INTERFACE)
            for interface in ("lo", INTERFACE):
                _ip("-n", host.name, "link", "set", interface, "up")
        return self.hosts

    def _add(self, name: str) -> None:
        _ip("netns", "add", name)
        self.callback(_ip, "netns", "del", name)


def ssh_options(folder: Path) -> str:
    """Options of ssh that use the key of this folder."""
    if not (folder / "key").exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
    options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "ConnectTimeout=20", "LogLevel=ERROR")
    return f"-i {folder}/key " + " ".join(f"-o {option}" for option in options)


def start_sshd(host: Host, folder: Path) -> None:
    """A server that lets the key of this folder in."""
    settings = [f"HostKey {folder}/key", f"AuthorizedKeysFile {folder}/key.pub", "StrictModes no", "UsePAM no"]
    settings += [f"ListenAddress {host.address}", "PidFile none", "PermitRootLogin yes"]
    config, output = folder / f"sshd-{host.address}", folder / "sshd.txt"
    config.write_text("\n".join(settings) + "\n")
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd does not start without it
    host.start([shutil.which("sshd") or "sshd", "-D", "-e", "-f", str(config)], folder, output)
    until(lambda: f"listening on {host.address}" in output.read_text(), 60)


def until(condition: Callable[[], object], timeout: float) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"nothing happened for {timeout} seconds"
        time.sleep(0.05)


def _ip(*args: str) -> str:
    return subprocess.run(["ip", *args], check=True, capture_output=True, text=True).stdout
