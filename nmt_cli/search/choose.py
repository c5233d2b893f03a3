"""Choose the engine that translates, and start its workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.errors import NmtError
from nmt_cli.parallel import cores
from nmt_cli.search.contract import Engine, SearchOptions
from nmt_cli.search.ct2_engine import CTranslate2Engine, installed, unsupported
from nmt_cli.search.workers import Workers
from nmt_cli.store.model_folder import CTRANSLATE2_TYPES, ModelFolder


@dataclass(frozen=True)
class EngineOptions:
    """The options --engine, --type, --device and --workers. "auto" and 0 leave the choice to `start_workers`."""

    name: str = "auto"
    type: str = "auto"
    device: str = "auto"
    workers: int = 0


@contextmanager
def start_workers(
    folder: ModelFolder, ensemble: tuple[Path, ...], search: SearchOptions, wanted: EngineOptions
) -> Iterator[Workers]:
    """The workers of an engine that supports the search. The engine is CTranslate2 where possible, torch otherwise."""
    types = ("auto", *CTRANSLATE2_TYPES)
    if wanted.type not in types:
        raise NmtError(f"--type {wanted.type} is not one of {', '.join(types)}", "auto keeps the exported type")
    fast = uses_ctranslate2(folder, len(ensemble) + 1, search, wanted)
    engine: Engine
    if fast:
        device = _ctranslate2_device(wanted.device)
        count = wanted.workers or (1 if device == "cuda" else cores())
        engine = CTranslate2Engine(folder.ctranslate2, folder.vocab, wanted.type, device, count)
    else:
        from nmt_cli.search.torch_engine import TorchEngine

        count = wanted.workers or (1 if wanted.device in ("cuda", "mps") else cores())
        engine = TorchEngine([folder.path, *ensemble], wanted.device, threads=1 if count > 1 else 0)
        if engine.device.type != "cpu":
            count = 1
    workers = Workers(engine, count, processes=not fast)
    try:
        yield workers
    finally:
        workers.close()


def uses_ctranslate2(folder: ModelFolder, models: int, search: SearchOptions, wanted: EngineOptions) -> bool:
    """Whether CTranslate2 translates. An error, if the user demands CTranslate2 and it cannot. `models`: how many."""
    needs_type = wanted.type not in ("auto", "float32")
    if wanted.name == "torch":
        if needs_type:
            raise NmtError(
                f"the torch engine does not support --type {wanted.type}", "use --engine ctranslate2, or omit --type"
            )
        return False
    family, option, hint = folder.recipe.model.family, unsupported(search), "use --engine torch"
    if needs_type:
        hint = f"omit --type {wanted.type}: only the ctranslate2 engine supports it"
    if family != "transformer":
        obstacle = f'CTranslate2 does not support model.family = "{family}"'
    elif models > 1 or option:
        obstacle = f"the ctranslate2 engine does not support {'--ensemble' if models > 1 else option}"
    elif wanted.device == "mps":
        obstacle = "CTranslate2 does not support --device mps"
    elif not folder.ctranslate2.is_dir():
        obstacle, hint = "the model is not exported to CTranslate2", f"nmt export {folder.path} --to ctranslate2"
    elif not installed():
        obstacle, hint = "CTranslate2 is not installed", "pip install 'nmt-cli[fast]'"
    else:
        return True
    if wanted.name == "ctranslate2" or needs_type:
        raise NmtError(obstacle, hint)
    return False


def _ctranslate2_device(wanted: str) -> str:
    import ctranslate2

    has_cuda = ctranslate2.get_cuda_device_count() > 0
    if wanted == "cuda" and not has_cuda:
        raise NmtError("CTranslate2 finds no CUDA device on this machine", "use --device cpu")
    return ("cuda" if has_cuda else "cpu") if wanted == "auto" else wanted
