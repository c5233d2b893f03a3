"""Which engine translates, and how many of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.errors import NmtError
from nmt_cli.parallel import cores
from nmt_cli.search.contract import Engine, SearchOptions
from nmt_cli.search.ct2_engine import TYPES, CTranslate2Engine, unable
from nmt_cli.search.workers import Workers
from nmt_cli.store.model_folder import ModelFolder


@dataclass(frozen=True)
class EngineOptions:
    """What the user asked for; auto and 0 leave the choice to us."""

    name: str = "auto"
    type: str = "auto"
    device: str = "auto"
    workers: int = 0


@contextmanager
def start_workers(
    folder: ModelFolder, ensemble: tuple[Path, ...], options: SearchOptions, wish: EngineOptions
) -> Iterator[Workers]:
    if wish.type not in TYPES:
        raise NmtError(f"--type {wish.type} is none of {', '.join(TYPES)}", "auto keeps what was exported")
    fast = uses_ctranslate2(folder, len(ensemble) + 1, options, wish)
    engine: Engine
    if fast:
        device = _device(wish.device)
        count = wish.workers or (1 if device == "cuda" else cores())
        engine = CTranslate2Engine(folder.ctranslate2, folder.vocab, wish.type, device, count)
    else:
        from nmt_cli.search.torch_engine import TorchEngine

        count = wish.workers or (1 if wish.device in ("cuda", "mps") else cores())
        engine = TorchEngine([folder.path, *ensemble], wish.device, threads=1 if count > 1 else 0)
        if engine.device.type != "cpu":
            count = 1
    workers = Workers(engine, count, processes=not fast)
    try:
        yield workers
    finally:
        workers.close()


def uses_ctranslate2(folder: ModelFolder, models: int, options: SearchOptions, wish: EngineOptions) -> bool:
    """Does CTranslate2 translate with these options? An error if the user insists on CTranslate2 and it cannot."""
    if wish.name == "torch":
        if wish.type not in ("auto", "float32"):
            raise NmtError(f"the torch engine has no --type {wish.type}", "--engine ctranslate2, or leave --type out")
        return False
    family = folder.recipe.model.family
    obstacle = "" if family == "transformer" else f'that it has no models of family "{family}"'
    obstacle = obstacle or ("" if folder.ctranslate2.is_dir() else "that the model is not exported")
    obstacle = obstacle or unable(options, models) or ("the device mps" if wish.device == "mps" else "")
    if not obstacle:
        return True
    typed = wish.type not in ("auto", "float32")
    if wish.name == "ctranslate2" or typed:
        hint = "leave --type out, and the torch engine can" if typed else "--engine torch can"
        if "exported" in obstacle:
            hint = f"nmt export {folder.path} --to ctranslate2"
        raise NmtError(f"the ctranslate2 engine cannot be used: what stands against it is {obstacle}", hint)
    return False


def _device(wanted: str) -> str:
    """Of CTranslate2."""
    import ctranslate2

    cuda = ctranslate2.get_cuda_device_count() > 0
    if wanted == "cuda" and not cuda:
        raise NmtError("the device cuda is not there on this machine, as CTranslate2 sees it", "usable: cpu")
    return ("cuda" if cuda else "cpu") if wanted == "auto" else wanted
