"""The rules for lines (text/lines.py), compared with `wc -l`, the codecs of Python and the compressors."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import subprocess
import unicodedata
import zipfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.errors import NmtError
from nmt_cli.text import lines as text
from nmt_cli.text.lines import is_blank, normalize, one_line, read_lines, split_tsv

LINES = [
    (b"", []),
    (b"\n", [""]),
    (b"a", ["a"]),
    (b"a\nb", ["a", "b"]),
    (b"a\nb\n", ["a", "b"]),
    (b"a\nb\n\n", ["a", "b", ""]),
    (b"a\r\nb\r\n", ["a", "b"]),
    (b"a\r\r\nb", ["a\r", "b"]),  # only one CR belongs to the end
    (b"Work.\r Plan it.\r\nb\r\n", ["Work.\r Plan it.", "b"]),
    ("a\x0bb\x0cc\x85d\u2028e\u2029f\x1cg\n".encode(), ["a\x0bb\x0cc\x85d\u2028e\u2029f\x1cg"]),
    (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
    (b"\xef\xbb\xbf", []),
    (b"\xef\xbb\xbf\n", [""]),
    (b"a\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),  # a BOM elsewhere is text
]


@pytest.mark.parametrize(("data", "lines"), LINES)
@pytest.mark.parametrize("block", [1, 2, 3, 1 << 20])
def test_only_lf_ends_a_line(write, monkeypatch, data, lines, block):
    monkeypatch.setattr(text, "BLOCK", block)  # the lines do not depend on where blocks end
    assert list(read_lines(write("x", data))) == lines


def test_a_million_character_line_is_one_line(write):
    line = "ä" * 10**6
    assert list(read_lines(write("x", f"{line}\nend\n"))) == [line, "end"]


@given(st.binary().filter(lambda data: b"\0" not in data))
def test_line_count_equals_wc(data):
    """For valid UTF-8: wc counts LFs; a last line without LF is one more."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(data)
        try:
            data.decode()
        except UnicodeDecodeError:
            with pytest.raises(NmtError):
                list(read_lines(path))
            return
        text_only = data.removeprefix(b"\xef\xbb\xbf")
        wc = int(subprocess.run(["wc", "-l"], input=text_only, capture_output=True, check=True).stdout)
        assert len(list(read_lines(path))) == wc + bool(text_only and not text_only.endswith(b"\n"))


COMPRESSED = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_compressed_files_are_read(write, suffix):
    data = "".join(f"line {number} é\n" for number in range(50_000)).encode()
    compress = COMPRESSED[suffix]
    assert list(read_lines(write("x" + suffix, compress(data)))) == data.decode().split("\n")[:-1]
    assert list(read_lines(write("empty" + suffix, compress(b"")))) == []
    parts = compress(data[:1001]) + compress(data[1001:])  # cat a.gz b.gz is a sound file
    assert len(list(read_lines(write("y" + suffix, parts)))) == 50_000


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_truncated_compressed_files_are_refused(write, suffix, share):
    data = COMPRESSED[suffix](bytes(range(32, 127)) * 2000 + b"\n")
    with pytest.raises(NmtError, match=r"cut off|not a valid"):
        list(read_lines(write("x" + suffix, data[: int(len(data) * share)])))


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_plain_text_with_a_compressed_ending_is_refused(write, suffix):
    with pytest.raises(NmtError, match=f"not a valid {suffix} file"):
        list(read_lines(write("x" + suffix, b"plain text\n" * 100)))


BAD = [
    (b"caf\xe9\n", "line 1, byte 4: not UTF-8 (0xe9)"),
    (b"ok\nok\nsch\xf6n\n", "line 3, byte 4: not UTF-8 (0xf6)"),
    (b"a\n\xed\xa0\x80\n", "line 2, byte 1: not UTF-8 (0xed)"),  # a lone surrogate
    (b"a\n\xc0\xaf\n", "line 2, byte 1: not UTF-8 (0xc0)"),  # overlong
    (b"a\nb\xe2\x82", "line 2, byte 2: the end of a character is missing"),
    ("hello\n".encode("utf-16"), "line 1, byte 1: not UTF-8 (0xff)"),
    ("hello\n".encode("utf-16-le"), "line 1, byte 2: a NUL byte"),
    (b"fine\nx\0y\n", "line 2, byte 2: a NUL byte"),
]


