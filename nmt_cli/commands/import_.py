"""`nmt import`: make an nmt model from the folder of another program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from nmt_cli.commands.options import Force

_OWN_FILES = re.compile(r"about\.json|quality\.json|recipe\.toml|model\.safetensors|vocab|ctranslate2")


def import_(
    folder: Annotated[
        Path, Argument(metavar="FOLDER", help="A model of Hugging Face transformers, Marian or CTranslate2 on disk.")
    ],
    out: Annotated[Path, Option("--out", "-o", metavar="FOLDER", help="Folder to write, such as runs/NAME.")],
    source_lang: Annotated[
        str | None, Option(metavar="CODE", help="Language of the source, in the model's own codes: en, eng_Latn.")
    ] = None,
    target_lang: Annotated[
        str | None, Option(metavar="CODE", help="Language of the target. A model of many languages needs both.")
    ] = None,
    force: Force = False,
) -> None:
    """Import a model of Hugging Face transformers (MarianMT, M2M-100, NLLB, mBART-50), Marian or CTranslate2.

    \b
    nmt import opus-mt-en-de --out runs/opus
    nmt import nllb-200-distilled-600M --source-lang eng_Latn --target-lang fra_Latn --out runs/nllb

    The folder must be on disk: nothing is downloaded. nmt translate, nmt inspect, nmt export and nmt finetune then
    use the model like any other. A model of CTranslate2 can only translate. docs/import.md lists what can be imported.
    """
    from nmt_cli.files import check_overwrite, foreign_names
    from nmt_cli.terminal.console import say

    target = out.resolve()  # replace the target of a link, not the link
    check_overwrite(target, force, foreign_names(target, _OWN_FILES, record="about.json"))

    from nmt_cli.importing.read import import_model

    say(import_model(folder, target, source_lang, target_lang))
