"""The demo corpus: 21,000 English-French sentence pairs, and the word alignment of the test split, compressed.

tools/demo_corpus/ in the repository makes these files from a small grammar; a test compares the two.
"""

from __future__ import annotations

from pathlib import Path

from nmt_cli.text.lines import read_lines, split_tsv

SPLITS = ("train", "dev", "test")


def demo_corpus(split: str) -> list[tuple[str, str]]:
    """The (English, French) sentence pairs of train, dev or test."""
    path = Path(__file__).parent / f"{split}.tsv.xz"
    return [split_tsv(line, path, number) for number, line in enumerate(read_lines(path), 1)]


def demo_alignment() -> list[str]:
    """The word alignment of each pair of the test split, with sure and possible links: "0-0 1-1 2?1"."""
    return list(read_lines(Path(__file__).parent / "test.align.xz"))
