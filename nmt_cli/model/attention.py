"""Multi-head attention (Vaswani et al. 2017, section 3.2). The dimensions are those of base.py."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.model.device import on_cpu
from nmt_cli.model.dropout import dropout
from nmt_cli.model.linear import Linear

# The linear layers that fuse several matrices into one, which is faster, and the number of these matrices.
FUSED = {"qkv": 3, "keys_values": 2}

Attended = tuple[Tensor, Tensor | None]  # the output, and attention weights if needed


class Attention(nn.Module):
    """The parts that self-attention and cross-attention share: heads, dropout of the weights, the output projection."""

    def __init__(self, dim: int, heads: int, dropout_rate: float) -> None:
        super().__init__()
        self.heads, self.dropout_rate = heads, dropout_rate
        self.output = Linear(dim, dim)

    def split(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(B,T,parts*D) -> a tuple of `parts` tensors (B,T,H,D/H), without copying."""
        return projected.unflatten(-1, (parts, self.heads, -1)).unbind(2)

    def attend(
        self, parts: tuple[Tensor, ...], mask: Tensor | None, need_weights: bool, causal: bool = False
    ) -> Attended:
        """Queries (B,T,H,D/H), keys and values (B,S,H,D/H) -> (B,T,D), and weights (B,H,T,S) if needed.

        A query sees the positions where the mask, which broadcasts to (B,H,T,S), is True. PyTorch's fused kernel does
        not return the weights, and its dropout is slow on a CPU. In these two cases attention is computed step by step.
        """
        dropout_rate = self.dropout_rate if self.training else 0.0
        query, key, value = (part.transpose(1, 2) for part in parts)
        weights = None
        if not need_weights and (not dropout_rate or not on_cpu(query)):
            context = F.scaled_dot_product_attention(query, key, value, mask, dropout_rate, causal)
        else:
            scores = query @ key.transpose(2, 3) / math.sqrt(query.size(-1))
            if causal:
                future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
                scores = scores.masked_fill(future, float("-inf"))
            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            weights = scores.softmax(-1)
            context = dropout(weights, dropout_rate) @ value
        return self.output(context.transpose(1, 2).flatten(2)), weights if need_weights else None


class SelfAttention(Attention):
    """Queries, keys and values come from the same sequence, by one matrix product."""

    def __init__(self, dim: int, heads: int, dropout_rate: float) -> None:
        super().__init__(dim, heads, dropout_rate)
        self.qkv = Linear(dim, 3 * dim)

    def forward(self, x: Tensor, mask: Tensor | None, need_weights: bool, causal: bool = False) -> Attended:
        return self.attend(self.split(self.qkv(x), 3), mask, need_weights, causal)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B,T,D) -> queries (B,T,H,D/H), keys and values (B,T,2D)."""
        query, keys_values = self.qkv(x).split([x.size(-1), 2 * x.size(-1)], -1)
        return self.split(query, 1)[0], keys_values

    def step(self, x: Tensor, cache: Tensor, seen: Tensor | None, need_weights: bool) -> Attended:
        """One token of each hypothesis: x (B*K,1,D) -> (B*K,1,D), and weights (B,H,K,n) if needed.

        The K hypotheses of a sentence share the cache (B,n,2D). Its last K slots are free: the keys and values of x are
        written there. Hypothesis k of sentence b sees the slots where seen[b,0,k] (B,1,K,n) is True; None: all slots.
        """
        rows = x.view(len(cache), -1, x.size(-1))
        query, cache[:, -rows.size(1) :] = self.project(rows)
        y, weights = self.attend((query, *self.split(cache, 2)), seen, need_weights)
        return y.view(x.shape), weights


class CrossAttention(Attention):
    """Queries come from the target. Keys and values come from the source and are computed once per sentence."""

    def __init__(self, dim: int, heads: int, dropout_rate: float) -> None:
        super().__init__(dim, heads, dropout_rate)
        self.query = Linear(dim, dim)
        self.keys_values = Linear(dim, 2 * dim)

    def forward(self, x: Tensor, keys_values: Tensor, mask: Tensor | None, need_weights: bool) -> Attended:
        """x (B,T,D), keys_values (B,S,2D) -> (B,T,D), and weights (B,H,T,S) if needed."""
        return self.attend(self.split(self.query(x), 1) + self.split(keys_values, 2), mask, need_weights)
