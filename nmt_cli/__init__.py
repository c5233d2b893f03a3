"""nmt: neural machine translation on the command line. `nmt --help` is the way in."""

__version__ = "0.1.0"
