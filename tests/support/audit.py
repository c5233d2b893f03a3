"""Record what Python itself reports of a process: sockets, names that pickles load, and commands that are started.

python tests/support/audit.py FILE      imports every module of nmt_cli, and records the events in FILE
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from pathlib import Path

EVENTS = ("socket.", "pickle.", "urllib.", "http.", "ftplib.", "smtplib.", "subprocess.", "os.system", "os.exec")


def install(file: str) -> None:
    """Append a line to FILE for each event of this process."""
    stream = Path(file).open("a", encoding="utf-8")  # noqa: SIM115

    def record(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith(EVENTS):
            stream.write(json.dumps([event, *map(str, arguments)]) + "\n")
            stream.flush()

    sys.addaudithook(record)


def events(file: Path) -> list[list[str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    install(sys.argv[1])
    package = importlib.import_module("nmt_cli")
    for module in pkgutil.walk_packages(package.__path__, "nmt_cli."):
        if module.name != "nmt_cli.__main__":
            importlib.import_module(module.name)
