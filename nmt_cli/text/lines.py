"""Read and write lines of text, by the same rules in all commands.

Only LF ends a line, as `wc -l` counts; one CR before the LF is removed. Text is strict UTF-8 in every locale, without a
BOM. Files may be plain, .gz, .xz or .zst; "-" is standard input.
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
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, Literal

from nmt_cli.errors import NmtError, quoted

STDIN = Path("-")
BLOCK = 1 << 20

Normalization = Literal["nfc", "nfkc", "none"]

# The programs that decompress the files that are read here, by the ending of their names.
_DECOMPRESSORS = {".gz": "zcat", ".xz": "xzcat", ".zst": "zstdcat"}
# How compressed files begin, the program that writes them, the ending of their names, and a command that decompresses.
_COMPRESSED = [
    (re.compile(rb"\x1f\x8b"), "gzip", ".gz", "zcat {} > NEW"),
    (re.compile(rb"\xfd7zXZ\0"), "xz", ".xz", "xzcat {} > NEW"),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "zstd", ".zst", "zstdcat {} > NEW"),
    (re.compile(rb"BZh[1-9]1AY&SY"), "bzip2", ".bz2", "bzcat {} > NEW"),
    (re.compile(rb"PK\x03\x04"), "zip", ".zip", "unzip {}"),
]


def read_lines(path: Path, on_bom: Callable[[], None] | None = None) -> Iterator[str]:
    """Yield the lines of a file or of standard input, without line ends. `on_bom` is called if a BOM was removed."""
    return chain.from_iterable(read_blocks(path, on_bom))


def read_blocks(path: Path, on_bom: Callable[[], None] | None = None) -> Iterator[list[str]]:
    """Yield the lines in blocks of about a megabyte. Decoding and splitting whole blocks is several times faster."""
    line = 1
    for data in _whole_lines(path):
        text = _decode(data, path, line)
        if line == 1:
            if on_bom and text.startswith("\ufeff"):
                on_bom()
            text = text.removeprefix("\ufeff")
            if not text:  # the file is only a BOM
                return
        lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
        line += len(lines)
        yield lines


def check_stdin_once(paths: Iterable[Path | None]) -> None:
    """Refuse a command line that names standard input more than once."""
    if list(paths).count(STDIN) > 1:
        hint = "save it to a file, and name that file"
        raise NmtError("standard input (-) is named twice, but it can be read only once", hint)


def is_read_once(path: Path) -> bool:
    """Whether a text can be read only once: standard input, or a pipe such as <(zcat a.gz).

    The shell names this pipe /dev/fd/63. When its command has ended, the name is gone.
    """
    is_gone = path.parent == Path("/dev/fd") and not path.exists()
    return path == STDIN or is_gone or (path.exists() and not path.is_file())


def split_tsv(line: str, path: Path, number: int) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) != 2:
        count = f"{len(columns)} column" + "s" * (len(columns) > 1)
        hint = "separate the two columns with one tab"
        if len(columns) > 2:
            hint = f"{_through('cut -f1,2', path)} > NEW keeps the first two"
        raise NmtError(f"{name_of(path)}, line {number}: {count}, but a TSV file needs two, source and target", hint)
    return columns[0], columns[1]


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Yield blocks that end at the end of a line. The last block may end without LF."""
    rest: list[bytes] = []  # the parts of a line that is longer than a block; joined once, at its end
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
    """Decode a block of `path` that begins with line `first_line`."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        offset = error.start
        encoding = ("UTF-16", "UTF-16") if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ("Latin-1", "LATIN1")
        command = _through(f"iconv -f {encoding[1]} -t UTF-8", path)
        hint = f"if the file is {encoding[0]}: {command} > NEW converts it"
        problem = "not UTF-8" if error.reason != "unexpected end of data" else "the end of a character is missing"
        problem += f" (0x{data[offset]:02x})"
    else:
        if "\0" not in text:
            return text
        offset = data.index(b"\0")
        hint = "the file may be UTF-16 or binary; in plain text, tr -d '\\000' removes NUL bytes"
        problem = "a NUL byte"
    if first_line == 1:
        _refuse_compressed(data, path)
    line = first_line + data.count(b"\n", 0, offset)
    byte = offset - data.rfind(b"\n", 0, offset)  # bytes of a line are counted from 1
    raise NmtError(f"{name_of(path)}, line {line}, byte {byte}: {problem}", hint)


def _refuse_compressed(data: bytes, path: Path) -> None:
    """Raise an error if a file that is no text begins like a compressed file."""
    for begin, program, ending, command in _COMPRESSED:
        if not begin.match(data):
            continue
        problem = f"{name_of(path)} is compressed with {program}"
        hint = f"decompress it first: {command.format(_in_command(path))}"
        if path.suffix in _DECOMPRESSORS:  # data are the content of a compressed file
            problem = f"{path} is compressed twice, the first time with {program}"
            hint = f"{_DECOMPRESSORS[path.suffix]} {_in_command(path)} > NEW{ending} undoes the second time"
        elif ending in _DECOMPRESSORS and not is_read_once(path):
            problem += f", but its name does not end in {ending}"
            hint = f"rename it: mv {quoted(path)} {quoted(f'{path}{ending}')}"
        raise NmtError(problem, hint)


def _through(program: str, path: Path) -> str:
    """The shell command that runs a program on the text of a file."""
    if path.suffix in _DECOMPRESSORS:
        return f"{_DECOMPRESSORS[path.suffix]} {_in_command(path)} | {program}"
    return f"{program} {_in_command(path)}"


def _in_command(path: Path) -> str:
    """The name of a file in a shell command. Text that can be read only once must first be saved to a file."""
    return "FILE" if is_read_once(path) else quoted(path)


def check_text(text: object, name: str) -> str:
    """The text, if UTF-8 can encode it. Bytes of a command line that are not UTF-8 become lone surrogates in Python."""
    if not isinstance(text, str):
        raise NmtError(f"{name} is {text!r:.80}, not a text", "texts are Python strings")
    try:
        text.encode()
    except UnicodeEncodeError:
        hint = "set the terminal, or the program that wrote the text, to UTF-8"
        raise NmtError(f"{name} is not UTF-8", hint) from None
    return text


def name_of(path: Path) -> str:
    return "standard input" if path == STDIN else str(path)


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        if path == STDIN:
            # os.read does not take the lock of sys.stdin. A process forked meanwhile (search/workers.py) would wait
            # for that lock forever.
            yield from iter(lambda: os.read(sys.stdin.fileno(), BLOCK), b"")
            return
        whole = path.is_file()  # a named pipe is read without a buffer, which would wait until it is full
        with path.open("rb", buffering=-1 if whole else 0) as file:
            if path.suffix == ".zst":
                yield from _zst_chunks(file)
            elif path.suffix in (".gz", ".xz"):
                with gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else lzma.LZMAFile(file) as stream:
                    yield from iter(lambda: stream.read(BLOCK) if whole else stream.read1(BLOCK), b"")
                    if isinstance(stream, gzip.GzipFile) and stream.mtime is None:  # gzip accepts a file without header
                        raise EOFError
            else:
                yield from iter(lambda: file.read(BLOCK), b"")
    except EOFError:
        hint = "download or copy the file again"
        raise NmtError(f"{path} is cut off: the compressed data end too early", hint) from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, ValueError) as error:
        hint = "rename the file if it is plain text"
        raise NmtError(f"{path} is not a valid {path.suffix} file: {error}", hint) from None
    except FileNotFoundError:
        raise NmtError(f"there is no file {path}", _similar_files(path)) from None
    except OSError as error:
        hint = "check that it is a text file, and its permissions"
        raise NmtError(f"cannot read {name_of(path)}: {error.strerror}", hint) from None


def _zst_chunks(file: IO[bytes]) -> Iterator[bytes]:
    import zstandard

    start = zstandard.ZstdDecompressor().decompressobj
    # zstandard's own file reader accepts truncated files, so the end of each frame is checked here.
    frame: zstandard.ZstdDecompressionObj | None = start()
    for data in iter(lambda: file.read(BLOCK), b""):
        while data:
            frame = frame or start()
            try:
                text = frame.decompress(data)
            except zstandard.ZstdError as error:
                raise ValueError(error) from None
            if text:
                yield text
            data = b""
            if frame.eof:
                data, frame = frame.unused_data, None
    if frame is not None:
        raise EOFError


def _similar_files(path: Path) -> str:
    begin, near = path.name.split(".")[0], list[str]()
    if begin:
        with suppress(OSError):
            near = sorted(other.name for other in path.parent.iterdir() if other.name.startswith(begin))[:3]
    if near:
        return f"the folder has {', '.join(near)}"
    return "paths are relative to the current folder; paths in a recipe, to the folder of the recipe"


def write_text(path: Path, text: str) -> None:
    """Write a text file with UTF-8 and LF on every platform."""
    path.write_text(text, encoding="utf-8", newline="\n")


# Control characters, including tab, and separators that other programs treat as line ends. They never reach a model, so
# a model never writes them.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]+")
_SPACES = re.compile(" {2,}")
_BLANK = re.compile(
    "[\\s\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff]*"
)


def one_line(text: str) -> str:
    """Make sure that a text is one line: control characters and line separators become a space."""
    return _SPACES.sub(" ", _CONTROLS.sub(" ", text)).strip(" ")


def normalize(text: str, form: Normalization) -> str:
    """Normalize a line as for training. Every line goes through this before a model sees it."""
    if form != "none" and not text.isascii():
        text = unicodedata.normalize(form.upper(), text)  # type: ignore[arg-type]
    return one_line(text)


def is_blank(text: str) -> bool:
    """True if a text has only spaces, zero-width and other invisible characters."""
    return _BLANK.fullmatch(text) is not None
