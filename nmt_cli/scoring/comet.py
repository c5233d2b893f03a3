"""COMET, for `nmt score --metrics comet`. nmt downloads nothing: the user installs unbabel-comet and its weights."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from nmt_cli.errors import NmtError

if TYPE_CHECKING:  # commands/score.py imports this module for MODEL, and `nmt --help` must start fast
    from nmt_cli.scoring.texts import Texts

MODEL = "Unbabel/wmt22-comet-da"


def load_comet(model: str) -> Any:
    """COMET's own model object, by the path of a checkpoint or by a name in the cache of the Hugging Face hub."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            from comet import download_model, load_from_checkpoint
    except ImportError:
        raise NmtError("COMET is not installed", "pip install unbabel-comet, or leave comet out of --metrics") from None
    try:
        with contextlib.redirect_stdout(sys.stderr):
            path = model if model.endswith(".ckpt") else download_model(model, local_files_only=True)
            return load_from_checkpoint(path, local_files_only=True)
    except Exception as error:  # the hub, Lightning and YAML raise many types, and one hint answers all of them
        problem = str(error).splitlines()[0] if str(error) else repr(error)
        hint = "comet-score --model NAME downloads weights once; --comet-model takes a name or the path of a .ckpt"
        raise NmtError(f"the COMET weights {model} cannot be loaded: {problem}", hint) from None


def comet_scores(model: Any, model_name: str, texts: Texts) -> tuple[str, dict[str, list[float]]]:
    """The signature, and the score of every line of every system, against the first reference."""
    from importlib import metadata

    assert texts.source is not None
    references = next(iter(texts.references.values()))
    scores = {}
    for system, lines in texts.systems.items():
        triples = [
            {"src": source, "mt": line, "ref": reference}
            for source, line, reference in zip(texts.source, lines, references, strict=True)
        ]
        with contextlib.redirect_stdout(sys.stderr):
            # gpus=1 with "auto" means a GPU if the machine has one, else the CPU.
            prediction = model.predict(triples, batch_size=16, gpus=1, accelerator="auto", progress_bar=False)
        scores[system] = list(prediction.scores)
    return f"nrefs:1|model:{model_name}|version:{metadata.version('unbabel-comet')}", scores
