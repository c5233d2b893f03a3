"""`nmt demo`: the corpus that comes with the toolkit, as files to look at and to train on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nmt_cli.commands.options import Force


def demo(
    out: Annotated[Path, typer.Argument(help="Folder for the files.")] = Path("demo"),
    force: Force = False,
) -> None:
    """Write a small English-French corpus, made by a grammar, to try everything on.

    The shipped recipe "demo" reads it: nmt demo, nmt prepare demo, nmt train demo.
    """
    from nmt_cli.demo.corpus import demo_corpus
    from nmt_cli.files import check_overwrite, replace_file

    files = {}
    for split, pairs in demo_corpus().items():
        for side, language in enumerate(("en", "fr")):
            files[out / f"{split}.{language}"] = "".join(pair[side] + "\n" for pair in pairs)
    for path, text in files.items():
        if path.exists() and path.read_bytes() != text.encode():
            check_overwrite(path, force, option="nmt demo FOLDER", note=" with other content")
    out.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        replace_file(path, text)
        typer.echo(f"{path}  {text.count(chr(10)):,} lines")
