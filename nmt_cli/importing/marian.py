"""Read a folder of Marian: model.npz, the .yml file beside it, and SentencePiece vocabularies (.spm).

The settings of the architecture are in model.npz itself. Two kinds of vocabularies occur: an .spm file, whose ids are
those of the model, and a .yml file that lists the pieces of source.spm and target.spm, as in models of OPUS-MT.
"""

from __future__ import annotations

import json
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt_cli.errors import NmtError
from nmt_cli.files import check_regular, read_small
from nmt_cli.importing.foreign import Foreign, Origin, Side, by_id, unsupported
from nmt_cli.importing.pieces import Kind, read_segmenter
from nmt_cli.text.languages import language_code

_COPY_AGAIN = "copy the whole folder of the model again"
_SETTINGS = "special:model.yml"
# The only values of these settings that nmt has an equivalent for. A setting that is missing has its default.
_FIXED: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-attention-mask": ("default",),
    "transformer-tied-layers": ([],),
    "input-types": ([],),
    "lemma-dim-emb": (0,),
    **dict.fromkeys(("transformer-no-projection", "transformer-train-position-embeddings"), (False,)),
    **dict.fromkeys(("transformer-disable-position-embeddings", "transformer-no-affine"), (False,)),
    **dict.fromkeys(("transformer-no-bias", "transformer-rnn-projection", "transformer-pool"), (False,)),
    **dict.fromkeys(("ulr", "right-left"), (False,)),
}
_NORMS = {("", "dan", ""): "post", ("n", "da", "n"): "pre"}  # before a sublayer, behind it, at the top
_ACTIVATIONS = ("relu", "swish")  # Marian's gelu is another function than nmt's


def is_marian(origin: Origin) -> bool:
    return _npz(origin) is not None


def _npz(origin: Origin) -> str | None:
    """The file with the weights: model.npz, or the only one that is not the state of an optimizer."""
    names = sorted(path.name for path in origin.path.glob("*.npz") if not path.name.endswith(".optimizer.npz"))
    if "model.npz" in names or len(names) == 1:
        return "model.npz" if "model.npz" in names else names[0]
    if names:
        problem = f"{origin.path} has several models: {', '.join(names[:3])}"
        raise NmtError(problem, "leave one of them in the folder, or call it model.npz")
    return None


def read_marian(origin: Origin, source_lang: str | None, target_lang: str | None) -> Foreign:
    name = _npz(origin)
    assert name is not None
    weights = _Weights(origin.file(name))
    model = weights.settings
    for key, values in _FIXED.items():
        if model.get(key, values[0]) not in values:
            raise unsupported(key, model[key])
    order = tuple(str(model.get(f"transformer-{key}", "")) for key in ("preprocess", "postprocess", "postprocess-top"))
    if order not in _NORMS:
        raise unsupported("transformer-postprocess", list(order))
    activation = model.get("transformer-ffn-activation")
    if activation not in _ACTIVATIONS:
        raise unsupported("transformer-ffn-activation", activation)
    ff = model.get("transformer-dim-ffn")
    if model.get("transformer-decoder-dim-ffn", 0) not in (0, ff):
        raise unsupported("transformer-decoder-dim-ffn", model["transformer-decoder-dim-ffn"])
    heads = model.get("transformer-heads")
    sizes = [_whole(key, model.get(key)) for key in ("dim-emb", "transformer-dim-ffn", "enc-depth", "dec-depth")]
    tie, tensors = _tensors(weights, sizes, _NORMS[order])
    weights.check_all_taken()

    decoder = _decoder_settings(origin, name)
    sides = _sides(origin, decoder, tensors)
    eos, unk = _special_ids(origin, sides)
    longest = decoder.get("max-length")
    settings = {
        "data.source_lang": language_code(source_lang or ""),
        "data.target_lang": language_code(target_lang or ""),
        "data.normalize": "none",  # SentencePiece normalizes
        "data.clean.max_tokens": longest if isinstance(longest, int) and 10 <= longest < 250 else 250,
        "vocab.type": sides[0].segmenter.type,
        "vocab.size": len(sides[1].pieces) + 2,
        "vocab.joint": list(sides[0].pieces) == list(sides[1].pieces),
        "model.dim": sizes[0],
        "model.heads": heads,
        "model.ff": sizes[1],
        "model.encoder_layers": sizes[2],
        "model.decoder_layers": sizes[3],
        "model.activation": activation,
        "model.norm": _NORMS[order],
        "model.positions": "timing",
        "model.tie": tie,
        "model.output_bias": "bias" in tensors,
        "translate.beam": decoder.get("beam-size") or 1,
        "translate.alpha": float(decoder.get("normalize") or 0),
    }
    return Foreign("Marian", settings, tensors, sides[0], sides[1], pad=None, unk=unk, eos=eos, start=None)


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise unsupported(name, value)
    return value


