"""Import a bare CTranslate2 folder, for translation alone: its weights cannot be trained, inspected or exported."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any, BinaryIO

from nmt_cli import __version__
from nmt_cli.errors import NmtError
from nmt_cli.files import read_json, write_record
from nmt_cli.importing.foreign import Foreign, Origin, Side, unsupported, write_vocabulary
from nmt_cli.importing.pieces import read_segmenter
from nmt_cli.recipe.load import load_recipe, recipe_tables, tables_toml
from nmt_cli.store.checkpoint import without_paths
from nmt_cli.store.folders import ModelFiles, made_from
from nmt_cli.text.languages import language_code
from nmt_cli.text.lines import write_text

_COPY_AGAIN = "copy the whole folder of the model again"
_SIDES = ("encoder", "decoder")
_SEGMENTERS = ("source.spm", "target.spm"), ("sentencepiece.bpe.model",) * 2, ("sentencepiece.model",) * 2


def is_ctranslate2(origin: Origin) -> bool:
    return origin.has("model.bin") and "model_type" not in origin.json("config.json", needed=False)


def import_ctranslate2(origin: Origin, folder: Path, source_lang: str | None, target_lang: str | None) -> str:
    """Copy a CTranslate2 model into the empty folder, beside a vocabulary and a recipe."""
    config = origin.json("config.json")
    shapes = _shapes(origin.file("model.bin"))
    listed = [_vocabulary(origin, side) for side in ("source", "target")]
    pair = next((names for names in _SEGMENTERS if all(map(origin.has, names))), None)
    if pair is None:
        problem = f"{origin.path} has no SentencePiece model: neither source.spm and target.spm nor {_SEGMENTERS[1][0]}"
        raise NmtError(problem, "copy the file from the original model into the folder")
    segmenters = [read_segmenter(origin.file(name)) for name in pair]
    sides = [Side(segmenter, pieces) for segmenter, pieces in zip(segmenters, listed, strict=True)]
    eos, unk = (_id(config, f"{name}_token", sides) for name in ("eos", "unk"))
    pad = listed[1].index("<pad>") if "<pad>" in listed[0] and "<pad>" in listed[1] else None
    if pad is not None and listed[0].index("<pad>") != pad:
        pad = None
    marks = frozenset(piece for piece in listed[1] if piece not in {each.text for each in segmenters[1].pieces})
    source_code = next(
        (piece for piece in (source_lang, f"__{source_lang}__", f">>{target_lang}<<") if piece in marks), ""
    )
    target_code = next((piece for piece in (target_lang, f"__{target_lang}__") if piece in marks), "")
    joint = listed[0] == listed[1]
    settings = {
        "data.source_lang": language_code(source_lang or ""),
        "data.target_lang": language_code(target_lang or ""),
        "data.normalize": "none",
        "vocab.type": segmenters[0].type,
        "vocab.joint": joint,
        "model.tie": "all" if joint else "target",
        **_architecture(shapes),
    }
    foreign = Foreign(
        "CTranslate2",
        settings,
        {},
        sides[0],
        sides[1],
        pad,
        unk,
        eos,
        None,
        source_code or "",
        target_code or "",
        marks,
    )
    recipe = load_recipe(None, settings)
    write_vocabulary(foreign, folder, recipe, origin.path)
    files = ModelFiles(folder)
    write_text(files.recipe, tables_toml(recipe_tables(without_paths(recipe))))
    write_record(files.about, {"nmt": __version__, "imported": foreign.format})
    files.ctranslate2.mkdir()
    names = ["config.json", "model.bin", *(path.name for path in origin.path.glob("*_vocabulary.*"))]
    for name in names:
        shutil.copyfile(origin.file(name), files.ctranslate2 / name)
    about = {"nmt": __version__, "format": "ctranslate2", "model": made_from(read_json(files.about, "the model's"))}
    write_record(ModelFiles(files.ctranslate2).about, about)
    return foreign.format


def _vocabulary(origin: Origin, side: str) -> list[str]:
    """The pieces in the order of their ids."""
    for name in (f"{side}_vocabulary", "shared_vocabulary"):
        if origin.has(f"{name}.json"):
            pieces = origin.json_value(f"{name}.json")
            if isinstance(pieces, list) and all(isinstance(piece, str) for piece in pieces):
                return pieces
            raise NmtError(f"{origin.path / name}.json is not a list of pieces", _COPY_AGAIN)
        if origin.has(f"{name}.txt"):
            return origin.text(f"{name}.txt").removesuffix("\n").split("\n")
    raise NmtError(f"{origin.path} has no {side}_vocabulary.json and no shared_vocabulary.json", _COPY_AGAIN)


def _id(config: dict[str, Any], name: str, sides: list[Side]) -> int:
    """The id of a special piece, which must be the same on both sides."""
    piece = str(config.get(name))
    ids = {list(side.pieces).index(piece) if piece in side.pieces else -1 for side in sides}
    if len(ids) > 1 or -1 in ids:
        raise unsupported(name, piece)
    return ids.pop()


def _architecture(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """The keys of the recipe that follow from the names and shapes of the weights."""
    try:
        dim = shapes["decoder/embeddings/weight"][1]
        ff = shapes["encoder/layer_0/ffn/linear_0/weight"][0]
    except (KeyError, IndexError):
        raise NmtError("model.bin is not a Transformer with an encoder and a decoder", _COPY_AGAIN) from None
    layers = {
        side: len({name.split("/")[1] for name in shapes if name.startswith(f"{side}/layer_")}) for side in _SIDES
    }
    positions = shapes.get("encoder/position_encodings/encodings", (1024,))[0]
    keys = {
        "dim": dim,
        "ff": ff,
        "encoder_layers": layers["encoder"],
        "decoder_layers": layers["decoder"],
        "heads": shapes.get("encoder/num_heads", (1,))[0],
    }
    keys["max_positions"] = positions
    limits = {"data.clean.max_tokens": min(250, positions - 1)}
    return {**{f"model.{name}": value for name, value in keys.items()}, **limits}


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each weight in model.bin by its name, and the number of heads. The weights are skipped."""
    found: dict[str, tuple[int, ...]] = {}
    try:
        with path.open("rb") as file:
            version = _read(file, "I")
            if version < 5:
                raise unsupported("the version of model.bin", version)
            _name(file)
            _read(file, "I")
            for _ in range(_read(file, "I")):
                name, rank = _name(file), _read(file, "B")
                shape = tuple(_read(file, "I") for _ in range(rank))
                _read(file, "B")
                size = _read(file, "I")
                if name == "encoder/num_heads":
                    shape = (int.from_bytes(file.read(size), "little"),)  # a number without a shape
                else:
                    file.seek(size, 1)
                found[name] = shape
            for _ in range(_read(file, "I")):
                alias = _name(file)
                found[alias] = found[_name(file)]
            return found
    except (struct.error, UnicodeDecodeError, KeyError) as error:
        raise NmtError(f"{path} is not a model of CTranslate2: {error}", _COPY_AGAIN) from None


def _read(file: BinaryIO, kind: str) -> int:
    (value,) = struct.unpack(f"<{kind}", file.read(struct.calcsize(kind)))
    return int(value)


def _name(file: BinaryIO) -> str:
    return file.read(_read(file, "H")).decode().rstrip("\0")
