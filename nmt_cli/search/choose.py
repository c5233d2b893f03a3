"""Choose the engine that translates, and start its workers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec

from nmt_cli.errors import NmtError, quoted
from nmt_cli.parallel import cores
from nmt_cli.recipe.schema import not_exportable
from nmt_cli.search.contract import Engine, SearchOptions
from nmt_cli.search.ct2_engine import CTranslate2Engine, unsupported
from nmt_cli.search.workers import Workers
from nmt_cli.store.folders import CTRANSLATE2_TYPES, ModelFolder


@dataclass(frozen=True)
class EngineOptions:
    """The options --engine, --type, --device, --workers and --verify. "auto" and 0 leave the choice to nmt."""

    name: str = "auto"
    type: str = "auto"
    device: str = "auto"
    workers: int = 0
    verify: bool = True  # compare the checksums of the weights before they are loaded


def start_workers(models: Sequence[ModelFolder], wanted: EngineOptions, use_ctranslate2: bool) -> Workers:
    """Load the models into an engine and start its workers. Several models are an ensemble."""
    with ThreadPoolExecutor(1) as thread:  # reads the weights while the libraries of the engine are imported
        advice = "; or use --engine torch"  # commands without --engine have called check_engine_files before
        verified = models if wanted.verify else []
        checked = [thread.submit(check_engine_files, model, use_ctranslate2, advice) for model in verified]
        if use_ctranslate2:
            has_cuda = _has_cuda()
        else:
            from nmt_cli.search.torch_engine import TorchEngine
        for check in checked:
            check.result()
    engine: Engine
    if use_ctranslate2:
        (model,) = models
        device = ("cuda" if has_cuda else "cpu") if wanted.device == "auto" else wanted.device
        count = wanted.workers or (1 if device == "cuda" else cores())
        engine = CTranslate2Engine(model.ctranslate2, model.vocab, wanted.type, device, count)
    else:
        count = wanted.workers or (cores() if wanted.device in ("auto", "cpu") else 1)
        engine = TorchEngine([model.path for model in models], wanted.device, verify=False)
        if engine.device.type != "cpu":
            count = 1
    return Workers(engine, count, processes=not use_ctranslate2)


def check_engine_files(model: ModelFolder, use_ctranslate2: bool, advice: str = "") -> None:
    """Compare the checksums of the files that the engine reads. `advice` ends the hint for a damaged export."""
    if use_ctranslate2:
        model.check_ctranslate2(advice)
    else:
        model.check_weights()


def uses_ctranslate2(models: Sequence[ModelFolder], search: SearchOptions, wanted: EngineOptions) -> bool:
    """Whether CTranslate2 can do the search and the user does not want another engine. An NmtError says why CTranslate2
    cannot do the search, if the user wants it."""
    types = ("auto", *CTRANSLATE2_TYPES)
    if wanted.type not in types:
        raise NmtError(f"--type {wanted.type} is not one of {', '.join(types)}", "auto keeps the exported type")
    needs_type = wanted.type not in ("auto", "float32")
    if wanted.name == "torch":
        if needs_type:
            raise NmtError(
                f"the torch engine does not support --type {wanted.type}", "use --engine ctranslate2, or omit --type"
            )
        return False
    model = models[0]
    setting, option, hint = not_exportable(model.recipe.model), unsupported(search), "use --engine torch"
    if needs_type:
        hint = f"omit --type {wanted.type}: only the ctranslate2 engine supports it"
    if setting:
        obstacle = f"CTranslate2 does not support {setting}"
    elif len(models) > 1 or option:
        obstacle = f"the ctranslate2 engine does not support {'--ensemble' if len(models) > 1 else option}"
    elif wanted.device in ("mps", "xpu"):
        obstacle = f"CTranslate2 does not support --device {wanted.device}"
    elif not model.ctranslate2.is_dir():
        obstacle, hint = "the model is not exported to CTranslate2", f"nmt export {quoted(model.path)} --to ctranslate2"
    elif not find_spec("ctranslate2"):
        obstacle, hint = "CTranslate2 is not installed", "pip install ctranslate2"
    elif wanted.device == "cuda" and not _has_cuda():  # torch may have one, such as a GPU of AMD
        obstacle = "CTranslate2 finds no CUDA device on this machine"
        hint = f"use --device cpu, or {hint}"
    else:
        return True
    if wanted.name == "ctranslate2" or needs_type:
        raise NmtError(obstacle, hint)
    return False


def _has_cuda() -> bool:
    import ctranslate2

    return bool(ctranslate2.get_cuda_device_count())
