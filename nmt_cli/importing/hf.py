"""Read a folder of Hugging Face transformers: MarianMT (OPUS-MT), M2M-100, NLLB and mBART-50."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt_cli.errors import NmtError
from nmt_cli.files import check_regular
from nmt_cli.importing.foreign import Foreign, Origin, Side, by_id, code_of, unsupported
from nmt_cli.importing.pieces import read_segmenter
from nmt_cli.model.transformer import sinusoids
from nmt_cli.store.checkpoint import load_tensors
from nmt_cli.text.languages import language_code

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
_POSITIONS = {"marian": "sinusoidal", "m2m_100": "timing", "mbart": "learned"}
_OFFSET = 2  # M2M-100 and mBART give the first piece the position 2
# Properties that files have and transformers does not read, with the values that transformers assumes.
_FIXED: dict[str, dict[str, bool]] = {
    "marian": {"normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False}
    | {"static_position_embeddings": True, "add_bias_logits": False},
    "m2m_100": {},
    "mbart": {"normalize_before": True, "normalize_embedding": True, "add_final_layer_norm": True}
    | {"static_position_embeddings": False},
}
# The languages of M2M-100 in the order of their ids. transformers 5 writes no file that lists them.
_M2M_LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy "
    "id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru "
    "sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_COPY_AGAIN = "copy the whole folder of the model again"
# nmt export makes pre-norm models Blenderbot.
_USE_THE_RUN = "if nmt export --to hf wrote this folder, use the run that it was exported from; "


@dataclass(frozen=True)
class _Tokenizer:
    source: Side
    target: Side
    joint: bool
    languages: tuple[str, str]  # language codes of source and target
    codes: tuple[str, str] = ("", "")  # the pieces that source and target begin with
    marks: frozenset[str] = field(default_factory=frozenset)


def read_hf(origin: Origin, source_lang: str | None, target_lang: str | None) -> Foreign:
    config = origin.json("config.json")
    kind = config.get("model_type")
    if kind not in _POSITIONS:
        raise unsupported("model_type", kind, _USE_THE_RUN if kind == "blenderbot" else "")
    if "quantization_config" in config:
        raise unsupported("quantization_config", config["quantization_config"])
    for name, value in _FIXED[kind].items():
        if config.get(name, value) != value:
            raise unsupported(name, config[name])
    activation = config.get("activation_function")
    if activation not in _ACTIVATIONS:
        raise unsupported("activation_function", activation)
    for name in ("attention_heads", "ffn_dim"):
        if _number(config, f"encoder_{name}") != _number(config, f"decoder_{name}"):
            raise unsupported(f"decoder_{name}", config[f"decoder_{name}"])
    architecture = _Architecture(origin, config, kind)
    sizes = (_number(config, "vocab_size"), config.get("decoder_vocab_size") or _number(config, "vocab_size"))
    read_tokenizer = _marian_tokenizer if kind == "marian" else _multilingual_tokenizer
    tokenizer = read_tokenizer(origin, sizes, source_lang, target_lang)
    tensors = architecture.tensors(sizes)
    generation = {**config, **origin.json("generation_config.json", needed=False)}
    penalty = generation.get("length_penalty")
    positions = _number(config, "max_position_embeddings")
    settings = {
        "data.source_lang": tokenizer.languages[0],
        "data.target_lang": tokenizer.languages[1],
        "data.normalize": "none",  # SentencePiece normalizes
        "data.clean.max_tokens": min(250, positions - 1),
        "vocab.type": tokenizer.source.segmenter.type,
        "vocab.size": sizes[1] + 1,
        "vocab.joint": tokenizer.joint,
        "model.dim": architecture.dim,
        "model.heads": _number(config, "encoder_attention_heads"),
        "model.ff": architecture.ff,
        "model.encoder_layers": _number(config, "encoder_layers"),
        "model.decoder_layers": _number(config, "decoder_layers"),
        "model.activation": _ACTIVATIONS[activation],
        "model.norm": "post" if kind == "marian" else "pre",
        "model.positions": _POSITIONS[kind],
        "model.first_position": _OFFSET if kind == "m2m_100" else 0,
        "model.max_positions": positions,
        "model.tie": architecture.tie,
        "model.dropout": config.get("dropout", 0.1),
        "model.attention_dropout": config.get("attention_dropout", 0.0),
        "model.ff_dropout": config.get("activation_dropout", 0.0),
        "model.scale_embeddings": config.get("scale_embedding", False),
        "model.embedding_norm": kind == "mbart",
        "model.output_bias": "bias" in tensors,
        "translate.beam": generation.get("num_beams") or 1,
        "translate.alpha": 1.0 if penalty is None else penalty,
    }
    pad, eos, start = (_id(config, name, min(sizes)) for name in ("pad", "eos", "decoder_start"))
    return Foreign(
        format=f"Hugging Face {kind}",
        settings=settings,
        tensors=tensors,
        source=tokenizer.source,
        target=tokenizer.target,
        pad=pad,
        unk=_unknown(tokenizer, origin),
        eos=eos,
        start=start,
        source_code=tokenizer.codes[0],
        target_code=tokenizer.codes[1],
        marks=tokenizer.marks,
    )


def _number(config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise NmtError(f"config.json has no whole number {name}", "config.json is damaged, or of another model")
    return value


def _id(config: dict[str, Any], name: str, size: int) -> int:
    value = config.get(f"{name}_token_id")
    if not isinstance(value, int) or not 0 <= value < size:
        raise unsupported(f"{name}_token_id", value)
    return value


def _unknown(tokenizer: _Tokenizer, origin: Origin) -> int:
    sides = [list(side.pieces) for side in (tokenizer.source, tokenizer.target)]
    ids = {side.index("<unk>") if "<unk>" in side else -1 for side in sides}
    if len(ids) > 1 or -1 in ids:
        raise NmtError(f"the vocabulary of {origin.path} has no piece <unk>, or two ids for it", _COPY_AGAIN)
    return ids.pop()


class _Weights:
    """The tensors of a folder: model.safetensors, or pytorch_model.bin, whole or in shards."""

    def __init__(self, origin: Origin) -> None:
        self.origin, self.tensors = origin, dict[str, Tensor]()
        for name in self._files():
            path = origin.file(name)
            self.tensors |= load_tensors(path) if name.endswith(".safetensors") else _load_pickled(path)

    def _files(self) -> list[str]:
        for name in _WEIGHTS:
            if self.origin.has(name):
                return [name]
            index = f"{name}.index.json"
            if self.origin.has(index):
                shards = self.origin.json(index).get("weight_map")
                if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
                    raise NmtError(f"{self.origin.path / index} has no weight_map", _COPY_AGAIN)
                return sorted(set(shards.values()))
        raise NmtError(f"{self.origin.path} has neither {' nor '.join(_WEIGHTS)}", "nmt import reads no other weights")

    def take(self, name: str, *shape: int) -> Tensor:
        if name not in self.tensors:
            raise NmtError(f"the weights in {self.origin.path} have no tensor {name}", _COPY_AGAIN)
        tensor = self.tensors.pop(name)
        if tuple(tensor.shape) != shape:
            problem = f"the tensor {name} in {self.origin.path} is {tuple(tensor.shape)}, not {shape}"
            raise NmtError(problem, "config.json belongs to another model, or the file is damaged")
        return tensor.float()

    def take_same(self, names: tuple[str, ...], *shape: int) -> Tensor:
        """One tensor that is saved under one or several names."""
        found = [name for name in names if name in self.tensors] or [names[0]]
        first, *others = [self.take(name, *shape) for name in found]
        for name, other in zip(found[1:], others, strict=True):
            if not torch.equal(first, other):
                problem = f"{found[0]} and {name} in {self.origin.path} differ, but config.json says that they are one"
                raise NmtError(problem, "correct tie_word_embeddings in config.json")
        return first

    def check_all_taken(self) -> None:
        if self.tensors:
            more = f" and {len(self.tensors) - 1} more" if len(self.tensors) > 1 else ""
            problem = f"the weights in {self.origin.path} have a tensor {min(self.tensors)}{more} that is not supported"
            raise NmtError(problem, "docs/import.md lists what can be imported")


def _load_pickled(path: Path) -> dict[str, Tensor]:
    """Load pytorch_model.bin without running any code that a pickle may contain."""
    hint = "nmt import loads only plain weights; model.safetensors is the better format"
    try:
        check_regular(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, AttributeError, TypeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise NmtError(f"{path} is not a file of plain weights: {reason}", hint) from None
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise NmtError(f"{path} is not a file of plain weights: it is not a table of tensors", hint)
    return tensors


class _Architecture:
    """The tensors under nmt's names.

    MarianMT's positions have all sines before all cosines, so the dimensions of the model are reordered (export/hf.py).
    """

    def __init__(self, origin: Origin, config: dict[str, Any], kind: str) -> None:
        self.origin, self.config, self.kind = origin, config, kind
        self.dim, self.ff = _number(config, "d_model"), _number(config, "encoder_ffn_dim")
        self.shared = config.get("share_encoder_decoder_embeddings", True) or kind != "marian"
        self.tied = config.get("tie_word_embeddings", True)
        self.tie = "none" if not self.tied else "all" if self.shared else "target"
        width = torch.arange(self.dim)
        self.order = torch.stack(width.tensor_split(2), 1).flatten() if kind == "marian" else width

    def tensors(self, sizes: tuple[int, int]) -> dict[str, Tensor]:
        weights = _Weights(self.origin)
        tensors = {name: table[:, self.order] for name, table in self._embeddings(weights, sizes)}
        if "final_logits_bias" in weights.tensors:
            bias = weights.take("final_logits_bias", 1, sizes[1])[0]
            tensors |= {"bias": bias} if bias.any() else {}
        for side in ("encoder", "decoder"):
            tensors |= self._positions(weights, side)
            for index in range(_number(self.config, f"{side}_layers")):
                tensors |= self._layer(weights, side, index)
            if self.kind != "marian":
                tensors |= self._writes(weights, f"model.{side}.layer_norm", f"{side}_norm")
            if self.kind == "mbart":
                name = "source_embedding_norm" if side == "encoder" else "target_embedding_norm"
                tensors |= self._writes(weights, f"model.{side}.layernorm_embedding", name)
        weights.check_all_taken()
        return {name: tensor.contiguous() for name, tensor in tensors.items()}

    def _embeddings(self, weights: _Weights, sizes: tuple[int, int]) -> Iterator[tuple[str, Tensor]]:
        encoder, decoder = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
        shared, output = "model.shared.weight", "lm_head.weight"
        if self.tie == "all":
            yield "target_embedding.weight", weights.take_same((shared, encoder, decoder, output), sizes[1], self.dim)
        else:
            both = weights.tensors.pop(shared, None)
            for name in (encoder, decoder):  # a tensor that is saved once stands for both
                if both is not None:
                    weights.tensors.setdefault(name, both)
            yield "source_embedding.weight", weights.take(encoder, sizes[0], self.dim)
            names = (decoder, output) if self.tie == "target" else (decoder,)
            yield "target_embedding.weight", weights.take_same(names, sizes[1], self.dim)
        if self.tie == "none":
            yield "output.weight", weights.take(output, sizes[1], self.dim)

    def _positions(self, weights: _Weights, side: str) -> dict[str, Tensor]:
        name, length = f"model.{side}.embed_positions.weight", _number(self.config, "max_position_embeddings")
        if self.kind == "mbart":
            table = weights.take(name, length + _OFFSET, self.dim)[_OFFSET:]
            return {"source_positions.weight" if side == "encoder" else "target_positions.weight": table}
        weights.tensors.pop(f"{name}s", None)  # old versions of transformers saved the sinusoids of M2M-100
        if name in weights.tensors:
            table = weights.take(name, length, self.dim)[:, self.order]
            if not torch.allclose(table, sinusoids(length, self.dim), atol=1e-3):
                problem = f"the tensor {name} in {self.origin.path} has other numbers than the sinusoids of MarianMT"
                raise NmtError(problem, "docs/import.md lists what can be imported")
        return {}

    def _layer(self, weights: _Weights, side: str, index: int) -> dict[str, Tensor]:
        theirs, ours = f"model.{side}.layers.{index}", f"{side}.{index}"
        own = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
        tensors = {
            **self._reads(weights, own, f"{ours}.attention.qkv", self.dim),
            **self._writes(weights, f"{theirs}.self_attn.out_proj", f"{ours}.attention.output", self.dim),
            **self._writes(weights, f"{theirs}.self_attn_layer_norm", f"{ours}.around_attention.norm"),
            **self._reads(weights, [f"{theirs}.fc1"], f"{ours}.feed_forward.inner", self.ff),
            **self._writes(weights, f"{theirs}.fc2", f"{ours}.feed_forward.outer", self.ff),
            **self._writes(weights, f"{theirs}.final_layer_norm", f"{ours}.around_feed_forward.norm"),
        }
        if side == "decoder":
            query, *keys_values = [f"{theirs}.encoder_attn.{part}_proj" for part in "qkv"]
            tensors |= self._reads(weights, [query], f"{ours}.cross.query", self.dim)
            tensors |= self._reads(weights, keys_values, f"{ours}.cross.keys_values", self.dim)
            tensors |= self._writes(weights, f"{theirs}.encoder_attn.out_proj", f"{ours}.cross.output", self.dim)
            tensors |= self._writes(weights, f"{theirs}.encoder_attn_layer_norm", f"{ours}.around_cross.norm")
        return tensors

    def _reads(self, weights: _Weights, parts: list[str], name: str, width: int) -> dict[str, Tensor]:
        """Layers whose inputs have the dimensions of the model. nmt fuses them into one."""
        matrices = [weights.take(f"{part}.weight", width, self.dim)[:, self.order] for part in parts]
        biases = [weights.take(f"{part}.bias", width) for part in parts]
        return {f"{name}.weight": torch.cat(matrices), f"{name}.bias": torch.cat(biases)}

    def _writes(self, weights: _Weights, theirs: str, ours: str, *width: int) -> dict[str, Tensor]:
        """A layer or a norm whose output has the dimensions of the model."""
        return {
            f"{ours}.weight": weights.take(f"{theirs}.weight", self.dim, *width)[self.order],
            f"{ours}.bias": weights.take(f"{theirs}.bias", self.dim)[self.order],
        }


def _segmenter_file(origin: Origin, name: str) -> Path:
    if not origin.has(name) and origin.has("tokenizer.json"):
        problem = f"{origin.path} has no SentencePiece model {name}, and its tokenizer.json alone is not supported"
        raise NmtError(problem, f"add the file {name} of the original model")
    return origin.file(name)


def _marian_tokenizer(
    origin: Origin, sizes: tuple[int, int], source_lang: str | None, target_lang: str | None
) -> _Tokenizer:
    settings = origin.json("tokenizer_config.json", needed=False)
    segmenters = [read_segmenter(_segmenter_file(origin, f"{side}.spm")) for side in ("source", "target")]
    separate = bool(settings.get("separate_vocabs", False))
    names = ("vocab.json", "target_vocab.json" if separate else "vocab.json")
    tables = [by_id(origin.json(name), size, origin.path / name) for name, size in zip(names, sizes, strict=True)]
    codes = {piece[2:-2]: piece for piece in tables[0] if piece.startswith(">>") and piece.endswith("<<")}
    code = code_of(target_lang, "--target-lang", codes) if codes else ""
    languages = [source_lang or settings.get("source_lang"), target_lang or settings.get("target_lang")]
    return _Tokenizer(
        Side(segmenters[0], tables[0]),
        Side(segmenters[1], tables[1]),
        not separate,
        (language_code(str(languages[0] or "")), language_code(str(languages[1] or ""))),
        (code, ""),
        frozenset(codes.values()),
    )


def _multilingual_tokenizer(
    origin: Origin, sizes: tuple[int, int], source_lang: str | None, target_lang: str | None
) -> _Tokenizer:
    """M2M-100 lists its pieces in vocab.json. NLLB and mBART-50 have four special ones, then those of SentencePiece."""
    settings = origin.json("tokenizer_config.json", needed=False)
    if settings.get("tokenizer_class") in ("MBartTokenizer", "MBartTokenizerFast"):  # puts the code after the text
        raise unsupported("tokenizer_class", settings["tokenizer_class"])
    if settings.get("legacy_behaviour"):
        raise unsupported("legacy_behaviour", True)
    segmenter = read_segmenter(_segmenter_file(origin, "sentencepiece.bpe.model"))
    if origin.has("vocab.json"):
        pieces, listed = origin.json("vocab.json"), origin.path / "vocab.json"
    else:
        first = ("<s>", "<pad>", "</s>", "<unk>")
        others = [piece.text for piece in segmenter.pieces if piece.text not in first]
        pieces, listed = {piece: index for index, piece in enumerate((*first, *others))}, origin.path
    marks = {piece: index for piece, index in _marks(origin, settings, len(pieces)).items() if piece not in pieces}
    table = by_id({**pieces, **marks}, sizes[0], listed)
    codes = {piece.strip("_"): piece for piece in marks if not piece.startswith("<")}
    source_lang, target_lang = source_lang or settings.get("src_lang"), target_lang or settings.get("tgt_lang")
    named = {"--source-lang": source_lang, "--target-lang": target_lang}
    chosen = [code_of(language, option, codes) for option, language in named.items()]
    side = Side(segmenter, table)
    languages = [language_code(code.strip("_")) for code in chosen]
    return _Tokenizer(side, side, True, (languages[0], languages[1]), (chosen[0], chosen[1]), frozenset(marks))


def _marks(origin: Origin, settings: dict[str, Any], first: int) -> dict[str, Any]:
    """The pieces that SentencePiece does not know, such as the codes of languages, and their ids."""
    added = origin.json("tokenizer.json", needed=False).get("added_tokens")
    if added:
        return {str(token["content"]): token["id"] for token in added}
    added = settings.get("added_tokens_decoder", {})
    if any(not str(token["content"]).startswith("<") for token in added.values()):
        return {str(token["content"]): int(index) for index, token in added.items()}
    for table in (settings, origin.json("special_tokens_map.json", needed=False)):
        for name in ("extra_special_tokens", "additional_special_tokens"):
            if isinstance(tokens := table.get(name), list):
                texts = [str(token["content"] if isinstance(token, dict) else token) for token in tokens]
                if texts:
                    return {text: first + number for number, text in enumerate(texts)}
    if settings.get("language_codes") == "m2m100":
        return {f"__{code}__": first + number for number, code in enumerate(_M2M_LANGUAGES.split())}
    raise NmtError(f"{origin.path} does not list the codes of its languages", "add the file special_tokens_map.json")