class _Weights:
    """The tensors of an .npz file, which is never unpickled, and the settings in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        check_regular(path)
        try:
            with np.load(path, allow_pickle=False) as file:
                self.arrays = {name: file[name] for name in file.files}
            text = self.arrays.pop(_SETTINGS).tobytes().decode()
        except KeyError:
            raise NmtError(f"{path} has no {_SETTINGS}, so it is not a model of Marian", _COPY_AGAIN) from None
        except (ValueError, OSError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
            raise NmtError(f"{path} is not a model of Marian: {error}", _COPY_AGAIN) from None
        self.settings = parse_yaml(text)
        self.arrays.pop("decoder_c_mt", None)

    def take(self, name: str, *shape: int) -> Tensor:
        if name not in self.arrays:
            raise NmtError(f"{self.path} has no tensor {name}", _COPY_AGAIN)
        array = self.arrays.pop(name)
        if array.dtype.kind != "f":
            raise unsupported(f"the type of {name}", str(array.dtype))
        if shape and array.shape != shape:
            raise NmtError(f"the tensor {name} in {self.path} is {array.shape}, not {shape}", _COPY_AGAIN)
        return torch.from_numpy(array.astype(np.float32))

    def check_all_taken(self) -> None:
        if self.arrays:
            more = f" and {len(self.arrays) - 1} more" if len(self.arrays) > 1 else ""
            problem = f"{self.path} has a tensor {min(self.arrays)}{more} that is not supported"
            raise NmtError(problem, "docs/import.md lists what can be imported")


def _tensors(weights: _Weights, sizes: list[int], norm: str) -> tuple[str, dict[str, Tensor]]:
    """The tie of the embeddings, and the tensors under nmt's names."""
    dim, ff, *depths = sizes
    tensors = {}

    def linear(ours: str, prefix: str, parts: list[str], inputs: int, outputs: int) -> None:
        """Marian's matrices have the input first. A fused layer of nmt has several of them."""
        matrices = [weights.take(f"{prefix}_W{part}", inputs, outputs).t() for part in parts]
        biases = [weights.take(f"{prefix}_b{part}", 1, outputs)[0] for part in parts]
        tensors[f"{ours}.weight"], tensors[f"{ours}.bias"] = torch.cat(matrices), torch.cat(biases)

    def layer_norm(ours: str, prefix: str) -> None:
        suffix = "_pre" if norm == "pre" and not prefix.endswith("_top") else ""
        tensors[f"{ours}.weight"] = weights.take(f"{prefix}_ln_scale{suffix}", 1, dim)[0]
        tensors[f"{ours}.bias"] = weights.take(f"{prefix}_ln_bias{suffix}", 1, dim)[0]

    tie = _embeddings(weights, tensors, dim)
    for side, depth in zip(("encoder", "decoder"), depths, strict=True):
        for index in range(depth):
            theirs, ours = f"{side}_l{index + 1}", f"{side}.{index}"
            linear(f"{ours}.attention.qkv", f"{theirs}_self", ["q", "k", "v"], dim, dim)
            linear(f"{ours}.attention.output", f"{theirs}_self", ["o"], dim, dim)
            layer_norm(f"{ours}.around_attention.norm", f"{theirs}_self_Wo")
            if side == "decoder":
                linear(f"{ours}.cross.query", f"{theirs}_context", ["q"], dim, dim)
                linear(f"{ours}.cross.keys_values", f"{theirs}_context", ["k", "v"], dim, dim)
                linear(f"{ours}.cross.output", f"{theirs}_context", ["o"], dim, dim)
                layer_norm(f"{ours}.around_cross.norm", f"{theirs}_context_Wo")
            linear(f"{ours}.feed_forward.inner", f"{theirs}_ffn", ["1"], dim, ff)
            linear(f"{ours}.feed_forward.outer", f"{theirs}_ffn", ["2"], ff, dim)
            layer_norm(f"{ours}.around_feed_forward.norm", f"{theirs}_ffn_ffn")
        if norm == "pre":
            layer_norm(f"{side}_norm", f"{side}_top")
    return tie, {name: tensor.contiguous() for name, tensor in tensors.items()}


