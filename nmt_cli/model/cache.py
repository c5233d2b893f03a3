"""The keys and values that a beam has written, kept by sentence: hypotheses of one sentence share what they share.

A state holds "cache" (B,L,n,2D), slots for the keys and values of all layers, and "seen" (B*K,m), which of the first m
slots are in the past of each of the K hypotheses. When hypotheses are reordered only the rows of "seen" move. The slots
are copied when sentences leave, and every GROWTH steps, to make room: then those that no hypothesis has in its past any
more are left behind.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nmt_cli.model.base import Tensors

GROWTH = 16  # steps for which room is made at a time


def move(state: Tensors, rows: Tensor) -> Tensors:
    """As Seq2Seq.move."""
    cache = state["cache"]
    if len(rows) < len(cache):  # sentences have left
        cache = cache.index_select(0, rows[:, 0] // (len(state["seen"]) // len(cache)))
    return {name: x.index_select(0, rows.flatten()) for name, x in state.items() if name != "cache"} | {"cache": cache}


def make_room(state: Tensors, rows: int, fixed: int = 0) -> tuple[Tensor, Tensor]:
    """The cache and what is seen of it, with one more slot for each of the rows, seen by that row alone, at the end.

    The first `fixed` slots keep their places.
    """
    cache, seen = state["cache"], state["seen"]
    sentences, (used, width) = len(cache), (seen.size(1), rows // len(cache))
    if used + width > cache.size(2):
        cache, seen = _grown(cache, seen.view(sentences, width, used), fixed)
        used = seen.size(1)
    own = torch.eye(width, dtype=torch.bool, device=seen.device).repeat(sentences, 1)
    return cache, torch.cat([seen, own], 1)


def _grown(cache: Tensor, seen: Tensor, fixed: int) -> tuple[Tensor, Tensor]:
    """cache (B,L,n,2D), seen (B,K,m) -> the slots that are wanted, then free ones, and seen (B*K,m') of the former."""
    sentences, layers, size, width = cache.shape
    wanted = seen.any(1)
    wanted[:, :fixed] = True
    used = int(wanted.sum(1).max()) if seen.numel() else 0
    slots = wanted.byte().argsort(stable=True, dim=1, descending=True)[:, :used]  # (B,m'), in their order
    grown = cache.new_empty(sentences, layers, used + GROWTH * seen.size(1), width)
    first = torch.arange(sentences * layers, device=cache.device).view(sentences, layers, 1) * size
    grown[:, :, :used] = (
        cache.view(-1, width).index_select(0, (first + slots[:, None]).flatten()).view(sentences, layers, used, width)
    )
    return grown, seen.gather(2, slots[:, None].expand(-1, seen.size(1), -1)).flatten(0, 1)
