"""Read the input of `nmt translate`: lines, each with its prefix or with the translation to score."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from nmt_cli.errors import NmtError
from nmt_cli.text.lines import STDIN, name_of, read_blocks, read_lines, split_tsv


@dataclass(frozen=True)
class Row:
    """A line of input. `given` is a forced prefix, or the translation to score."""

    number: int  # in the whole input, from 1
    text: str
    given: str = ""


def read_rows(inputs: list[Path], given: Path | None, tsv: bool, shard: str | None) -> Iterator[list[Row]]:
    """Blocks of rows. The file `given` is read in step with the input. With `tsv`, both are columns of the input."""
    inputs = inputs or [STDIN]
    for path in [*inputs, *([given] if given else [])]:
        # Only a missing file is opened here, to raise its error before any work. A pipe can be opened only once.
        if path != STDIN and (path.is_dir() or not path.exists()):
            next(read_lines(path), None)
    return _blocks(inputs, given, tsv, _parse_shard(inputs, shard) if shard else range(1, sys.maxsize))


def _blocks(inputs: list[Path], given: Path | None, tsv: bool, wanted: range) -> Iterator[list[Row]]:
    given_lines = read_lines(given) if given else repeat("")
    name, hint = name_of(given or STDIN), "the file must have one line for each line of the input"
    number = 0
    for path in inputs:
        lines_before = number
        for lines in read_blocks(path):
            rows = []
            for line in lines:
                number += 1
                given_text = next(given_lines, None)
                if given_text is None:
                    raise NmtError(f"{name} has only {number - 1} lines, fewer than the input", hint)
                columns = split_tsv(line, path, number - lines_before) if tsv else (line, given_text)
                if number in wanted:
                    rows.append(Row(number, *columns))
            if rows:
                yield rows
            if number + 1 >= wanted.stop:
                return
    if given and next(given_lines, None) is not None:
        raise NmtError(f"{name} has more lines than the input, which has {number}", hint)


def _parse_shard(inputs: list[Path], shard: str) -> range:
    """The numbers of the lines of a shard. Shards have almost equal sizes. Together they are the whole input."""
    index, slash, count = shard.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise NmtError(f"--shard {shard} is not of the form I/N with I from 1 to N", "for example --shard 1/4")
    if not all(path != STDIN and path.is_file() for path in inputs):  # a file may have the name "-"
        raise NmtError("--shard needs a file, because a pipe must be read to its end to count its lines", "name a file")
    total = sum(map(count_lines, inputs))
    first, last = (total * part // int(count) for part in (int(index) - 1, int(index)))
    # The last shard has no end, so that its reader also checks that no file has more lines than the others.
    return range(first + 1, sys.maxsize if index == count else last + 1)


def count_lines(path: Path) -> int:
    return sum(len(lines) for lines in read_blocks(path))
