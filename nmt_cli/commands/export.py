"""`nmt export`: a model in the formats of other programs."""

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
    model: Annotated[Path, typer.Argument(help="Folder of a run, or of a model.")],
    to: Annotated[Target, typer.Option(help="ctranslate2, or hf for the transformers library.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write; for ctranslate2 else inside the model's.")
    ] = None,
    type: Annotated[str, typer.Option(help="Of ctranslate2's weights: float32, int8, int16, float16 ...")] = "float32",
    force: Force = False,
) -> None:
    """Write a model for the ctranslate2 engine of nmt translate, or for Hugging Face's transformers.

    \b
    nmt export runs/demo --to ctranslate2
    nmt export runs/demo --to hf --out demo-hf
    """
    from nmt_cli.errors import NmtError
    from nmt_cli.files import check_overwrite
    from nmt_cli.search.ct2_engine import check_type
    from nmt_cli.store.model_folder import CTRANSLATE2, find_model
    from nmt_cli.terminal.console import messages

    inside = to is Target.ctranslate2
    if out is None and not inside:
        raise NmtError("--out must say where the folder for transformers goes", "for example --out my-model-hf")
    if inside:
        check_type(type)
    elif type != "float32":
        raise NmtError("--type is only for ctranslate2", "leave it out")
    folder = (find_model(model) / CTRANSLATE2 if out is None else out).resolve()  # what a link points to
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    exported = "config.json" in names and ("model.bin" in names or "source.spm" in names)
    check_overwrite(folder, force, [] if exported else names)

    from nmt_cli.export.ctranslate2 import to_ctranslate2
    from nmt_cli.export.hf import to_hf
    from nmt_cli.store.checkpoint import load_model

    trained = load_model(model)
    if inside:
        to_ctranslate2(trained, folder, None if type == "float32" else type)
    else:
        to_hf(trained, folder)
    messages().print(f"written to {folder}", soft_wrap=True, markup=False)
