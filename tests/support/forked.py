"""Run `nmt` in processes that are forked from one that has imported torch already, which takes three seconds.

    python tests/support/forked.py < requests > exit codes

A request is a line of JSON: args, cwd, env, and the files to use as stdin, stdout and stderr.
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
    """The client: it starts the server and sends one command after the other."""

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
            raise TimeoutError(f"nmt {' '.join(args)} took longer than {timeout} s")
        return int(self.server.stdout.readline())

    def close(self) -> None:
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait()


def serve() -> bool:
    """Answer requests. Return True in a forked child, which runs the command, and False at the end of the input."""
    import nmt_cli.scoring.metrics
    import nmt_cli.search.torch_engine
    import nmt_cli.training.session
    import nmt_cli.translate.translator  # noqa: F401

    gc.freeze()  # the children's collectors skip these objects, so their memory stays shared
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
