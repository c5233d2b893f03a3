"""Convert a trained Transformer to a CTranslate2 model, for `nmt export --to ctranslate2` and after `nmt train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli import __version__
from nmt_cli.errors import NmtError
from nmt_cli.files import new_folder, write_record
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe import schema as recipe
from nmt_cli.store.checkpoint import Trained
from nmt_cli.store.folders import ModelFiles, made_from
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK, pieces_of


def to_ctranslate2(trained: Trained, folder: Path, quantization: str | None = None) -> None:
    """Copy every weight into a CTranslate2 model and write the model to `folder`. None: float32 weights."""
    from ctranslate2.specs import common_spec, transformer_spec

    model, config = trained.model, trained.recipe.model
    if setting := recipe.not_exportable(config):
        hint = "nmt translate uses the torch engine for this model, without an export"
        raise NmtError(f"CTranslate2 does not support {setting}", hint)
    assert isinstance(model, Transformer) and isinstance(config, recipe.Transformer)
    spec = transformer_spec.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm == "pre",
        activation=getattr(common_spec.Activation, config.activation.upper()),
        alignment_layer=-1,
        alignment_heads=config.heads,
        layernorm_embedding=config.embedding_norm,
    )
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = config.scale_embeddings
    target = model.target_embedding.weight
    words = {spec.encoder: model.source_table.weight, spec.decoder: target}
    # Store nmt's table of positions. CTranslate2 would compute another sinusoid.
    places = {
        side: positions(0, config.max_positions, target.cpu())
        for side, positions in ((spec.encoder, model.source_positions), (spec.decoder, model.target_positions))
    }
    if model.join is not None:  # W [e; p] + b is the sum of W_e e and W_p p + b
        of_words, of_places = model.join.weight.cpu().chunk(2, 1)
        words = {side: F.linear(table.cpu(), of_words) for side, table in words.items()}
        places = {side: F.linear(table.cpu(), of_places, model.join.bias.cpu()) for side, table in places.items()}
    spec.encoder.embeddings[0].weight = _array(words[spec.encoder])
    spec.decoder.embeddings.weight = _array(words[spec.decoder])
    spec.decoder.projection.weight = _array(model.output_weight)
    bias = torch.zeros(len(model.output_weight)) if model.output_bias is None else model.output_bias.detach().clone()
    bias[[PAD, BOS]] = -1e4  # probability 0, as by forbid_pad_and_bos of model/base.py; float16 can represent it
    spec.decoder.projection.bias = _array(bias)
    layer: Any  # nn.ModuleList does not say the type of its modules
    norm: Any  # a LayerNorm in a pre-norm model, nn.Identity in a post-norm model
    for side, layers, norm, embedding_norm in (
        (spec.encoder, model.encoder, model.encoder_norm, model.source_embedding_norm),
        (spec.decoder, model.decoder, model.decoder_norm, model.target_embedding_norm),
    ):
        if embedding_norm is not None:
            _norm(side.layernorm_embedding, embedding_norm)
        side.position_encodings.encodings = _array(places[side])
        for layer_spec, layer in zip(side.layer, layers, strict=True):
            _linear(layer_spec.self_attention.linear[0], layer.attention.qkv)
            _linear(layer_spec.self_attention.linear[1], layer.attention.output)
            _norm(layer_spec.self_attention.layer_norm, layer.around_attention.norm)
            if side is spec.decoder:
                _linear(layer_spec.attention.linear[0], layer.cross.query)
                _linear(layer_spec.attention.linear[1], layer.cross.keys_values)
                _linear(layer_spec.attention.linear[2], layer.cross.output)
                _norm(layer_spec.attention.layer_norm, layer.around_cross.norm)
            _linear(layer_spec.ffn.linear_0, layer.feed_forward.inner)
            _linear(layer_spec.ffn.linear_1, layer.feed_forward.outer)
            _norm(layer_spec.ffn.layer_norm, layer.around_feed_forward.norm)
        if config.norm == "pre":
            _norm(side.layer_norm, norm)
    source_pieces, target_pieces = pieces_of(trained.vocab.source), pieces_of(trained.vocab.target)
    spec.register_source_vocabulary(source_pieces)
    spec.register_target_vocabulary(target_pieces)
    spec.config.unk_token, spec.config.eos_token = target_pieces[UNK], target_pieces[EOS]
    spec.config.bos_token = spec.config.decoder_start_token = target_pieces[BOS]
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.validate()
    spec.optimize(quantization=quantization)
    with new_folder(folder) as temporary:
        spec.save(str(temporary))
        about = {"nmt": __version__, "format": "ctranslate2", "model": made_from(trained.about)}
        write_record(ModelFiles(temporary).about, about)


def _linear(spec: Any, layer: nn.Linear) -> None:
    spec.weight, spec.bias = _array(layer.weight), _array(layer.bias)


def _norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().float().contiguous().numpy()
