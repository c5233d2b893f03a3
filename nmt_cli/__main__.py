"""`python -m nmt_cli`: the same as `nmt`, in the form that torchrun needs."""

from nmt_cli.cli import main

main()