@pytest.mark.parametrize(("data", "message"), BAD)
@pytest.mark.parametrize("block", [4, 1 << 20])
def test_bad_bytes_are_located(write, monkeypatch, data, message, block):
    monkeypatch.setattr(text, "BLOCK", block)
    path = write("x", data)
    with pytest.raises(NmtError) as caught:
        list(read_lines(path))
    assert caught.value.message.startswith(f"{path}, {message}")
    assert caught.value.hint


def zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("NEW", data)
    return file.getvalue()


def hint_of(path: Path, tsv: bool = False) -> tuple[str, str]:
    """The message of the error, and the command in its hint."""
    with pytest.raises(NmtError) as caught:
        for number, line in enumerate(read_lines(path), 1):
            if tsv:
                split_tsv(line, path, number)
    hint = caught.value.hint.split(": ")[-1]
    for explanation in (" converts it", " keeps the first two", " undoes the second time"):
        hint = hint.removesuffix(explanation)
    return caught.value.message, hint


WORD, ZST = "é\n".encode(), COMPRESSED[".zst"]
# The name of a file in the folder "my corp", its content, the problem, the command of the hint with "{0}" in place of
# the file, and the new file.
HINTS = [
    ("b.en", "é\n".encode("latin-1"), "not UTF-8", "iconv -f LATIN1 -t UTF-8 '{0}' > NEW", "NEW"),
    ("b.en", "é\n".encode("utf-16"), "not UTF-8", "iconv -f UTF-16 -t UTF-8 '{0}' > NEW", "NEW"),
    ("b.gz", gzip.compress("é\n".encode("utf-16")), "not UTF-8", "zcat '{0}' | iconv -f UTF-16 -t UTF-8 > NEW", "NEW"),
    ("b.gz", gzip.compress(b"\xe9\n"), "not UTF-8", "zcat '{0}' | iconv -f LATIN1 -t UTF-8 > NEW", "NEW"),
    ("b.xz", lzma.compress(b"\xe9\n"), "not UTF-8", "xzcat '{0}' | iconv -f LATIN1 -t UTF-8 > NEW", "NEW"),
    ("b.zst", ZST(b"\xe9\n"), "not UTF-8", "zstdcat '{0}' | iconv -f LATIN1 -t UTF-8 > NEW", "NEW"),
    ("b.en", gzip.compress(WORD), "gzip, but its name does not end in .gz", "mv '{0}' '{0}.gz'", "my corp/b.en.gz"),
    ("b.en", lzma.compress(WORD), "xz, but its name does not end in .xz", "mv '{0}' '{0}.xz'", "my corp/b.en.xz"),
    ("b.en", ZST(WORD), "zstd, but its name does not end in .zst", "mv '{0}' '{0}.zst'", "my corp/b.en.zst"),
    ("b.en", bz2.compress(WORD), "compressed with bzip2", "bzcat '{0}' > NEW", "NEW"),
    ("b.bz2", bz2.compress(WORD), "compressed with bzip2", "bzcat '{0}' > NEW", "NEW"),
    ("b.en", zipped(WORD), "compressed with zip", "unzip '{0}'", "NEW"),
    ("b.gz", gzip.compress(lzma.compress(WORD)), "compressed twice", "zcat '{0}' > NEW.xz", "NEW.xz"),
]


@pytest.mark.parametrize(("name", "data", "problem", "command", "new"), HINTS)
def test_the_command_of_the_hint_makes_a_file_that_can_be_read(write, tmp_path, name, data, problem, command, new):
    path = write(f"my corp/{name}", data)
    message, hint = hint_of(path)
    assert message.startswith(str(path)) and problem in message
    assert hint == command.format(path)
    if shutil.which(command.split()[0]) and shutil.which("iconv"):
        subprocess.run(["bash", "-c", hint], cwd=tmp_path, check=True, capture_output=True)
        assert list(read_lines(tmp_path / new)) == ["é"]


