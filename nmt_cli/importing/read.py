"""`nmt import`: find out which program wrote a folder, read the model, write it as an nmt model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from nmt_cli.errors import NmtError
from nmt_cli.export.ctranslate2 import to_ctranslate2
from nmt_cli.files import new_folder
from nmt_cli.importing.ctranslate2 import import_ctranslate2, is_ctranslate2
from nmt_cli.importing.foreign import Origin, write_model
from nmt_cli.importing.hf import read_hf
from nmt_cli.importing.marian import is_marian, read_marian
from nmt_cli.store.checkpoint import load_model
from nmt_cli.store.folders import ModelFiles


def import_model(path: Path, folder: Path, source_lang: str | None = None, target_lang: str | None = None) -> str:
    """Import the model in `path` to `folder`, and return a sentence about it. `folder` appears whole or not at all."""
    origin = Origin(path)
    if is_ctranslate2(origin):
        with new_folder(folder) as temporary:
            import_ctranslate2(origin, temporary, source_lang, target_lang)
        return f"CTranslate2 model imported to {folder}, for translation alone"
    if origin.has("config.json"):
        foreign = read_hf(origin, source_lang, target_lang)
    elif is_marian(origin):
        foreign = read_marian(origin, source_lang, target_lang)
    else:
        hint = "a model of Hugging Face transformers has a config.json, one of Marian a model.npz"
        raise NmtError(f"{path} is not a model that can be imported", hint)
    with new_folder(folder) as temporary:
        write_model(foreign, temporary, path)
        trained = load_model(temporary)
        if find_spec("ctranslate2"):
            to_ctranslate2(trained, ModelFiles(temporary).ctranslate2)
    return f"{foreign.format} imported to {folder}"
