"""`nmt export`: write a model in the format of another program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from nmt_cli.commands.options import Force


def export(
    model: Annotated[Path, typer.Argument(help="The folder of a run or of a model.")],
    to: Annotated[Literal["ctranslate2", "hf"], typer.Option(help="The format. hf: Hugging Face's transformers.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write. Default for ctranslate2: inside MODEL.")
    ] = None,
    type: Annotated[
        str, typer.Option(help="Type of ctranslate2's weights: float32, int8, int16, float16 ...")
    ] = "float32",
    force: Force = False,
) -> None:
    """Convert a model for the ctranslate2 engine of nmt translate, or for Hugging Face's transformers.

    \b
    nmt export runs/demo --to ctranslate2
    nmt export runs/demo --to hf --out demo-hf
    """
    from nmt_cli.export.convert import export_model
    from nmt_cli.terminal.console import say

    say(f"written to {export_model(model, to, out, type, force)}")
