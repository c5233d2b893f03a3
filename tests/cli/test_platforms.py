"""nmt imports on platforms that lack some modules of Linux and macOS, such as Windows, and installs what they have."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

# The first round of imports loads the libraries with everything that they find on this platform. Then the modules and
# functions that Windows lacks are hidden, and every module of nmt_cli is imported again. Then the process ends,
# without the command.
SCRIPT = """
import importlib, os, pkgutil, signal, sys
import nmt_cli

names = ["nmt_cli", *(module.name for module in pkgutil.walk_packages(nmt_cli.__path__, "nmt_cli."))]
for name in names:
    importlib.import_module(name)

for name in [name for name in sys.modules if name.partition(".")[0] == "nmt_cli"]:
    del sys.modules[name]
for name in ("resource", "fcntl", "termios", "tty", "pty", "pwd", "grp"):
    sys.modules[name] = None
for name in ("fork", "forkpty", "sched_getaffinity", "killpg", "getpgid", "getuid", "geteuid", "openpty"):
    vars(os).pop(name, None)
for name in ("SIGKILL", "SIGHUP", "SIGQUIT", "SIGPIPE", "SIGTSTP", "SIGCHLD", "SIGALRM", "SIGUSR1", "pthread_sigmask"):
    vars(signal).pop(name, None)

for name in names:
    try:
        importlib.import_module(name)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}")
print(f"{len(names)} modules")
sys.exit()
"""


def test_every_module_imports_without_what_windows_lacks(nmt):
    if not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    result = nmt(env={"NMT_TEST_CODE": SCRIPT})
    assert result.code == 0, result.err
    *failures, count = result.text.splitlines()
    assert not failures, "\n" + "\n".join(failures)
    assert int(count.split()[0]) > 60, count


@pytest.mark.parametrize(
    ("machine", "python", "installed"),
    [
        ("x86_64", "3.10", True),
        ("aarch64", "3.14", True),
        ("arm64", "3.12", True),  # macOS
        ("AMD64", "3.12", True),  # Windows
        ("ARM64", "3.12", False),  # Windows
        ("x86_64", "3.15", False),
    ],
)
def test_ctranslate2_is_installed_where_it_has_wheels(machine, python, installed):
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    requirement = Requirement(re.search(r'^  "(ctranslate2.*)",$', project, flags=re.M)[1])
    assert requirement.marker.evaluate({"platform_machine": machine, "python_version": python}) == installed
