"""Lines in and out: the contract that every command keeps.

Only LF ends a line, and one CR before it is dropped; so line counts agree with `wc -l`, whatever Unicode thinks of
VT, FF, NEL or U+2028. Text is strict UTF-8 in every locale, a BOM at the start is removed, and an error names file,
line and byte. Files may be plain, .gz, .xz or .zst; "-" is standard input.
"""

from __future__ import annotations

import gzip
import lzma
import os
import re
import sys
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Literal

from nmt_cli.errors import NmtError

STDIN = Path("-")
BLOCK = 1 << 20

Normalization = Literal["nfc", "nfkc", "none"]


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def read_lines(path: Path, on_bom: Callable[[], None] | None = None) -> Iterator[str]:
    """The lines of a file or of standard input, without their ends; on_bom is called if a BOM was removed."""
    for block in read_blocks(path, on_bom):
        yield from block


def read_blocks(path: Path, on_bom: Callable[[], None] | None = None) -> Iterator[list[str]]:
    """The same, about a megabyte at a time: decoding and splitting whole blocks is several times faster."""
    line = 1
    for data in _whole_lines(path):
        text = _decode(data, path, line)
        if line == 1:
            if on_bom and text.startswith("\ufeff"):
                on_bom()
            text = text.removeprefix("\ufeff")
            if not text:  # nothing but a BOM
                return
        lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
        line += len(lines)
        yield lines


def check_stdin_once(paths: Iterable[Path | None]) -> None:
    """Refuse a command line that names standard input more than once."""
    if list(paths).count(STDIN) > 1:
        raise NmtError(
            "standard input (-) is named twice, but it can be read only once", "save it to a file, and name that file"
        )


def split_tsv(line: str, path: Path, number: int) -> tuple[str, str]:
    """The two columns of a TSV line."""
    columns = line.split("\t")
    if len(columns) != 2:
        count = f"{len(columns)} column" + "s" * (len(columns) > 1)
        raise NmtError(
            f"{name_of(path)}, line {number}: {count}, but a TSV has two, source and target",
            f"cut -f1,2 {path} keeps the first two" if len(columns) > 2 else "columns are separated by one tab",
        )
    return columns[0], columns[1]


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Blocks that end at a line's end, the last one perhaps not."""
    rest: list[bytes] = []  # a line longer than a block stays in pieces until its end: no quadratic joining
    for data in _chunks(path):
        cut = data.rfind(b"\n") + 1
        if cut:
            yield b"".join([*rest, data[:cut]])
            rest = []
        if cut < len(data):
            rest.append(data[cut:])
    if rest:
        yield b"".join(rest)


def _decode(data: bytes, path: Path, first_line: int) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = (
            f"is it UTF-16? iconv -f UTF-16 -t UTF-8 {path}"
            if data[:2] in (b"\xff\xfe", b"\xfe\xff")
            else (f"iconv -f LATIN1 -t UTF-8 {path} converts, if it is Latin-1")
        )
        what = "not UTF-8" if error.reason != "unexpected end of data" else "the end of a character is missing"
        raise _at(path, data, error.start, first_line, f"{what} (0x{data[error.start]:02x})", hint) from None
    if "\0" in text:
        hint = "is it UTF-16 or a binary file? tr -d '\\000' removes stray ones"
        raise _at(path, data, data.index(b"\0"), first_line, "a NUL byte", hint)
    return text


def _at(path: Path, data: bytes, offset: int, first_line: int, what: str, hint: str) -> NmtError:
    line = first_line + data.count(b"\n", 0, offset)
    byte = offset - data.rfind(b"\n", 0, offset)  # the first byte of a line is byte 1
    return NmtError(f"{name_of(path)}, line {line}, byte {byte}: {what}", hint)


def name_of(path: Path) -> str:
    return "standard input" if path == STDIN else str(path)


def _chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, decompressed."""
    try:
        if path == STDIN:
            # Past Python's own buffer, whose lock a process forked meanwhile (workers.py) would wait for in vain.
            yield from iter(lambda: os.read(sys.stdin.fileno(), BLOCK), b"")
            return
        whole = path.is_file()  # a named pipe gives what it has, without a buffer that waits to be filled
        with path.open("rb", buffering=-1 if whole else 0) as file:
            if path.suffix == ".zst":
                yield from _zst_chunks(path, file)
            elif path.suffix in (".gz", ".xz"):
                with gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else lzma.LZMAFile(file) as stream:
                    yield from iter(lambda: stream.read(BLOCK) if whole else stream.read1(BLOCK), b"")
            else:
                yield from iter(lambda: file.read(BLOCK), b"")
    except EOFError:
        raise _truncated(path) from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise NmtError(f"{path} is not a sound {path.suffix} file: {error}", "rename it if it is plain text") from None
    except FileNotFoundError:
        raise NmtError(f"there is no file {path}", _similar_files(path)) from None
    except OSError as error:
        raise NmtError(f"cannot read {name_of(path)}: {error.strerror}", "name a text file that you may read") from None


def _zst_chunks(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    import zstandard

    frame = None  # the library's reader takes a truncated file for a whole one; a frame knows its end
    for data in iter(lambda: file.read(BLOCK), b""):
        while data:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                text = frame.decompress(data)
            except zstandard.ZstdError as error:
                raise NmtError(f"{path} is not a sound .zst file: {error}", "rename it if it is plain text") from None
            if text:
                yield text
            data = b""
            if frame.eof:
                data, frame = frame.unused_data, None
    if frame is not None:
        raise _truncated(path)


def _truncated(path: Path) -> NmtError:
    return NmtError(f"{path} is cut off: the compressed data end too early", "fetch or copy it again")


def _similar_files(path: Path) -> str:
    near = sorted(other.name for other in path.parent.glob(path.name.split(".")[0] + "*"))[:3] if path.name else []
    return f"in that folder: {', '.join(near)}" if near else "relative paths start here; a recipe's, in its folder"


# ---------------------------------------------------------------------------------------------------------------------
# Writing


def write_text(path: Path, text: str) -> None:
    """A text file as this toolkit writes them all: UTF-8, LF, whatever the platform."""
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write(text)


# ---------------------------------------------------------------------------------------------------------------------
# One line

# Control characters and the separators that other programs take for line ends; a tab too. None may reach a model,
# for what it never saw it never writes.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]+")
_SPACES = re.compile(" {2,}")
_BLANK = re.compile(
    "[\\s\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff]*"
)


def one_line(text: str) -> str:
    """Text that is certainly one line: controls and line separators become a space."""
    return _SPACES.sub(" ", _CONTROLS.sub(" ", text)).strip(" ")


def normalize(text: str, form: Normalization) -> str:
    """The text that models are trained on and asked with."""
    if form != "none" and not text.isascii():
        text = unicodedata.normalize(form.upper(), text)  # type: ignore[arg-type]
    return one_line(text)


def is_blank(text: str) -> bool:
    """Nothing to see: only spaces, zero-width and other invisible characters."""
    return _BLANK.fullmatch(text) is not None
