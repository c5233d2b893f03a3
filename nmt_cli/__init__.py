"""nmt from Python (docs/python.md): nmt_cli.load("runs/demo").translate("I like the green cat.").text

`import nmt_cli` imports nothing heavy. A function imports torch, CTranslate2 or sacrebleu when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from nmt_cli.errors import NmtError

if TYPE_CHECKING:
    from nmt_cli.data.prepare import prepare
    from nmt_cli.inspect.attention import attention
    from nmt_cli.scoring.metrics import score
    from nmt_cli.training.session import train
    from nmt_cli.translate.translator import load

__version__ = "0.2.0"
__all__ = ["NmtError", "__version__", "attention", "load", "prepare", "score", "train"]

_MODULES = {
    "attention": "nmt_cli.inspect.attention",
    "load": "nmt_cli.translate.translator",
    "prepare": "nmt_cli.data.prepare",
    "score": "nmt_cli.scoring.metrics",
    "train": "nmt_cli.training.session",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
