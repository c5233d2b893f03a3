"""`nmt` in a process of its own, without the three seconds that it takes to import torch: forked from one that has.

    python tests/forked.py < requests > exit codes

A request is a line of JSON: args, cwd, env, and the files that are its stdin, stdout and stderr.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path


class Forked:
    """The other end: asks for one command after the other."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)

    def run(self, args: list[str], cwd: Path, env: dict[str, str], streams: list[Path], timeout: float) -> int:
        request = {"args": args, "cwd": str(cwd), "env": env, "streams": list(map(str, streams))}
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(request).encode() + b"\n")
        self.server.stdin.flush()
        if not select.select([self.server.stdout], [], [], timeout)[0]:
            self.close()
            raise TimeoutError(f"nmt {' '.join(args)} takes longer than {timeout} s")
        return int(self.server.stdout.readline())

    def close(self) -> None:
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait()


def serve() -> bool:
    """Answers requests; returns True in a child, which has become what was asked for, and False at the end."""
    import nmt_cli.scoring.metrics
    import nmt_cli.search.torch_engine
    import nmt_cli.training.trainer
    import nmt_cli.translate.translator  # noqa: F401

    gc.freeze()  # what a child's collector does not look at need not be copied for it
    for line in sys.stdin:
        child = os.fork()
        if not child:
            request = json.loads(line)
            for number, name in enumerate(request["streams"]):
                os.dup2(os.open(name, os.O_WRONLY if number else os.O_RDONLY), number)
            os.chdir(request["cwd"])
            os.environ.clear()
            os.environ.update(request["env"])
            sys.argv = ["nmt", *request["args"]]
            return True
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return False


if __name__ == "__main__" and serve():
    from nmt_cli.cli import main

    main()
