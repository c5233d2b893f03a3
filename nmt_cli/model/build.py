"""Builds the model that the [model] table of a recipe describes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.bytenet import ByteNet
from nmt_cli.model.conv import Conv
from nmt_cli.model.decoder_only import DecoderOnly
from nmt_cli.model.rnn import Rnn
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe import schema as recipe


def build_model(config: recipe.Model, source_vocab: int, target_vocab: int) -> Seq2Seq:
    """A model with initial weights. Under `torch.device("meta")` it has no memory for weights, only their shapes."""
    families: dict[type, Callable[..., Seq2Seq]]
    families = {
        recipe.Transformer: Transformer,
        recipe.Rnn: Rnn,
        recipe.Conv: Conv,
        recipe.ByteNet: ByteNet,
        recipe.DecoderOnly: DecoderOnly,
    }
    with _NoRandomValues() if torch.get_default_device().type == "meta" else nullcontext():
        return families[type(config)](config, source_vocab, target_vocab)


class _NoRandomValues(TorchFunctionMode):
    """Draws no initial weights. To draw normal numbers on the meta device, torch imports its compiler (2 seconds)."""

    _skipped = (nn.init.normal_, Tensor.normal_)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func in self._skipped:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))
