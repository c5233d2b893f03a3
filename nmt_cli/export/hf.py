"""Convert a trained Transformer to a folder for Hugging Face's transformers: `nmt export --to hf`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from nmt_cli import __version__
from nmt_cli.errors import NmtError
from nmt_cli.files import new_folder, write_record
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe import schema as recipe
from nmt_cli.store.checkpoint import Trained, save_tensors
from nmt_cli.store.folders import ModelFiles, made_from
from nmt_cli.text.lines import write_text
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK, pieces_of

_SUPPORTED = (
    'train with model.norm = "post" and model.positions = "sinusoidal" (MarianMT), or with model.norm = "pre" and '
    'model.tie = "all" (Blenderbot); see docs/translate.md'
)


def to_hf(trained: Trained, folder: Path) -> None:
    """Write a folder that transformers can load: configuration, weights and a Marian tokenizer.

    transformers itself need not be installed. A post-norm model becomes a MarianMT model. MarianMT's sinusoidal
    positions have all sines before all cosines, so the dimensions of the model are reordered. A pre-norm model becomes
    a Blenderbot model, whose learned positions can hold any table.
    """
    model, config = trained.model, trained.recipe.model
    if setting := recipe.not_exportable(config):
        hint = 'only model.family = "transformer" with model.experts = 0 can be exported'
        raise NmtError(f"transformers has no architecture for {setting}", hint)
    assert isinstance(model, Transformer) and isinstance(config, recipe.Transformer)
    marian = config.norm == "post"
    if config.positions_join == "concat":
        raise NmtError('transformers has no architecture for model.positions_join = "concat"', _SUPPORTED)
    if marian and config.positions != "sinusoidal":
        problem = f'model.norm = "post" with model.positions = "{config.positions}"'
        raise NmtError(f"transformers has no architecture for {problem}", _SUPPORTED)
    if not marian and config.tie != "all":
        problem = f'model.norm = "pre" with model.tie = "{config.tie}"'
        raise NmtError(f"transformers has no architecture for {problem}", _SUPPORTED)
    width = torch.arange(config.dim)
    order = torch.cat([width[0::2], width[1::2]]) if marian else width
    tensors = {name: tensor.contiguous().clone() for name, tensor in _tensors(model, config, order)}
    pad, unk, bos, eos = (trained.vocab.target.id_to_piece(index) for index in (PAD, UNK, BOS, EOS))
    settings = {
        "architectures": ["MarianMTModel" if marian else "BlenderbotForConditionalGeneration"],
        "model_type": "marian" if marian else "blenderbot",
        "d_model": config.dim,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.ff,
        "decoder_ffn_dim": config.ff,
        "activation_function": {"swish": "silu"}.get(config.activation, config.activation),
        "max_position_embeddings": config.max_positions,
        "vocab_size": trained.vocab.sizes[0],
        "decoder_vocab_size": trained.vocab.sizes[1],
        "share_encoder_decoder_embeddings": config.tie == "all",
        "tie_word_embeddings": config.tie != "none",
        "scale_embedding": True,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        "dropout": config.dropout,
    }
    translate = trained.recipe.translate
    generation = {
        **{key: settings[key] for key in settings if key.endswith("_token_id")},
        "num_beams": translate.beam,
        "length_penalty": translate.alpha,
        "max_length": config.max_positions,
        "bad_words_ids": [[PAD], [UNK]],
    }
    separate = not trained.vocab.joint
    tokenizer = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    tokenizer |= {"source_lang": trained.vocab.source_lang, "target_lang": trained.vocab.target_lang}
    tokenizer |= {"pad_token": pad, "unk_token": unk, "eos_token": eos, "bos_token": bos}
    files = {"config.json": settings, "generation_config.json": generation, "tokenizer_config.json": tokenizer}
    sides = {"source": trained.vocab.source, "target": trained.vocab.target}
    for side, processor in sides.items():
        name = "target_vocab.json" if side == "target" and separate else "vocab.json"
        files[name] = {piece: index for index, piece in enumerate(pieces_of(processor))}
    with new_folder(folder) as temporary:
        save_tensors(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
        for name, table in files.items():
            write_text(temporary / name, json.dumps(table, ensure_ascii=False, indent=1) + "\n")
        for side, processor in sides.items():
            (temporary / f"{side}.spm").write_bytes(processor.serialized_model_proto())
        about = {"nmt": __version__, "format": "hf", "model": made_from(trained.about)}
        write_record(ModelFiles(temporary).about, about)


def _tensors(model: Transformer, config: recipe.Transformer, order: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensors with the names of transformers, and with the dimensions of the model in the given order."""
    if model.source_embedding is not None:
        yield "model.encoder.embed_tokens.weight", model.source_embedding.weight[:, order]
        yield "model.decoder.embed_tokens.weight", model.target_embedding.weight[:, order]
    else:
        yield "model.shared.weight", model.target_embedding.weight[:, order]
    if config.tie == "none":
        yield "lm_head.weight", model.output_weight[:, order]
    yield "final_logits_bias", torch.zeros(1, len(model.output_weight))
    for side, positions in (("encoder", model.source_positions), ("decoder", model.target_positions)):
        table = positions(0, config.max_positions, model.output_weight)
        yield f"model.{side}.embed_positions.weight", table[:, order]
        for index, layer in enumerate(getattr(model, side)):
            name = f"model.{side}.layers.{index}"
            yield from _reads(f"{name}.self_attn", ("q_proj", "k_proj", "v_proj"), layer.attention.qkv, order)
            yield from _writes(f"{name}.self_attn.out_proj", layer.attention.output, order)
            yield from _writes(f"{name}.self_attn_layer_norm", layer.around_attention.norm, order)
            if side == "decoder":
                yield from _reads(f"{name}.encoder_attn", ("q_proj",), layer.cross.query, order)
                yield from _reads(f"{name}.encoder_attn", ("k_proj", "v_proj"), layer.cross.keys_values, order)
                yield from _writes(f"{name}.encoder_attn.out_proj", layer.cross.output, order)
                yield from _writes(f"{name}.encoder_attn_layer_norm", layer.around_cross.norm, order)
            yield from _reads(name, ("fc1",), layer.feed_forward.inner, order)
            yield from _writes(f"{name}.fc2", layer.feed_forward.outer, order)
            yield from _writes(f"{name}.final_layer_norm", layer.around_feed_forward.norm, order)
        if config.norm == "pre":
            yield from _writes(f"model.{side}.layer_norm", getattr(model, f"{side}_norm"), order)


def _reads(name: str, parts: tuple[str, ...], layer: nn.Linear, order: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A layer whose input has the dimensions of the model. A fused layer is split into its parts."""
    for part, weight, bias in zip(parts, layer.weight.chunk(len(parts)), layer.bias.chunk(len(parts)), strict=True):
        yield f"{name}.{part}.weight", weight[:, order]
        yield f"{name}.{part}.bias", bias


def _writes(name: str, layer: nn.Linear | nn.LayerNorm, order: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A layer whose output has the dimensions of the model."""
    yield f"{name}.weight", layer.weight[order]
    yield f"{name}.bias", layer.bias[order]
