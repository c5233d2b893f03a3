"""`nmt export`: write a model in the format of another program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from nmt_cli.commands.options import Force
from nmt_cli.errors import NmtError

_OWN_FILES = re.compile(
    r"about\.json|model\.(bin|safetensors)|((generation|tokenizer)_)?config\.json|(target_)?vocab\.json"
    r"|(source|target)\.spm|(shared|source|target)_vocabulary\.(json|txt)"
)


def export(
    model: Annotated[Path, Argument(metavar="MODEL", help="The folder of a run or of a model.")],
    to: Annotated[Literal["ctranslate2", "hf"], Option(help="The format. hf: Hugging Face's transformers.")],
    out: Annotated[
        Path | None,
        Option("--out", "-o", metavar="FOLDER", help="Folder to write. Default for ctranslate2: inside MODEL."),
    ] = None,
    type: Annotated[
        str, Option(metavar="TYPE", help="Type of ctranslate2's weights: float32, int8, int16, float16 ...")
    ] = "float32",
    force: Force = False,
) -> None:
    """Convert a model for the ctranslate2 engine of nmt translate, or for Hugging Face's transformers.

    \b
    nmt export runs/demo --to ctranslate2 --type int8 --out demo-int8
    nmt export runs/demo --to hf --out demo-hf
    """
    from importlib.util import find_spec

    from nmt_cli.files import check_overwrite, foreign_names
    from nmt_cli.store.folders import CTRANSLATE2_TYPES, find_model
    from nmt_cli.terminal.console import say

    if to == "hf":
        if out is None:
            raise NmtError("--to hf needs a folder to write", "add --out, for example --out my-model-hf")
        if type != "float32":
            raise NmtError("--type is only for --to ctranslate2", "omit --type")
    elif type not in CTRANSLATE2_TYPES:
        types = ", ".join(CTRANSLATE2_TYPES)
        raise NmtError(f"--type {type} is not one of {types}", "float32 is exact, int8 is smallest")
    elif not find_spec("ctranslate2"):
        raise NmtError("CTranslate2 is not installed", "pip install ctranslate2")
    folder = (out or find_model(model).ctranslate2).resolve()  # replace the target of a link, not the link
    # The export inside a model may have lost its about.json, and those of older versions have none.
    check_overwrite(folder, force, foreign_names(folder, _OWN_FILES, record="about.json" if out else None))

    # torch is imported after the checks, so that a mistake is reported at once.
    from nmt_cli.export.ctranslate2 import to_ctranslate2
    from nmt_cli.export.hf import to_hf
    from nmt_cli.store.checkpoint import load_model

    trained = load_model(model)
    if to == "hf":
        to_hf(trained, folder)
    else:
        to_ctranslate2(trained, folder, None if type == "float32" else type)
    say(f"written to {folder}")
