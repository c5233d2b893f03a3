"""The SentencePiece model of an imported side: the original's segmentation, with the ids of nmt.

A SentencePiece model is a protocol buffer: a list of pieces, and the settings of the segmentation. The pieces are
written again in the order of the ids, and the settings are kept. So encoding gives nmt's ids at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

import sentencepiece

from nmt_cli.errors import NmtError
from nmt_cli.files import read_small
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK


class Kind(IntEnum):
    """The types of a piece in sentencepiece_model.proto."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3  # never found in a text, and decoded to nothing
    USER_DEFINED = 4
    UNUSED = 5  # never found in a text, but decoded
    BYTE = 6


@dataclass(frozen=True)
class Piece:
    text: str
    score: float = 0.0
    kind: int = Kind.NORMAL


@dataclass(frozen=True)
class Segmenter:
    """A SentencePiece model, taken apart."""

    pieces: tuple[Piece, ...]
    settings: bytes  # all other fields of the file
    type: str  # a value of vocab.type


_PIECE, _TRAINER, _SELF_TEST = 1, 2, 4  # fields of ModelProto
_MODEL_TYPE = 3  # field of TrainerSpec
_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


def read_segmenter(path: Path) -> Segmenter:
    content = read_small(path)
    try:
        if not content:
            raise ValueError("it is empty")
        sentencepiece.SentencePieceProcessor(model_proto=content)
        fields = list(_fields(content))
        pieces = tuple(_read_piece(value) for number, _, value in fields if number == _PIECE)
        trainer = next((value for number, _, value in fields if number == _TRAINER), b"")
        kind = next((value[0] for number, _, value in _fields(trainer) if number == _MODEL_TYPE), 1)
        settings = b"".join(whole for number, whole, _ in fields if number not in (_PIECE, _SELF_TEST))
        return Segmenter(pieces, settings, _TYPES[kind])
    except (RuntimeError, ValueError, IndexError, KeyError, struct.error) as error:
        hint = "copy the file again from its origin"
        raise NmtError(f"{path} is not a SentencePiece model: {error}", hint) from None


def with_ids(segmenter: Segmenter, pieces: Sequence[str], marks: Set[str]) -> bytes:
    """The SentencePiece model with the given pieces as ids, then the pieces of the segmenter that are not among them.

    A piece that the segmenter does not have is never found in a text. A model may still write such a piece, so it is
    decoded, unless it is one of the marks, such as the code of a language.
    """
    own = {piece.text: piece for piece in segmenter.pieces}
    written = []
    for index, text in enumerate(pieces):
        if index == UNK:
            piece = Piece(text, 0.0, Kind.UNKNOWN)
        elif index in (PAD, BOS, EOS) or text not in own:
            is_mark = index in (PAD, BOS, EOS) or text in marks
            piece = Piece(text, 0.0, Kind.CONTROL if is_mark else Kind.UNUSED)
        else:
            piece = own[text] if own[text].kind != Kind.UNKNOWN else replace(own[text], kind=Kind.CONTROL)
        written.append(piece)
    known = set(pieces)
    others = [piece for piece in segmenter.pieces if piece.text not in known and piece.kind != Kind.UNKNOWN]
    return b"".join(map(_piece_field, [*written, *others])) + segmenter.settings


def _fields(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """The number of each field of a protocol buffer, the whole field, and its value."""
    at = 0
    while at < len(data):
        begin = at
        key, at = _varint(data, at)
        start = at
        match key & 7:
            case 0:
                _, stop = _varint(data, at)
            case 1:
                stop = at + 8
            case 2:
                length, start = _varint(data, at)
                stop = start + length
            case 5:
                stop = at + 4
            case other:
                raise ValueError(f"a field has the unknown type {other}")
        if stop > len(data):
            raise ValueError("it is cut off")
        yield key >> 3, data[begin:stop], data[start:stop]
        at = stop


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of variable length at data[at], and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _read_piece(data: bytes) -> Piece:
    values = {number: value for number, _, value in _fields(data)}
    (score,) = struct.unpack("<f", values.get(2, bytes(4)))
    return Piece(values[1].decode(), score, values[3][0] if 3 in values else Kind.NORMAL)


def _piece_field(piece: Piece) -> bytes:
    text = piece.text.encode()
    data = (
        b"\x0a" + _number(len(text)) + text + b"\x15" + struct.pack("<f", piece.score) + b"\x18" + bytes([piece.kind])
    )
    return b"\x0a" + _number(len(data)) + data


def _number(value: int) -> bytes:
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])
