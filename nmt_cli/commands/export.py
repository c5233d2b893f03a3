"""`nmt export`: write a model in the format of another program."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from nmt_cli.commands.options import Force


class Target(str, Enum):
    ctranslate2 = "ctranslate2"
    hf = "hf"


def export(
    model: Annotated[Path, typer.Argument(help="The folder of a run or of a model.")],
    to: Annotated[Target, typer.Option(help="The format; hf is Hugging Face's transformers.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The folder to write. For ctranslate2 the default is inside MODEL."),
    ] = None,
    type: Annotated[
        str, typer.Option(help="For ctranslate2, the type of the weights: float32, int8, int16, float16 ...")
    ] = "float32",
    force: Force = False,
) -> None:
    """Convert a model for the ctranslate2 engine of nmt translate, or for Hugging Face's transformers.

    \b
    nmt export runs/demo --to ctranslate2
    nmt export runs/demo --to hf --out demo-hf
    """
    from nmt_cli.export.convert import export_model
    from nmt_cli.terminal.console import messages

    folder = export_model(model, to.value, out, type, force)
    messages().print(f"written to {folder}", soft_wrap=True, markup=False)
