"""Where the command starts: `nmt`, and `python -m nmt_cli` in the form that torchrun needs."""

import signal

# Until cli.main can say something better, Ctrl-C ends the process without a word, not in an import.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from nmt_cli.cli import main

if __name__ == "__main__":
    main()
