"""SentencePiece vocabularies: learn, encode, decode, and the ids of the special pieces.

A vocabulary is a folder: joint.model, or source.model and target.model; vocab.json; and words.tsv, if there is a word
list of the source language (spelling.py). Prepared data, runs and models each contain their vocabulary, so that a model
is never used with another vocabulary.

An imported vocabulary has two .model files, also if both sides share one table of ids (importing/pieces.py). Its pieces
are in the order of the original, except that PAD, UNK, BOS and EOS come first.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import sentencepiece

from nmt_cli.errors import NmtError, raise_if_denied
from nmt_cli.files import read_json, read_small
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.lines import Normalization, normalize, write_text
from nmt_cli.text.spelling import WORDS_FILE

PAD, UNK, BOS, EOS = 0, 1, 2, 3


@dataclass(frozen=True)
class Imported:
    """Facts that only an imported vocabulary has. export/hf.py needs the original ids to write the model back."""

    pad: int  # the id in the original; -1: the original has no PAD, and PAD gets the id after all others
    unk: int
    eos: int
    start: int  # the id in the original that BOS stands for; -1: none, a vector of zeros
    sizes: tuple[int, int]  # pieces of the model, source and target; further pieces of SentencePiece are read as UNK
    source_prefix: tuple[int, ...] = ()  # ids before every source, such as the code of its language
    target_prefix: tuple[int, ...] = ()  # ids that every target begins with

    def original_ids(self, side: int) -> list[int]:
        """The id in the original of each id of a side. -1: BOS, which the original does not have."""
        pad = self.pad if self.pad >= 0 else self.sizes[side] - 2
        others = (index for index in range(self.sizes[side] - 1) if index not in (pad, self.unk, self.eos))
        return [pad, self.unk, -1, self.eos, *others]


class ImportedPieces(sentencepiece.SentencePieceProcessor):
    """The pieces of an imported side. Other programs look up the pieces of SentencePiece in a table of their own.

    So two things differ from SentencePiece. Pieces that are not in the table come last and are read as UNK. A character
    that SentencePiece does not know, but that the table has as a piece of the other side, gets its id in the table.
    """

    size: int  # the pieces of the table

    def get_piece_size(self) -> int:
        return self.size

    def encode(  # type: ignore[override]
        self, input: str | list[str], out_type: type = int, num_threads: int | None = None
    ) -> Any:
        found = super().encode(input, out_type=out_type, num_threads=num_threads)
        if out_type is not int or not found:
            return found
        if isinstance(input, str):
            return self._looked_up(input, found)
        return [self._looked_up(line, ids) for line, ids in zip(input, found, strict=True)]

    def _looked_up(self, line: str, ids: list[int]) -> list[int]:
        if UNK not in ids and max(ids, default=0) < self.size:
            return ids
        looked_up = map(self.piece_to_id, super().encode(line, out_type=str))
        return [index if index < self.size and not self.is_control(index) else UNK for index in looked_up]

    def nbest_encode(self, input: str, nbest_size: int) -> list[list[int]]:  # type: ignore[override]
        found = super().nbest_encode(input, nbest_size=nbest_size)
        return [ids for ids in found if all(index < self.size for index in ids)]


@dataclass(frozen=True)
class Vocab:
    """The pieces of both sides. A joint vocabulary has one table of ids for both sides."""

    source: sentencepiece.SentencePieceProcessor
    target: sentencepiece.SentencePieceProcessor
    source_lang: str
    target_lang: str
    normalization: Normalization
    type: str  # a value of vocab.type
    symbols: tuple[str, ...]
    joint: bool = True
    imported: Imported | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        return self.source.get_piece_size(), self.target.get_piece_size()

    def encode_source(self, lines: list[str]) -> list[list[int]]:
        """The ids of raw text, without BOS and EOS."""
        return self.encode_normalized([normalize(line, self.normalization) for line in lines], target=False)

    def encode_target(self, lines: list[str]) -> list[list[int]]:
        return self.encode_normalized([normalize(line, self.normalization) for line in lines], target=True)

    def encode_normalized(self, lines: list[str], target: bool, threads: int | None = None) -> list[list[int]]:
        side, prefix = (self.target, self.target_prefix) if target else (self.source, self.source_prefix)
        ids = side.encode(lines, num_threads=threads)
        return [[*prefix, *line] for line in ids] if prefix else ids

    @property
    def source_prefix(self) -> tuple[int, ...]:
        """The ids before the pieces of every source, such as the code of its language."""
        return self.imported.source_prefix if self.imported else ()

    @property
    def target_prefix(self) -> tuple[int, ...]:
        return self.imported.target_prefix if self.imported else ()

    def same_pieces(self, other: Vocab) -> bool:
        """True if all ids mean the same in both vocabularies."""
        sides = ((self.source, other.source), (self.target, other.target))
        same = all(one.serialized_model_proto() == two.serialized_model_proto() for one, two in sides)
        return same and self.imported == other.imported

    def decode_target(self, ids: list[list[int]]) -> list[str]:
        return self.target.decode(ids) if ids else []


def symbol_pattern(symbols: Sequence[str]) -> str:
    """A regular expression of the symbols, the longest first. Without symbols, it matches nothing."""
    return "|".join(map(re.escape, sorted(symbols, key=len, reverse=True))) or "(?!)"


def pieces_of(side: sentencepiece.SentencePieceProcessor) -> list[str]:
    return side.id_to_piece(list(range(side.get_piece_size())))


def learn(lines: Iterator[str], settings: recipe.Vocab, name: str, exact: bool = True) -> bytes:
    """Learn a SentencePiece model from lines: the same bytes for the same lines and settings, on every machine.

    BPE never looks beyond a word, so it gets words and their counts. The pieces are the same as from the lines, in a
    fraction of the time and memory. Unigram takes its first candidates from whole lines. `name` is for error messages.
    Unless `exact`, a text that is too small for settings.size gives fewer pieces.
    """
    model = io.BytesIO()
    counted = settings.type == "bpe"
    if counted:
        counts = Counter(word for line in lines for word in line.split(" ") if word)
        lines = (f"{word}\t{count}" for word, count in sorted(counts.items()))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            input_format="tsv" if counted else "text",
            model_writer=model,
            model_type=settings.type,
            vocab_size=settings.size,
            hard_vocab_limit=exact,
            character_coverage=settings.coverage,
            byte_fallback=settings.byte_fallback,
            user_defined_symbols=list(settings.symbols),
            split_digits=True,  # a new number is still written digit by digit
            normalization_rule_name="identity",  # text.lines.normalize has normalized the text
            max_sentence_length=1 << 16,
            num_threads=4,  # fixed: unigram sums in another order with another number
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise _explain(str(error), settings, name) from None
    return model.getvalue()


def _explain(error: str, settings: recipe.Vocab, name: str) -> NmtError:
    """Turn an error of SentencePiece into a message that names the key to change."""
    if most := re.search(r"Vocabulary size too high \((\d+)\).* <= (\d+)", error):
        problem = f"the {name} text is too small for {most[1]} pieces: at most {most[2]} can be learned from it"
        return NmtError(problem, f"set vocab.size (--vocab-size) to {most[2]} or less")
    if least := re.search(r"smaller than required_chars. (\d+) vs (\d+)", error):
        return NmtError(
            f"{least[1]} pieces are too few: the characters of the {name} text alone need {least[2]}",
            f"set vocab.size (--vocab-size) to more than {least[2]}, or vocab.coverage lower than {settings.coverage}",
        )
    if "sentences_.empty()" in error:
        hint = "check that the training corpus is not blank"
        return NmtError(f"there is no {name} text to learn a vocabulary from", hint)
    return NmtError(f"SentencePiece cannot learn the {name} vocabulary: {error.strip()}", "check the [vocab] settings")


def write_vocab(
    folder: Path,
    models: dict[str, bytes],
    data: recipe.Data,
    settings: recipe.Vocab,
    imported: Imported | None = None,
) -> None:
    """`models` is {"joint": ...} or {"source": ..., "target": ...}; an imported vocabulary has the latter."""
    folder.mkdir()
    for side, model in models.items():
        (folder / f"{side}.model").write_bytes(model)
    about: dict[str, Any] = {
        "joint": settings.joint if imported else "joint" in models,
        "normalization": data.normalize,
        "source_lang": data.source_lang,
        "target_lang": data.target_lang,
        "type": settings.type,
        "symbols": settings.symbols,
    }
    if imported:
        about["imported"] = asdict(imported)
    write_text(folder / "vocab.json", json.dumps(about, indent=2) + "\n")


def find_vocab(path: Path) -> Path:
    """Find the vocabulary folder of a run, a model or prepared data. `path` may also be the vocabulary itself."""
    for folder in (path, path / "vocab", path / "model" / "vocab"):
        raise_if_denied(folder / "vocab.json")
        if (folder / "vocab.json").is_file():
            return folder
    raise NmtError(f"there is no vocabulary in {path}", "name a run, a model or a folder of prepared data")


def copy_vocab(origin: Path, folder: Path, data: recipe.Data) -> None:
    """Copy the vocabulary of `origin` for these data. Both must have the same normalization."""
    made_with = load_vocab(find_vocab(origin)).normalization
    if made_with != data.normalize:
        problem = f"the vocabulary of {origin} was made with data.normalize = {made_with}, not {data.normalize}"
        raise NmtError(problem, f"add --set data.normalize={made_with}")
    copy_vocab_files(find_vocab(origin), folder)


def copy_vocab_files(origin: Path, folder: Path) -> None:
    """Copy a vocabulary folder. shutil.copytree would hide the cause of an error, such as a full disk."""
    folder.mkdir(exist_ok=True)
    for name in ("vocab.json", WORDS_FILE, *(f"{side}.model" for side in ("joint", "source", "target"))):
        if (origin / name).exists():
            shutil.copyfile(origin / name, folder / name)


def load_vocab(folder: Path) -> Vocab:
    try:
        (folder / "vocab.json").stat()  # raises FileNotFoundError
        about = read_json(folder / "vocab.json", "the vocabulary's")
        imported = _read_imported(about["imported"]) if "imported" in about else None
        sides = ("joint", "joint") if about["joint"] and not imported else ("source", "target")
        models = {side: read_small(folder / f"{side}.model") for side in set(sides)}
        if not all(models.values()):
            raise ValueError("a .model file is empty")
        if imported:
            made = [_imported_pieces(models[side], size) for side, size in zip(sides, imported.sizes, strict=True)]
            loaded = dict(zip(sides, made, strict=True))
        else:
            loaded = {side: sentencepiece.SentencePieceProcessor(model_proto=model) for side, model in models.items()}
        if about["normalization"] not in get_args(Normalization):
            raise ValueError(f"there is no normalization {about['normalization']}")
        fields = {key: about[key] for key in ("source_lang", "target_lang", "normalization", "type")}
        texts = [*fields.values(), *about["symbols"]]
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise ValueError(f"vocab.json has {wrong[0]!r} in place of a text")
        processors = (loaded[sides[0]], loaded[sides[1]])
        return Vocab(
            *processors, symbols=tuple(about["symbols"]), joint=bool(about["joint"]), imported=imported, **fields
        )
    except FileNotFoundError as error:
        problem = f"{folder} is not a vocabulary: {Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError, RuntimeError) as error:  # RecursionError is a RuntimeError
        problem = f"the vocabulary in {folder} is damaged: {error}"
    raise NmtError(problem, "prepare the data again")


def _imported_pieces(model: bytes, size: int) -> sentencepiece.SentencePieceProcessor:
    pieces = ImportedPieces(model_proto=model)
    if not EOS < size <= len(pieces):
        raise ValueError(f"a .model file has {len(pieces)} pieces, and vocab.json says {size}")
    pieces.size = size
    return pieces


def _read_imported(table: dict[str, Any]) -> Imported:
    pad, unk, eos, start = (int(table[name]) for name in ("pad", "unk", "eos", "start"))
    source, target = map(int, table["sizes"])
    prefixes = [tuple(map(int, table[name])) for name in ("source_prefix", "target_prefix")]
    for size, prefix in zip((source, target), prefixes, strict=True):
        if any(not EOS < index < size for index in prefix):
            raise ValueError(f"there is no piece {max(prefix)}")
    return Imported(pad, unk, eos, start, (source, target), *prefixes)
