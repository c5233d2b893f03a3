"""The input of `nmt translate` as rows: lines, each with its prefix or its given translation if there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nmt_cli.errors import NmtError
from nmt_cli.text.lines import STDIN, read_blocks, read_lines, split_tsv
from nmt_cli.translate.translator import Row


def read_rows(inputs: list[Path], beside: Path | None, tsv: bool, shard: str | None) -> Iterator[list[Row]]:
    """Blocks of rows. `beside` is a file read in step with the input; `tsv`: both are columns of one file."""
    inputs = inputs or [STDIN]
    for path in [*inputs, *([beside] if beside else [])]:
        if path != STDIN and (path.is_dir() or not path.exists()):
            next(read_lines(path), None)  # the reader knows what to say; a pipe it could read only once
    part = _part(inputs, shard) if shard else None
    return _blocks(inputs, beside, tsv, part)


def _blocks(
    inputs: list[Path], beside: Path | None, tsv: bool, part: tuple[int, int, bool] | None
) -> Iterator[list[Row]]:
    others = read_lines(beside) if beside else None
    number = 0
    for path in inputs:
        before = number
        for lines in read_blocks(path):
            rows = []
            for line in lines:
                number += 1
                other = ""
                if others is not None:
                    found = next(others, None)
                    if found is None:
                        raise NmtError(f"{beside} has only {number - 1} lines, fewer than the input", _SAME)
                    other = found
                elif tsv:
                    line, other = split_tsv(line, path, number - before)
                if part is None or part[0] < number <= part[1]:
                    rows.append(Row(number, line, other))
            if rows:
                yield rows
            if part is not None and number >= part[1] and not part[2]:
                return
    if others is not None and next(others, None) is not None:
        raise NmtError(f"{beside} has more lines than the input's {number}", _SAME)


_SAME = "each line of one belongs to a line of the other"


def _part(inputs: list[Path], shard: str) -> tuple[int, int, bool]:
    """Lines after the first and up to the second number, counted from 1, and whether these are the last: parts of equal
    size that make up the whole."""
    index, slash, count = shard.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise NmtError(f"--shard {shard} is not of the form I/N with I from 1 to N", "for example --shard 1/4")
    if not all(path.is_file() for path in inputs):
        raise NmtError("--shard needs a file: the end of a pipe or of standard input is not known", "name the file")
    total = sum(count_lines(path) for path in inputs)
    return total * (int(index) - 1) // int(count), total * int(index) // int(count), index == count


def count_lines(path: Path) -> int:
    return sum(len(lines) for lines in read_blocks(path))
