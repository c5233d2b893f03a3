"""A model of another program: the description that every reader returns, and the one writer.

`nmt import` leads here. A reader (hf.py, marian.py) describes its model by nmt's names of tensors and keys of recipes,
and leaves the rows of the embeddings in order. The writer moves PAD, UNK, BOS and EOS to the ids that nmt gives them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt_cli.errors import NmtError, quoted
from nmt_cli.files import read_small
from nmt_cli.importing.pieces import Segmenter, with_ids
from nmt_cli.model.build import build_model
from nmt_cli.recipe.load import load_recipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.store.checkpoint import check_weights, save_model_files
from nmt_cli.text.vocab import Imported, write_vocab

_COPY_AGAIN = "copy the file again from its origin"
_BY_ID = ("source_embedding.weight", "target_embedding.weight", "output.weight", "bias")  # tensors with a row for an id


@dataclass(frozen=True)
class Side:
    """The tokenizer of a side."""

    segmenter: Segmenter
    pieces: Sequence[str]  # by the original's ids


@dataclass(frozen=True)
class Foreign:
    """A model of another program."""

    format: str  # such as "Hugging Face marian"
    settings: Mapping[str, Any]  # keys of the recipe and their values
    tensors: Mapping[str, Tensor]  # by nmt's names
    source: Side
    target: Side
    pad: int | None  # an id of the original; None: the original has no such piece
    unk: int
    eos: int
    start: int | None  # the id that the decoder reads first; None: a vector of zeros
    source_code: str = ""  # the piece before every source
    target_code: str = ""  # the piece that every target begins with
    marks: frozenset[str] = field(default_factory=frozenset)  # pieces that are no text, such as codes of languages


class Origin:
    """The folder that is imported. Nothing outside of it is read."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            problem = "is a file, not a folder" if path.exists() else "does not exist"
            raise NmtError(f"{path} {problem}", "name the folder of a model")
        self.path = path

    def has(self, name: str) -> bool:
        return (self.path / name).exists() or (self.path / name).is_symlink()

    def file(self, name: str) -> Path:
        """The path of a file. A name or a link that leads out of the folder is refused."""
        path = self.path / name
        root = self.path.resolve()
        if not path.resolve().is_relative_to(root) or path.resolve() == root:
            hint = f"if you trust the link: cp -rL {quoted(self.path)} COPY, then import COPY"
            raise NmtError(f"{path} leads out of the folder {self.path}", hint)
        if not path.is_file():
            raise NmtError(f"{self.path} has no file {name}", "copy the whole folder of the model")
        return path

    def json(self, name: str, needed: bool = True) -> dict[str, Any]:
        """The table in a JSON file. A file that is not needed may be missing."""
        if not needed and not self.has(name):
            return {}
        value = self.json_value(name)
        if not isinstance(value, dict):
            raise NmtError(f"{self.path / name} is not a table", _COPY_AGAIN)
        return value

    def json_value(self, name: str) -> Any:
        path = self.file(name)
        try:
            return json.loads(read_small(path))
        except (ValueError, RecursionError) as error:
            raise NmtError(f"{path} is not JSON: {error}", _COPY_AGAIN) from None

    def text(self, name: str) -> str:
        path = self.file(name)
        try:
            return read_small(path).decode()
        except UnicodeDecodeError as error:
            raise NmtError(f"{path} is not UTF-8 at byte {error.start}", _COPY_AGAIN) from None


def unsupported(name: str, value: object, advice: str = "") -> NmtError:
    """`name` is the property of the model as its own program calls it. `advice` comes first in the hint."""
    hint = f"{advice}docs/import.md lists what can be imported"
    return NmtError(f"{name} = {json.dumps(value, ensure_ascii=False)} is not supported", hint)


