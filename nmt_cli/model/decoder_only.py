"""One causal Transformer over source and target (Liu et al. 2018, section 4.2.3): the source up to its EOS, then BOS,
which separates the two, then the target. Only target tokens are predicted, so the loss is theirs alone.

As nobody looks ahead, the source never sees the target: its keys and values in every layer are all that the target
needs of it. They are computed once per sentence and are the memory. The last layer needs nothing else of the source.

Each side counts its positions from 0 and has a vector of its own added, so padding between the sides changes nothing,
and max_positions means what it means elsewhere.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli import recipe
from nmt_cli.model.base import Tensors
from nmt_cli.model.embedding import EmbeddingSeq2Seq
from nmt_cli.model.transformer import GROWTH, EncoderLayer, LearnedPositions, Sinusoids, initialise
from nmt_cli.vocab import PAD


class SidePositions(nn.Module):
    """Positions, and a vector that tells the side."""

    def __init__(self, config: recipe.DecoderOnly) -> None:
        super().__init__()
        kind = LearnedPositions if config.positions == "learned" else Sinusoids
        self.table = kind(config.max_positions, config.dim)
        self.side = nn.Parameter(torch.randn(config.dim))  # as large as a scaled embedding

    def forward(self, start: int, stop: int, like: Tensor) -> Tensor:
        return self.table(start, stop, like) + self.side


class Layer(EncoderLayer):
    """The layer of the Transformer's encoder, with a causal attention that may have a prefix, the source."""

    def keys_values(self, x: Tensor) -> Tensor:
        """(B,S,D) -> (B,S,2D), what the target will want to know of the source."""
        qkv, dim = self.attention.qkv, x.size(-1)
        return F.linear(self.around_attention.enter(x), qkv.weight[dim:], qkv.bias[dim:])

    def read(self, x: Tensor, weights: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """The source (B,S,D) -> the same after this layer, keys and values (B,S,2D), weights (B,H,S,S)."""
        query, keys_values = self.project(x)
        # Causal, and padding is at the end: no word sees any of it.
        key, value = self.attention.split(keys_values, 2)
        y, shares = self.attention.mix(query, key, value, causal=True, weights=weights)
        return self.finish(x, y), keys_values, shares

    def write(self, x: Tensor, prefix: Tensor, mask: Tensor | None, weights: bool) -> tuple[Tensor, Tensor | None]:
        """The whole target (B,T,D) after a prefix (B,S,2D) -> (B,T,D), weights (B,H,T,S+T)."""
        length, width = x.size(1), prefix.size(1)
        query, own = self.project(x)
        key, value = self.attention.split(torch.cat([prefix, own], 1), 2)
        visible = torch.ones(length, width + length, dtype=torch.bool, device=x.device).tril(width)
        if mask is not None:  # (B,1,1,S)
            visible = visible & F.pad(mask, (0, length), value=True)
        y, shares = self.attention.mix(query, key, value, visible, weights=weights)
        return self.finish(x, y), shares

    def step(self, x: Tensor, prefix: Tensor, mask: Tensor | None, cache: Tensor) -> tuple[Tensor, Tensor]:
        """One token (B*K,1,D) after a prefix (B,S,2D) that K rows share and after their own keys and values (B*K,t,2D),
        whose last position is free for x's -> (B*K,1,D), weights (B*K,H,1,S+t).

        The softmax is over both, but neither is copied to be beside the other, and the K rows go to their prefix
        together.
        """
        query, cache[:, -1:] = self.project(x)
        query = (query / math.sqrt(query.size(-1))).transpose(1, 2)  # (B*K,H,1,d)
        key, value = (part.transpose(1, 2) for part in self.attention.split(prefix, 2))  # (B,H,S,d)
        own_key, own_value = (part.transpose(1, 2) for part in self.attention.split(cache, 2))  # (B*K,H,t,d)
        scores = shared(query, len(prefix)) @ key.mT  # (B,H,K,S)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        shares = torch.cat([alone(scores), query @ own_key.mT], -1).softmax(-1)
        of_prefix, of_own = shares.split([key.size(2), own_key.size(2)], -1)
        context = alone(shared(of_prefix, len(prefix)) @ value) + of_own @ own_value  # (B*K,H,1,d)
        return self.finish(x, self.attention.output(context.transpose(1, 2).flatten(2))), shares

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B,T,D) -> queries (B,T,H,D/H), keys and values (B,T,2D)."""
        query, keys_values = self.attention.qkv(self.around_attention.enter(x)).split([x.size(-1), 2 * x.size(-1)], -1)
        return self.attention.split(query, 1)[0], keys_values


def shared(x: Tensor, rows: int) -> Tensor:
    """(B*K,H,1,n) -> (B,H,K,n)"""
    return x.squeeze(2).unflatten(0, (rows, -1)).transpose(1, 2)


def alone(x: Tensor) -> Tensor:
    """(B,H,K,n) -> (B*K,H,1,n)"""
    return x.transpose(1, 2).flatten(0, 1).unsqueeze(2)


class DecoderOnly(EmbeddingSeq2Seq):
    def __init__(self, config: recipe.DecoderOnly, source_vocab: int, target_vocab: int) -> None:
        dim = config.dim
        super().__init__(source_vocab, target_vocab, dim, config.tie, math.sqrt(dim), config.dropout)
        self.source_positions = SidePositions(config)
        self.target_positions = SidePositions(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(dim) if config.norm == "pre" else nn.Identity()
        initialise(self, dim)

    def met(self, name: str) -> tuple[float, float]:
        if name.startswith("norm"):
            return 0.0, 1.0
        if not name.startswith(f"layers.{len(self.layers) - 1}."):
            return 1.0, 1.0
        return (2 / 3 if "qkv" in name else 0.0), 1.0

    def positions(self, length: int) -> Tensor:
        return self.source_positions.table(0, length, self.target_embedding.weight)

    def encode(self, src: Tensor, attention: bool = False, keep: Tensor | None = None) -> Tensors:
        """memory: the keys and values of each layer (B,S,2D), and a mask (B,1,1,S) if there is padding."""
        memory: Tensors = {}
        if src.device.type != "cpu" or torch.compiler.is_compiling() or bool((src == PAD).any()):
            memory["mask"] = (src != PAD)[:, None, None]
        x = self.embed(src, self.source_table, self.source_positions, keep)
        shares: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            if i + 1 < len(self.layers) or attention:
                x, memory[f"keys_values{i}"], share = layer.read(x, attention)
                shares += [] if share is None else [share]
            else:
                memory[f"keys_values{i}"] = layer.keys_values(x)
        if attention:
            memory["attention"] = torch.stack(shares, 1)
        return memory

    def start(self, memory: Tensors) -> Tensors:
        """The state: the target's keys and values (B,L,t,2D), t at least the number of steps, and that number (B,)."""
        like = memory["keys_values0"]
        return {
            "cache": like.new_empty(len(like), len(self.layers), 0, like.size(-1)),
            "position": torch.zeros(len(like), dtype=torch.long, device=like.device),
        }

    def step(
        self, prev: Tensor, memory: Tensors, state: Tensors, attention: bool = False
    ) -> tuple[Tensor, Tensors | None, Tensors]:
        position, cache = int(state["position"][0]), state["cache"]
        if position == cache.size(2):
            cache = F.pad(cache, (0, 0, 0, GROWTH))
        x = self.embed(prev[:, None], self.target_embedding, self.target_positions, start=position)
        cross = []
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            prefix = memory[f"keys_values{i}"]
            x, shares = layer.step(x, prefix, memory.get("mask"), cache[:, i, : position + 1])
            cross.append(shares[:, :, 0, : prefix.size(1)])
        weights = {"cross": torch.stack(cross, 1)} if attention else None
        logits = self.project(self.norm(x[:, 0]))
        return logits, weights, {"cache": cache, "position": state["position"] + 1}

    def features(
        self, tgt_in: Tensor, memory: Tensors, attention: bool = False, keep: Tensor | None = None
    ) -> tuple[Tensor, Tensors | None]:
        """The weights of a word are shared out among source ("cross") and target ("decoder"); they are 1 together."""
        x = self.embed(tgt_in, self.target_embedding, self.target_positions, keep)
        all_shares: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            x, shares = layer.write(x, memory[f"keys_values{i}"], memory.get("mask"), attention)
            all_shares += [] if shares is None else [shares]
        if not attention:
            return self.norm(x), None
        cross, own = torch.stack(all_shares, 1).split([memory["keys_values0"].size(1), tgt_in.size(1)], -1)
        return self.norm(x), {"cross": cross, "decoder": own}
