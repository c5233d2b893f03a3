"""Builds the model that the [model] table of a recipe describes."""

from __future__ import annotations

from collections.abc import Callable

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
    return families[type(config)](config, source_vocab, target_vocab)