COLUMNS = [("b.tsv", bytes, "cut -f1,2 {} > NEW"), ("b.tsv.gz", gzip.compress, "zcat {} | cut -f1,2 > NEW")]


@pytest.mark.parametrize(("name", "compress", "command"), COLUMNS)
def test_the_command_of_the_hint_keeps_two_columns(write, tmp_path, name, compress, command):
    path = write(f"my corp/{name}", compress(b"a\tb\tc\n"))
    message, hint = hint_of(path, tsv=True)
    assert "line 1: 3 columns" in message and hint == command.format(f"'{path}'")
    subprocess.run(["bash", "-c", hint], cwd=tmp_path, check=True)
    assert (tmp_path / "NEW").read_bytes() == b"a\tb\n"


PIPED = [
    (b"\xe9\n", "not UTF-8", "iconv -f LATIN1 -t UTF-8 FILE > NEW"),
    (gzip.compress(b"a\n"), "compressed with gzip", "zcat FILE > NEW"),
    (zipped(b"a\n"), "compressed with zip", "unzip FILE"),
]


@pytest.mark.parametrize(("data", "problem", "command"), PIPED)
def test_the_hint_for_a_pipe_names_a_file_in_place_of_the_pipe(data, problem, command):
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    message, hint = hint_of(Path(f"/dev/fd/{reader}"))
    os.close(reader)
    assert problem in message and hint == command


def test_error_of_a_missing_file_names_similar_files(write, tmp_path):
    write("train.en.gz", b"")
    with pytest.raises(NmtError, match="there is no file") as caught:
        list(read_lines(tmp_path / "train.en"))
    assert "train.en.gz" in caught.value.hint


@pytest.mark.parametrize("name", ["train*.en", "*.en", "t**.en", "none/train.en", "train.en/x", "[.en"])
def test_error_of_a_missing_file_does_not_read_its_name_as_a_pattern(write, tmp_path, name):
    write("train.en.gz", b"")
    write("below/train.en", b"")
    with pytest.raises(NmtError, match="there is no file") as caught:
        list(read_lines(tmp_path / name))
    assert caught.value.hint.startswith("paths are relative")


@pytest.mark.parametrize("line", ["one", "a\tb\tc", ""])
def test_tsv_has_two_columns(line):
    with pytest.raises(NmtError, match=r"line 7: \d column"):
        split_tsv(line, Path("x.tsv"), 7)


def test_tsv_line_is_split_at_the_tab():
    assert split_tsv("a b\tc d", Path("x.tsv"), 1) == ("a b", "c d")


BLANK = ["", " ", "\t", "\u200b", "\u00a0\u3000", "\ufeff", "\u2060 \u200d", "\u00ad"]


@pytest.mark.parametrize("line", BLANK)
def test_invisible_text_is_blank(line):
    assert is_blank(line)
    assert not is_blank(line + "x" + line)


@pytest.mark.parametrize(
    ("form", "given", "expected"),
    [
        ("nfc", "e\u0301 ﬁ", "é ﬁ"),
        ("nfkc", "e\u0301 ﬁ ①", "é fi 1"),
        ("none", "e\u0301 ﬁ", "e\u0301 ﬁ"),
        ("nfc", "  a\tb \x0b c\x85d\u2028e\x00 ", "a b c d e"),
        ("none", "a\rb\x7f\u2029", "a b"),
        ("nfc", "a\u00a0b", "a\u00a0b"),  # a no-break space is typography, not layout
    ],
)
def test_normalize(form, given, expected):
    assert normalize(given, form) == expected


@given(st.text())
def test_one_line_removes_all_line_ends(given_text):
    line = one_line(given_text)
    assert len(line.splitlines()) <= 1
    assert not any(unicodedata.category(character) == "Cc" for character in line)
    assert one_line(line) == line
