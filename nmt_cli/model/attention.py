"""Multi-head attention: queries look up keys and take home a mixture of values (Vaswani et al. 2017, section 3.2)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.model.dropout import dropout

FUSED = {"qkv": 3, "keys_values": 2}  # layers that hold so many matrices, for the sake of speed


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    drop: float = 0.0,
    weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Queries (B,T,H,D/H), keys and values (B,S,H,D/H) -> (B,T,D), and the weights (B,H,T,S) if asked for.

    `mask` broadcasts to (B,H,T,S) and is True where one may look. The fused kernel never writes the weights down, so
    it serves only while nobody wants to see them, or, on a CPU, to drop some.
    """
    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    if not weights and (not drop or query.device.type != "cpu"):
        context = F.scaled_dot_product_attention(query, key, value, mask, drop, causal)
        return context.transpose(1, 2).flatten(2), None
    scores = query @ key.transpose(2, 3) / math.sqrt(query.size(-1))
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    shares = scores.softmax(-1)
    context = dropout(shares, drop) @ value
    return context.transpose(1, 2).flatten(2), shares if weights else None


class Attention(nn.Module):
    """What self- and cross-attention share: heads, dropout of the weights, and the output projection."""

    def __init__(self, dim: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads = heads
        self.drop = drop
        self.output = nn.Linear(dim, dim)

    def split(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(B,T,parts*D) -> parts times (B,T,H,D/H), without copying."""
        return projected.unflatten(-1, (parts, self.heads, -1)).unbind(2)

    def mix(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        drop = self.drop if self.training else 0.0
        context, shares = attend(query, key, value, mask, causal, drop, weights)
        return self.output(context), shares


class SelfAttention(Attention):
    """Queries, keys and values from the same sequence, by one matrix product."""

    def __init__(self, dim: int, heads: int, drop: float) -> None:
        super().__init__(dim, heads, drop)
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, causal: bool = False, weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        query, key, value = self.split(self.qkv(x), 3)
        return self.mix(query, key, value, mask, causal, weights)

    def step(
        self, x: Tensor, cache: Tensor, seen: Tensor | None, weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """x (B*K,1,D), of which K rows share a cache (B,n,2D); its last K slots are free for x's own keys and values.
        Row k of sentence b sees the slots where seen[b,0,k] (B,1,K,n) is True, or all; weights: (B,H,K,n)."""
        rows = x.view(len(cache), -1, x.size(-1))
        query, cache[:, -rows.size(1) :] = self.qkv(rows).split([x.size(-1), 2 * x.size(-1)], -1)
        key, value = self.split(cache, 2)
        y, shares = self.mix(self.split(query, 1)[0], key, value, seen, weights=weights)
        return y.view(x.shape), shares


class CrossAttention(Attention):
    """Queries from the target; keys and values from the source, projected once per sentence."""

    def __init__(self, dim: int, heads: int, drop: float) -> None:
        super().__init__(dim, heads, drop)
        self.query = nn.Linear(dim, dim)
        self.keys_values = nn.Linear(dim, 2 * dim)

    def forward(
        self, x: Tensor, keys_values: Tensor, mask: Tensor | None = None, weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """x (B,T,D), keys_values (B,S,2D)."""
        key, value = self.split(keys_values, 2)
        return self.mix(self.split(self.query(x), 1)[0], key, value, mask, weights=weights)
