"""The cache of keys and values for the hypotheses of a beam search.

The K hypotheses of a sentence share one row of slots. A state holds
    "cache" (B,L,n,2D): slots for keys and values of all layers; each step fills K more slots of each sentence,
    "seen" (B*K,m): which of the first m slots belong to the past of each hypothesis,
    "position" (B*K,): the number of steps.
Reordering hypotheses moves rows of "seen" only. The cache is copied when sentences leave and when no slot is free.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nmt_cli.model.base import Tensors

GROWTH = 16  # the number of steps for which each copy makes room


def start(cache: Tensor, seen: Tensor | None = None) -> Tensors:
    """The state before the first token. Without `seen`, each hypothesis sees all slots of the cache."""
    if seen is None:
        seen = torch.ones(len(cache), cache.size(2), dtype=torch.bool, device=cache.device)
    return {"cache": cache, "seen": seen, "position": torch.zeros(len(cache), dtype=torch.long, device=cache.device)}


def move(state: Tensors, rows: Tensor) -> Tensors:
    """Seq2Seq.move for a state with a cache."""
    cache = state["cache"]
    if len(rows) < len(cache):  # sentences have left
        cache = cache.index_select(0, rows[:, 0] // (len(state["seen"]) // len(cache)))
    return {name: x.index_select(0, rows.flatten()) for name, x in state.items() if name != "cache"} | {"cache": cache}


def make_room(state: Tensors, rows: int, fixed: int = 0) -> Tensors:
    """The next state. Each of the `rows` hypotheses gets one more slot at the end, which no other hypothesis sees.

    The first `fixed` slots of a sentence are never dropped or moved.
    """
    cache, seen = state["cache"], state["seen"]
    sentences, used = len(cache), seen.size(1)
    width = rows // sentences
    if used + width > cache.size(2):
        cache, seen = _grow(cache, seen.view(sentences, width, used), fixed)
    new_slots = torch.eye(width, dtype=torch.bool, device=seen.device).repeat(sentences, 1)
    return {"cache": cache, "seen": torch.cat([seen, new_slots], 1), "position": state["position"] + 1}


def _grow(cache: Tensor, seen: Tensor, fixed: int) -> tuple[Tensor, Tensor]:
    """Copy the slots that some hypothesis sees into a cache that ends with free slots.

    seen (B,K,m) -> the new cache, and its "seen" (B*K,m').
    """
    sentences, layers, size, width = cache.shape
    needed = seen.any(1)
    needed[:, :fixed] = True
    used = int(needed.sum(1).max()) if seen.numel() else 0
    slots = needed.byte().argsort(stable=True, dim=1, descending=True)[:, :used]  # (B,m'), needed slots in their order
    grown = cache.new_empty(sentences, layers, used + GROWTH * seen.size(1), width)
    first = torch.arange(sentences * layers, device=cache.device).view(sentences, layers, 1) * size
    grown[:, :, :used] = (
        cache.view(-1, width).index_select(0, (first + slots[:, None]).flatten()).view(sentences, layers, used, width)
    )
    return grown, seen.gather(2, slots[:, None].expand(-1, seen.size(1), -1)).flatten(0, 1)
