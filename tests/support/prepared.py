"""Read prepared data."""

from __future__ import annotations

import json
from pathlib import Path

from nmt_cli.data.shards import Shard
from nmt_cli.text.vocab import load_vocab


def meta(folder: Path) -> dict:
    return json.loads((folder / "meta.json").read_text())


def shards(folder: Path, split: str = "train") -> list[tuple[list[int], list[int]]]:
    vocab = load_vocab(folder / "vocab")
    sides = [
        Shard(folder, f"{split}.{side}", size) for side, size in zip(("source", "target"), vocab.sizes, strict=True)
    ]
    return [(a.tolist(), b.tolist()) for a, b in zip(*sides, strict=True)]
