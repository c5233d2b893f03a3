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

from nmt_cli.model import cache
from nmt_cli.model.base import Tensors
from nmt_cli.model.embedding import EmbeddingSeq2Seq
from nmt_cli.model.transformer import EncoderLayer, LearnedPositions, Sinusoids, initialise
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import PAD


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

    def step(self, x: Tensor, past: Tensor, seen: Tensor, weights: bool) -> tuple[Tensor, Tensor | None]:
        """One token (B*K,1,D) after the source and what was written, as in SelfAttention.step."""
        y, shares = self.attention.step(self.around_attention.enter(x), past, seen, weights)
        return self.finish(x, y), shares

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B,T,D) -> queries (B,T,H,D/H), keys and values (B,T,2D)."""
        query, keys_values = self.attention.qkv(self.around_attention.enter(x)).split([x.size(-1), 2 * x.size(-1)], -1)
        return self.attention.split(query, 1)[0], keys_values


class DecoderOnly(EmbeddingSeq2Seq):
    def __init__(self, config: recipe.DecoderOnly, source_vocab: int, target_vocab: int) -> None:
        dim = config.dim
        super().__init__(source_vocab, target_vocab, dim, config.tie, math.sqrt(dim), config.dropout)
        self.source_positions = SidePositions(config)
        self.target_positions = SidePositions(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(dim) if config.norm == "pre" else nn.Identity()
        initialise(self, dim)

    def uses_per_token(self, name: str) -> tuple[float, float]:
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
        """The state: that of cache.py, in which the source comes first, and the number of steps (B,)."""
        source = torch.stack([memory[f"keys_values{i}"] for i in range(len(self.layers))], 1)
        everything = torch.ones(len(source), source.size(2), dtype=torch.bool, device=source.device)
        return {
            "cache": source,
            "seen": memory["mask"][:, 0, 0] if "mask" in memory else everything,
            "position": torch.zeros(len(source), dtype=torch.long, device=source.device),
        }

    def move(self, state: Tensors, rows: Tensor) -> Tensors:
        return cache.move(state, rows)

    def step(
        self, prev: Tensor, memory: Tensors, state: Tensors, attention: bool = False
    ) -> tuple[Tensor, Tensors | None, Tensors]:
        position, length = int(state["position"][0]), memory["keys_values0"].size(1)
        past, seen = cache.make_room(state, len(prev), fixed=length)
        visible = seen.view(len(past), 1, -1, seen.size(1))
        x = self.embed(prev[:, None], self.target_embedding, self.target_positions, start=position)
        cross: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            x, shares = layer.step(x, past[:, i, : seen.size(1)], visible, attention)
            cross += [] if shares is None else [shares[..., :length]]
        weights = {"cross": torch.stack(cross, 1).movedim(3, 1).flatten(0, 1)} if attention else None
        logits = self.project(self.norm(x[:, 0]))
        return logits, weights, {"cache": past, "seen": seen, "position": state["position"] + 1}

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
