"""`nmt demo`: write the demo corpus, which comes with nmt, to files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from nmt_cli.commands.options import Force


def demo(
    out: Annotated[Path, Argument(metavar="FOLDER", help="Folder for the files.")] = Path("demo"), force: Force = False
) -> None:
    """Write a small English-French corpus, made by a grammar, for a first try of nmt.

    test.align has the word alignment of the test pairs, which the grammar knows (docs/score.md).
    The shipped recipe "demo" reads these files: nmt demo, nmt prepare demo, nmt train demo.
    """
    from nmt_cli.demo import SPLITS, demo_alignment, demo_corpus
    from nmt_cli.files import check_overwrite, replace_file

    files = {}
    for split in SPLITS:
        sides = zip(*demo_corpus(split), strict=True)
        for language, lines in zip(("en", "fr"), sides, strict=True):
            files[out / f"{split}.{language}"] = "".join(line + "\n" for line in lines)
    files[out / "test.align"] = "".join(line + "\n" for line in demo_alignment())
    for path, text in files.items():
        if path.is_dir() or (path.is_file() and path.read_bytes() != text.encode()):
            check_overwrite(path, force, option="nmt demo FOLDER", note=" with other content")
    out.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        replace_file(path, text)
        typer.echo(f"{path}  {text.count(chr(10)):,} lines")
