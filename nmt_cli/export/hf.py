"""Convert a trained Transformer to a folder for Hugging Face's transformers: `nmt export --to hf`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK, Vocab, pieces_of

_SUPPORTED = (
    'train with model.norm = "post" and model.positions = "sinusoidal" (MarianMT), or with model.norm = "pre" and '
    'model.tie = "all" (Blenderbot); see docs/translate.md'
)
_ARCHITECTURES = {
    "marian": "MarianMTModel",
    "blenderbot": "BlenderbotForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "m2m_100": "M2M100ForConditionalGeneration",
}


def to_hf(trained: Trained, folder: Path) -> None:
    """Write a folder that transformers can load: configuration, weights and a Marian tokenizer.

    transformers itself need not be installed. A post-norm model becomes a MarianMT model. MarianMT's sinusoidal
    positions have all sines before all cosines, so the dimensions of the model are reordered. A pre-norm model becomes
    a Blenderbot model, whose learned positions can hold any table. An imported model becomes what it was, with the ids
    of the original. The tokenizers of M2M-100 and mBART-50 are not written: those of the original fit.
    """
    model, config = trained.model, trained.recipe.model
    if setting := recipe.not_exportable(config):
        hint = 'only model.family = "transformer" with model.experts = 0 can be exported'
        raise NmtError(f"transformers has no architecture for {setting}", hint)
    assert isinstance(model, Transformer) and isinstance(config, recipe.Transformer)
    marian = config.norm == "post"
    kind = "marian" if marian else "mbart" if config.embedding_norm else "blenderbot"
    if kind == "blenderbot" and config.positions == "timing" and config.first_position == 2 and not config.output_bias:
        kind = "m2m_100"
    if config.positions_join == "concat":
        raise NmtError('transformers has no architecture for model.positions_join = "concat"', _SUPPORTED)
    if marian and config.embedding_norm:
        problem = 'model.norm = "post" with model.embedding_norm = true'
        raise NmtError(f"transformers has no architecture for {problem}", _SUPPORTED)
    if marian and config.positions not in ("sinusoidal", "timing"):
        problem = f'model.norm = "post" with model.positions = "{config.positions}"'
        raise NmtError(f"transformers has no architecture for {problem}", _SUPPORTED)
    if not marian and config.tie != "all":
        problem = f'model.norm = "pre" with model.tie = "{config.tie}"'
        raise NmtError(f"transformers has no architecture for {problem}", _SUPPORTED)
    width = torch.arange(config.dim)
    order = torch.cat([width[0::2], width[1::2]]) if marian and config.positions == "sinusoidal" else width
    imported, target = trained.vocab.imported, trained.vocab.target
    rows = [_exported_ids(trained.vocab, side) for side in (0, 1)]
    tensors = {name: tensor.contiguous().clone() for name, tensor in _tensors(model, config, kind, order, rows)}
    ids = {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS, "start": BOS}
    names = {f"{name}_token": target.id_to_piece(index) for name, index in ids.items() if name != "start"}
    if imported:
        original = imported.original_ids(1)
        ids = {"pad": original[PAD], "unk": original[UNK], "bos": original[EOS], "eos": original[EOS]}
        ids["start"] = imported.start if imported.start >= 0 else ids["pad"]
        names.pop("bos_token")
        if ids["start"] == ids["eos"] and not torch.equal(*model.target_embedding.weight[[BOS, EOS]]):
            raise NmtError(
                "transformers starts this model with </s>, but training has made BOS another vector than </s>",
                "nmt translate and CTranslate2 use the model as it is",
            )
    settings = {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "d_model": config.dim,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.ff,
        "decoder_ffn_dim": config.ff,
        "activation_function": {"swish": "silu"}.get(config.activation, config.activation),
        "max_position_embeddings": config.max_positions,
        "vocab_size": len(rows[0]),
        "decoder_vocab_size": len(rows[1]),
        "share_encoder_decoder_embeddings": config.tie == "all",
        "tie_word_embeddings": config.tie != "none",
        "scale_embedding": config.scale_embeddings,
        "pad_token_id": ids["pad"],
        "bos_token_id": ids["bos"],
        "eos_token_id": ids["eos"],
        "decoder_start_token_id": ids["start"],
        "forced_eos_token_id": None,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.ff_dropout,
    }
    translate = trained.recipe.translate
    generation = {
        **{key: settings[key] for key in settings if key.endswith("_token_id")},
        "num_beams": translate.beam,
        "length_penalty": translate.alpha,
        "max_length": config.max_positions,
        "bad_words_ids": [[ids["pad"]], [ids["unk"]]],
    }
    if imported and imported.target_prefix:
        generation["forced_bos_token_id"] = imported.original_ids(1)[imported.target_prefix[0]]
    separate = not trained.vocab.joint
    tokenizer = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    tokenizer |= {"source_lang": trained.vocab.source_lang, "target_lang": trained.vocab.target_lang}
    tokenizer |= names
    files: dict[str, dict[str, Any]] = {"config.json": settings, "generation_config.json": generation}
    sides = {"source": trained.vocab.source, "target": target} if kind in ("marian", "blenderbot") else {}
    if sides:
        files["tokenizer_config.json"] = tokenizer
    for number, (side, processor) in enumerate(sides.items()):
        name = "target_vocab.json" if side == "target" and separate else "vocab.json"
        pieces = pieces_of(processor)
        files[name] = {pieces[PAD if imported and index == BOS else index]: n for n, index in enumerate(rows[number])}
    with new_folder(folder) as temporary:
        save_tensors(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
        for name, table in files.items():
            write_text(temporary / name, json.dumps(table, ensure_ascii=False, indent=1) + "\n")
        for side, processor in sides.items():
            (temporary / f"{side}.spm").write_bytes(processor.serialized_model_proto())
        about = {"nmt": __version__, "format": "hf", "model": made_from(trained.about)}
        write_record(ModelFiles(temporary).about, about)


def _exported_ids(vocab: Vocab, side: int) -> list[int]:
    """The ids of nmt in the order of the exported ids. An imported vocabulary goes back to the order of the original.

    The original has no BOS. If its decoder starts with PAD, BOS takes the place of PAD, which has no other use.
    """
    if vocab.imported is None:
        return list(range(vocab.sizes[side]))
    original = vocab.imported.original_ids(side)
    ids = {old: index for index, old in enumerate(original) if index != BOS}
    if vocab.imported.start in (-1, vocab.imported.pad):
        ids[original[PAD]] = BOS
    return [ids[old] for old in range(len(ids))]


def _tensors(
    model: Transformer, config: recipe.Transformer, kind: str, order: Tensor, rows: list[list[int]]
) -> Iterator[tuple[str, Tensor]]:
    """The tensors with the names of transformers. `order` is that of the dimensions of the model, `rows` of the ids."""
    if model.source_embedding is not None:
        yield "model.encoder.embed_tokens.weight", model.source_embedding.weight[rows[0]][:, order]
        yield "model.decoder.embed_tokens.weight", model.target_embedding.weight[rows[1]][:, order]
    else:
        yield "model.shared.weight", model.target_embedding.weight[rows[1]][:, order]
    if config.tie == "none":
        yield "lm_head.weight", model.output_weight[rows[1]][:, order]
    if kind != "m2m_100":
        bias = torch.zeros(len(model.output_weight)) if model.output_bias is None else model.output_bias
        yield "final_logits_bias", bias[rows[1]][None]
    for side, positions, embedding_norm in (
        ("encoder", model.source_positions, model.source_embedding_norm),
        ("decoder", model.target_positions, model.target_embedding_norm),
    ):
        table = positions(0, config.max_positions, model.output_weight)[:, order]
        if kind == "mbart":
            table = torch.cat([table.new_zeros(2, config.dim), table])  # mBART's first position is 2
        if kind != "m2m_100":
            yield f"model.{side}.embed_positions.weight", table
        if embedding_norm is not None:
            yield from _writes(f"model.{side}.layernorm_embedding", embedding_norm, order)
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
