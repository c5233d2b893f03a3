"""Convert a trained Transformer to a CTranslate2 model, for `nmt export --to ctranslate2` and after `nmt train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nmt_cli.errors import NmtError
from nmt_cli.files import new_folder
from nmt_cli.model.transformer import DecoderLayer, EncoderLayer, Residual, Transformer
from nmt_cli.recipe import schema as recipe
from nmt_cli.store.checkpoint import Trained
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK, pieces_of

_NEVER = -1e4  # a logit whose probability is 0, and a number in float16 too


def to_ctranslate2(trained: Trained, folder: Path, quantization: str | None = None) -> None:
    """Weight by weight; the position table is ours, for CTranslate2's own sinusoid is another."""
    import ctranslate2
    from ctranslate2.specs import common_spec, transformer_spec

    model, config = trained.model, trained.recipe.model
    if not isinstance(model, Transformer) or not isinstance(config, recipe.Transformer):
        raise NmtError(
            f'CTranslate2 has no models of family "{config.family}", only Transformers',
            "nmt translate uses the torch engine for it",
        )
    activation = {"relu": "RELU", "gelu": "GELU", "swish": "SWISH"}[config.activation]
    spec = transformer_spec.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm == "pre",
        activation=getattr(common_spec.Activation, activation),
        alignment_layer=-1,
        alignment_heads=config.heads,
    )
    tensors = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    source, target = tensors.get("source_embedding.weight", tensors["target_embedding.weight"]), model.target_embedding
    spec.encoder.embeddings[0].weight = _array(source)
    spec.decoder.embeddings.weight = _array(target.weight)
    spec.decoder.projection.weight = _array(model.output_weight)
    no_words = torch.zeros(len(model.output_weight))
    no_words[[PAD, BOS]] = _NEVER  # as model/base.py has it in `forbid_pad_and_bos`
    spec.decoder.projection.bias = _array(no_words)
    for side, positions in ((spec.encoder, model.source_positions), (spec.decoder, model.target_positions)):
        side.position_encodings.encodings = _array(positions(0, config.max_positions, target.weight.cpu()))
    layer: Any  # of a ModuleList, which does not say of what
    for made, layer in zip(spec.encoder.layer, model.encoder, strict=True):
        _linear(made.self_attention.linear[0], layer.attention.qkv)
        _linear(made.self_attention.linear[1], layer.attention.output)
        _norm(made.self_attention.layer_norm, layer.around_attention)
        _feed_forward(made.ffn, layer)
    for made, layer in zip(spec.decoder.layer, model.decoder, strict=True):
        _linear(made.self_attention.linear[0], layer.attention.qkv)
        _linear(made.self_attention.linear[1], layer.attention.output)
        _norm(made.self_attention.layer_norm, layer.around_attention)
        _linear(made.attention.linear[0], layer.cross.query)
        _linear(made.attention.linear[1], layer.cross.keys_values)
        _linear(made.attention.linear[2], layer.cross.output)
        _norm(made.attention.layer_norm, layer.around_cross)
        _feed_forward(made.ffn, layer)
    if config.norm == "pre":
        norm: Any  # not the identity that a post-norm model has
        for made, norm in (
            (spec.encoder.layer_norm, model.encoder_norm),
            (spec.decoder.layer_norm, model.decoder_norm),
        ):
            made.gamma, made.beta = _array(norm.weight), _array(norm.bias)
    pieces = {side: pieces_of(sp) for side, sp in _sides(trained)}
    spec.register_source_vocabulary(pieces["source"])
    spec.register_target_vocabulary(pieces["target"])
    spec.config.unk_token, spec.config.eos_token = pieces["target"][UNK], pieces["target"][EOS]
    spec.config.bos_token = spec.config.decoder_start_token = pieces["target"][BOS]
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.validate()
    spec.optimize(quantization=quantization)
    with new_folder(folder) as aside:
        spec.save(str(aside))
    assert ctranslate2.contains_model(str(folder))


def _sides(trained: Trained) -> tuple:
    return (("source", trained.vocab.source), ("target", trained.vocab.target))


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().float().contiguous().numpy()


def _linear(made: Any, layer: nn.Linear) -> None:
    made.weight, made.bias = _array(layer.weight), _array(layer.bias)


def _norm(made: Any, around: Residual) -> None:
    made.gamma, made.beta = _array(around.norm.weight), _array(around.norm.bias)


def _feed_forward(made: Any, layer: EncoderLayer | DecoderLayer) -> None:
    _linear(made.linear_0, layer.feed_forward.inner)
    _linear(made.linear_1, layer.feed_forward.outer)
    _norm(made.layer_norm, layer.around_feed_forward)
