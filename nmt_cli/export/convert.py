"""`nmt export`: check the options, then import torch and write the model in the other format."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from nmt_cli.errors import NmtError
from nmt_cli.files import check_overwrite
from nmt_cli.store.folders import CTRANSLATE2_TYPES, find_model


def export_model(model: Path, to: str, out: Path | None, type: str, force: bool) -> Path:
    """Write the model to `out`, or into its own folder, where `nmt translate` finds it. Return the folder."""
    if to == "hf":
        if out is None:
            raise NmtError("--to hf needs a folder to write", "add --out, for example --out my-model-hf")
        if type != "float32":
            raise NmtError("--type is only for --to ctranslate2", "omit --type")
    elif type not in CTRANSLATE2_TYPES:
        types = ", ".join(CTRANSLATE2_TYPES)
        raise NmtError(f"--type {type} is not one of {types}", "float32 is exact, int8 is smallest")
    elif not find_spec("ctranslate2"):
        raise NmtError("CTranslate2 is not installed", "pip install 'nmt-cli[fast]'")
    folder = (out or find_model(model).ctranslate2).resolve()  # replace the target of a link, not the link
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    is_export = "config.json" in names and ("model.bin" in names or "source.spm" in names)
    check_overwrite(folder, force, foreign=[] if is_export else names)

    from nmt_cli.export.ctranslate2 import to_ctranslate2
    from nmt_cli.export.hf import to_hf
    from nmt_cli.store.checkpoint import load_model

    trained = load_model(model)
    if to == "hf":
        to_hf(trained, folder)
    else:
        to_ctranslate2(trained, folder, None if type == "float32" else type)
    return folder
