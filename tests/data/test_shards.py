"""Shards of ids."""

from __future__ import annotations

import numpy as np

from nmt_cli.data.shards import Shard, ShardWriter


def test_a_vocabulary_above_65536_pieces_uses_32_bits(tmp_path):
    writer = ShardWriter(tmp_path, "x", 70_000)
    writer.write(np.array([69_999, 5, 65_536]), np.array([2, 0, 1]))
    writer.close()
    assert [part.tolist() for part in Shard(tmp_path, "x", 70_000)] == [[69_999, 5], [], [65_536]]