def _embeddings(weights: _Weights, tensors: dict[str, Tensor], dim: int) -> str:
    """Take the embeddings and the output layer, and return how they are tied."""
    one_table = "Wemb" in weights.arrays
    tied = weights.settings.get("tied-embeddings-all") or weights.settings.get("tied-embeddings")
    if one_table:
        source = target = weights.take("Wemb")
    else:
        source, target = weights.take("encoder_Wemb"), weights.take("decoder_Wemb")
    tie = "none" if not tied else "all" if one_table else "target"
    tensors["target_embedding.weight"] = target
    if tie != "all":
        tensors["source_embedding.weight"] = source
    if tie == "none":
        if "decoder_ff_logit_out_Wt" in weights.arrays:
            tensors["output.weight"] = weights.take("decoder_ff_logit_out_Wt", len(target), dim)
        else:
            tensors["output.weight"] = weights.take("decoder_ff_logit_out_W", dim, len(target)).t()
    if not weights.settings.get("output-omit-bias"):
        tensors["bias"] = weights.take("decoder_ff_logit_out_b", 1, len(target))[0]
    return tie


def _decoder_settings(origin: Origin, npz: str) -> dict[str, Any]:
    """The settings of the search and the names of the vocabularies. The last file that has a setting wins."""
    found: dict[str, Any] = {}
    for name in (f"{npz}.yml", f"{npz}.decoder.yml", "decoder.yml"):
        if origin.has(name):
            found |= parse_yaml(read_small(origin.file(name)).decode("utf-8", "replace"))
    return found


def _sides(origin: Origin, decoder: dict[str, Any], tensors: dict[str, Tensor]) -> list[Side]:
    names = decoder.get("vocabs")
    if not isinstance(names, list) or len(names) != 2:
        found = sorted(path.name for path in origin.path.glob("*.spm"))
        names = found * 2 if len(found) == 1 else ["source.spm", "target.spm"]
    target = tensors["target_embedding.weight"]
    sizes = (len(tensors.get("source_embedding.weight", target)), len(target))
    sides = []
    for side, name, size in zip(("source", "target"), names, sizes, strict=True):
        name = Path(str(name)).name  # the path is that of the machine where the model was trained
        if name.endswith(".spm"):
            segmenter, listed = read_segmenter(origin.file(name)), origin.path / name
            pieces: dict[str, Any] = {piece.text: index for index, piece in enumerate(segmenter.pieces)}
        elif name.endswith((".yml", ".yaml")) and origin.has(f"{side}.spm"):
            segmenter, listed = read_segmenter(origin.file(f"{side}.spm")), origin.file(name)
            pieces = parse_yaml(origin.text(name))
        else:
            problem = f"the vocabulary {name} of {origin.path} has no SentencePiece model, so it is not supported"
            raise NmtError(problem, f"add the file {side}.spm that the text was segmented with")
        sides.append(Side(segmenter, by_id(pieces, size, listed)))
    return sides


def _special_ids(origin: Origin, sides: list[Side]) -> tuple[int, int]:
    """The ids of </s> and <unk>, which are the same on both sides."""
    found = []
    for side in sides:
        unknown = [piece.text for piece in side.segmenter.pieces if piece.kind == Kind.UNKNOWN]
        table = {piece: index for index, piece in enumerate(side.pieces)}
        found.append((table.get("</s>"), next((table[text] for text in ("<unk>", *unknown) if text in table), None)))
    (eos, unk), other = found
    if eos is None or unk is None or (eos, unk) != other:
        raise NmtError(f"the vocabularies in {origin.path} do not have </s> and <unk> under the same ids", _COPY_AGAIN)
    return eos, unk


def parse_yaml(text: str) -> dict[str, Any]:
    """The part of YAML that Marian writes: `key: value`, and lists, one entry to a line or in brackets."""
    table: dict[str, Any] = {}
    key = ""
    for line in text.replace("\0", "").split("\n"):
        if line.lstrip().startswith(("- ", "[]")) and key and line[:1] in " -":
            if not isinstance(table[key], list):
                table[key] = []
            if (entry := line.strip()) != "[]":
                table[key].append(_scalar(entry[2:]))
        elif line and not line.startswith((" ", "#")) and line.rstrip() != "---":
            name, separator, value = line.rpartition(": ") if ": " in line else line.rpartition(":")
            if separator:
                key = _unquoted(name)
                table[key] = _scalar(value)
    return table


def _scalar(text: str) -> Any:
    """A number, a truth value, a list or a text; quotes are removed."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _unquoted(text)


def _unquoted(text: str) -> str:
    text = text.strip(" \t\r")  # other spaces belong to a piece
    if text.startswith('"'):
        with suppress(ValueError):
            return str(json.loads(text))
    return text[1:-1].replace("''", "'") if len(text) > 1 and text[0] == text[-1] == "'" else text
