"""`nmt learn`: run the claims of a lecture as experiments, and say whether they hold here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from nmt_cli.commands.options import Force
from nmt_cli.errors import NmtError


def learn(
    name: Annotated[str, Argument(metavar="CLAIM", help="The claim to run. Without it, list the claims.")] = "",
    everything: Annotated[bool, Option("--all", help="Run all claims.")] = False,
    html: Annotated[
        Path | None, Option("--html", metavar="FILE", help="Also write the results as a page for the browser.")
    ] = None,
    out: Annotated[
        Path, Option("--out", "-o", metavar="FOLDER", help="Folder for the small models, which claims share.")
    ] = Path("learn"),
    ascii_only: Annotated[bool, Option("--ascii", help="Draw with ASCII characters only.")] = False,
    force: Force = False,
) -> None:
    """Run claims about attention as small experiments, and say whether they hold here.

    Every claim has three seeds, and a rule that was written before its first run. The claims share small models,
    which are trained on the demo corpus. The same command continues after an interruption.

    \b
    nmt learn
    nmt learn alignment
    nmt learn --all --html page.html
    """
    from rich.text import Text

    from nmt_cli.files import check_overwrite, output_file
    from nmt_cli.learn.claims import CLAIMS, find_claim
    from nmt_cli.learn.draw import claim_table, draw_result
    from nmt_cli.learn.lab import Lab
    from nmt_cli.learn.page import html_page
    from nmt_cli.learn.results import run
    from nmt_cli.terminal.console import output, print_trimmed, say, stages
    from nmt_cli.terminal.heatmap import ink_of
    from nmt_cli.training.session import Interrupted

    console = output()
    if name and everything:
        raise NmtError("--all runs every claim, but one is named", "leave the name or --all out")
    if force and html is None:
        raise NmtError("--force replaces the page of --html, but no page is named", "leave --force out, or add --html")
    if not name and not everything:
        if html is not None:
            raise NmtError("--html needs results", "add --all, or the name of a claim")
        print_trimmed(console, claim_table(CLAIMS))
        say("\nnext: nmt learn CLAIM, or nmt learn --all --html page.html")
        return
    claims = CLAIMS if everything else (find_claim(name),)
    check_overwrite(out, True, foreign=[])  # a lab may exist: its runs are used again
    if html is not None:
        check_overwrite(html, force, option="--html")

    lab, results = Lab(out), []
    for number, claim in enumerate(claims):
        with stages() as lab.show:
            try:
                results.append(run(claim, lab))
            except Interrupted as stop:
                say(f"stopped by {stop}; the same command continues")
                raise typer.Exit(128 + stop.signal) from None
        space = [Text()] if number else []
        print_trimmed(console, *space, draw_result(results[-1], console.width, ink_of(console, ascii_only)))
    if html is not None:
        with output_file(html) as stream:
            stream.write(html_page(results))
        say(f"\nwritten to {html}")
