"""The entry point of `nmt` and of `python -m nmt_cli`, the form that torchrun needs."""

import signal

# Importing takes a moment. Until cli.main runs, Ctrl-C ends the process silently instead of with a traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from nmt_cli.cli import main

if __name__ == "__main__":
    main()