def code_of(language: str | None, option: str, codes: Mapping[str, str]) -> str:
    """The piece of a language that the user named. `codes` maps names of languages to their pieces."""
    if language is not None and language in codes:
        return codes[language]
    some = ", ".join(sorted(codes)[:5]) + (", ..." if len(codes) > 5 else "")
    if language is None:
        raise NmtError(f"the model knows {len(codes)} languages ({some}), so {option} is needed", f"add {option} CODE")
    near = difflib.get_close_matches(language, codes, n=1, cutoff=0.4)
    raise NmtError(f"the model has no language {language}", f"did you mean {near[0]}?" if near else f"it knows {some}")


def by_id(pieces: Mapping[str, Any], size: int, path: Path) -> list[str]:
    """The pieces in the order of their ids. An id without a piece gets a name."""
    table: list[str | None] = [None] * size
    for piece, index in pieces.items():
        if not isinstance(index, int) or not 0 <= index < size or table[index] is not None:
            problem = f"{path} gives {piece!r} the id {index}, which is taken or not among the {size} of the model"
            raise NmtError(problem, "the file belongs to another model")
        table[index] = piece
    return [f"<unused{index}>" if piece is None else piece for index, piece in enumerate(table)]


def write_model(foreign: Foreign, folder: Path, origin: Path) -> None:
    """Write an nmt model into the empty folder."""
    recipe, tensors = load_recipe(None, dict(foreign.settings)), dict(foreign.tensors)
    orders = _orders(foreign)
    for name in _BY_ID:
        if name in tensors:
            tensors[name] = _in_order(tensors[name], orders[not name.startswith("source")], foreign.start)
    with torch.device("meta"):
        expected = build_model(recipe.model, *map(len, orders)).state_dict()
    check_weights(expected, tensors, origin)
    write_vocabulary(foreign, folder, recipe, origin)
    save_model_files(folder, tensors, recipe, {"imported": foreign.format})


def _orders(foreign: Foreign) -> list[list[int]]:
    """For each side, the original's id of each id of nmt. -1: BOS. A new PAD comes behind the others."""
    orders = []
    for size in (len(foreign.source.pieces), len(foreign.target.pieces)):
        pad = size if foreign.pad is None else foreign.pad
        others = [index for index in range(size) if index not in (pad, foreign.unk, foreign.eos)]
        orders.append([pad, foreign.unk, -1, foreign.eos, *others])
    return orders


def write_vocabulary(foreign: Foreign, folder: Path, recipe: Recipe, origin: Path) -> None:
    models, ids = [], []
    for side, order in zip((foreign.source, foreign.target), _orders(foreign), strict=True):
        pieces = [*side.pieces, *["<pad>"] * (foreign.pad is None)]
        start = next(piece for piece in ("<s>", "<start>", "<nmt-start>") if piece not in pieces)
        named = [start if index < 0 else pieces[index] for index in order]
        if len(set(named)) < len(named):
            raise NmtError(f"the vocabulary of {origin} has a piece twice", "the folder is damaged")
        models.append(with_ids(side.segmenter, named, foreign.marks | {"<pad>"}))
        ids.append({piece: index for index, piece in enumerate(named)})
    imported = Imported(
        -1 if foreign.pad is None else foreign.pad,
        foreign.unk,
        foreign.eos,
        -1 if foreign.start is None else foreign.start,
        (len(ids[0]), len(ids[1])),
        tuple(ids[0][code] for code in filter(None, [foreign.source_code])),
        tuple(ids[1][code] for code in filter(None, [foreign.target_code])),
    )
    write_vocab(folder / "vocab", {"source": models[0], "target": models[1]}, recipe.data, recipe.vocab, imported)


def _in_order(table: Tensor, order: list[int], start: int | None) -> Tensor:
    """The rows of a table in nmt's order. BOS, -1 in the order, gets the row `start`. New rows are zero."""
    rows = torch.cat([table, table.new_zeros(1, *table.shape[1:])])  # the index -1 is the new row
    return rows[[start if index < 0 and start is not None else index for index in order]]
