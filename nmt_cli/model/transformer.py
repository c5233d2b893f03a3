"""The Transformer (Vaswani et al. 2017), with the choices of recipe.Transformer."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.errors import NmtError
from nmt_cli.model import cache
from nmt_cli.model.attention import FUSED, CrossAttention, SelfAttention
from nmt_cli.model.base import Tensors
from nmt_cli.model.dropout import dropout
from nmt_cli.model.embedding import EmbeddingSeq2Seq, initialise_embedding
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import PAD

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu_, "gelu": F.gelu, "swish": F.silu}


def sinusoids(length: int, dim: int) -> Tensor:
    """(length,D): PE(pos,2i) = sin(pos / 10000^(2i/D)), PE(pos,2i+1) = cos of the same."""
    position = torch.arange(length, dtype=torch.float64, device="cpu")[:, None]
    angle = position / 10000 ** (torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).float()


class Sinusoids(nn.Module):
    """Positions by formula. The table is no buffer: it is not learnt, and it grows with the longest sentence seen."""

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.table = sinusoids(length, dim)

    def forward(self, start: int, stop: int, like: Tensor) -> Tensor:
        if stop > len(self.table):
            self.table = sinusoids(2 * stop, self.table.size(1))
        if self.table.device != like.device:
            self.table = self.table.to(like.device)
        return self.table[start:stop].to(like.dtype)


class LearnedPositions(nn.Embedding):
    """A vector for each position, up to a limit."""

    def forward(self, start: int, stop: int, like: Tensor) -> Tensor:  # type: ignore[override]
        if stop > self.num_embeddings:
            raise NmtError(
                f"a sentence of {stop} pieces is longer than the {self.num_embeddings} positions that were learnt",
                'split it, or train with a larger model.max_positions or with model.positions = "sinusoidal"',
            )
        return self.weight[start:stop]


class Residual(nn.Module):
    """The sum and the norm around each part of a layer. post: norm(x + part(x)); pre: x + part(norm(x))."""

    def __init__(self, config: recipe.Transformer | recipe.DecoderOnly) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.drop = config.dropout
        self.norm = nn.LayerNorm(config.dim)

    def enter(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.pre else x

    def leave(self, x: Tensor, output: Tensor) -> Tensor:
        x = dropout(output, self.drop if self.training else 0.0, residual=x)
        return x if self.pre else self.norm(x)


class FeedForward(nn.Module):
    def __init__(self, config: recipe.Transformer | recipe.DecoderOnly) -> None:
        super().__init__()
        self.inner = nn.Linear(config.dim, config.ff)
        self.outer = nn.Linear(config.ff, config.dim)
        self.activation = ACTIVATIONS[config.activation]
        self.drop = config.ff_dropout

    def forward(self, x: Tensor) -> Tensor:
        # As one matrix: it can be overwritten by the ReLU, where autograd would copy a view of it.
        hidden = self.activation(self.inner(x.flatten(0, -2)))
        return self.outer(dropout(hidden, self.drop if self.training else 0.0)).view(x.shape)


class EncoderLayer(nn.Module):
    def __init__(self, config: recipe.Transformer | recipe.DecoderOnly) -> None:
        super().__init__()
        self.attention = SelfAttention(config.dim, config.heads, config.attention_dropout)
        self.around_attention = Residual(config)
        self.feed_forward = FeedForward(config)
        self.around_feed_forward = Residual(config)

    def forward(self, x: Tensor, mask: Tensor | None, weights: bool) -> tuple[Tensor, Tensor | None]:
        y, shares = self.attention(self.around_attention.enter(x), mask, weights=weights)
        return self.finish(x, y), shares

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """From the input of the layer and the output of its attention to its own output."""
        x = self.around_attention.leave(x, attended)
        y = self.feed_forward(self.around_feed_forward.enter(x))
        return self.around_feed_forward.leave(x, y)


class DecoderLayer(nn.Module):
    def __init__(self, config: recipe.Transformer) -> None:
        super().__init__()
        self.attention = SelfAttention(config.dim, config.heads, config.attention_dropout)
        self.around_attention = Residual(config)
        self.cross = CrossAttention(config.dim, config.heads, config.attention_dropout)
        self.around_cross = Residual(config)
        self.feed_forward = FeedForward(config)
        self.around_feed_forward = Residual(config)

    def forward(
        self,
        x: Tensor,
        keys_values: Tensor,
        mask: Tensor | None,
        past: Tensor | None,
        seen: Tensor | None,
        weights: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """x (B,T,D), or (B*K,1,D) with what earlier steps left; returns also cross and self-attention weights."""
        y = self.around_attention.enter(x)
        if past is None:
            y, own = self.attention(y, causal=True, weights=weights)
        else:
            y, own = self.attention.step(y, past, seen)
        x = self.around_attention.leave(x, y)
        # Rows that share a source, the hypotheses of a beam, go to it together, as if they were positions.
        y = self.around_cross.enter(x).view(len(keys_values), -1, x.size(-1))
        y, shares = self.cross(y, keys_values, mask, weights)
        x = self.around_cross.leave(x, y.view(x.shape))
        y = self.feed_forward(self.around_feed_forward.enter(x))
        return self.around_feed_forward.leave(x, y), shares, own


def initialise(model: nn.Module, dim: int) -> None:
    """Xavier for matrices, each of a fused one by itself; embeddings of unit length, which their scale makes those of
    unit variance; biases zero."""
    for name, module in model.named_modules():
        match module:
            case nn.Linear(bias=None):
                nn.init.normal_(module.weight, std=dim**-0.5)  # the output, as if it were tied
            case nn.Linear():
                for matrix in module.weight.chunk(FUSED.get(name.rpartition(".")[2], 1)):
                    nn.init.xavier_uniform_(matrix)
                nn.init.zeros_(module.bias)
            case nn.Embedding():
                initialise_embedding(module, dim**-0.5)


class Transformer(EmbeddingSeq2Seq):
    def __init__(self, config: recipe.Transformer, source_vocab: int, target_vocab: int) -> None:
        dim = config.dim
        super().__init__(source_vocab, target_vocab, dim, config.tie, math.sqrt(dim), config.dropout)
        positions = LearnedPositions if config.positions == "learned" else Sinusoids
        self.source_positions = positions(config.max_positions, dim)
        self.target_positions = positions(config.max_positions, dim)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        # Post-norm layers end with a norm of their own.
        self.encoder_norm = nn.LayerNorm(dim) if config.norm == "pre" else nn.Identity()
        self.decoder_norm = nn.LayerNorm(dim) if config.norm == "pre" else nn.Identity()
        initialise(self, dim)

    def positions(self, length: int) -> Tensor:
        return self.source_positions(0, length, self.target_embedding.weight)

    def uses_per_token(self, name: str) -> tuple[float, float]:
        return (1.0, 0.0) if name.startswith("encoder") or "keys_values" in name else (0.0, 1.0)

    def encode(self, src: Tensor, attention: bool = False, keep: Tensor | None = None) -> Tensors:
        """memory: the keys and values of each decoder layer (B,S,2D), and a mask (B,1,1,S) if there is padding."""
        memory: Tensors = {}
        mask = None
        # Asking costs a GPU more than masking does, and a compiler too.
        if src.device.type != "cpu" or torch.compiler.is_compiling() or bool((src == PAD).any()):
            mask = memory["mask"] = (src != PAD)[:, None, None]
        x = self.embed(src, self.source_table, self.source_positions, keep)
        shares = []
        for layer in self.encoder:
            x, share = layer(x, mask, attention)
            shares.append(share)
        x = self.encoder_norm(x)
        for i, layer in enumerate(self.decoder):
            assert isinstance(layer, DecoderLayer)
            memory[f"keys_values{i}"] = layer.cross.keys_values(x)
        if attention:
            memory["attention"] = torch.stack(shares, 1)
        return memory

    def features(
        self, tgt_in: Tensor, memory: Tensors, attention: bool = False, keep: Tensor | None = None
    ) -> tuple[Tensor, Tensors | None]:
        x = self.embed(tgt_in, self.target_embedding, self.target_positions, keep)
        return self.run_decoder(x, memory, None, None, attention)

    def start(self, memory: Tensors) -> Tensors:
        """The state: that of cache.py, and the number of steps (B,)."""
        like = memory["keys_values0"]
        return {
            "cache": like.new_empty(len(like), len(self.decoder), 0, like.size(-1)),
            "seen": torch.ones(len(like), 0, dtype=torch.bool, device=like.device),
            "position": torch.zeros(len(like), dtype=torch.long, device=like.device),
        }

    def move(self, state: Tensors, rows: Tensor) -> Tensors:
        return cache.move(state, rows)

    def step(
        self, prev: Tensor, memory: Tensors, state: Tensors, attention: bool = False
    ) -> tuple[Tensor, Tensors | None, Tensors]:
        position = int(state["position"][0])
        past, seen = cache.make_room(state, len(prev))
        x = self.embed(prev[:, None], self.target_embedding, self.target_positions, start=position)
        # Where there are as many slots as steps, there never was another hypothesis: all of them are seen.
        visible = None if seen.size(1) == position + 1 else seen.view(len(past), 1, -1, seen.size(1))
        x, weights = self.run_decoder(x, memory, past[:, :, : seen.size(1)], visible, attention)
        if weights is not None:  # (B,L,H,K,S), K rows to a row of memory
            weights = {"cross": weights["cross"].movedim(3, 1).flatten(0, 1)}
        return self.project(x[:, 0]), weights, {"cache": past, "seen": seen, "position": state["position"] + 1}

    def run_decoder(
        self, x: Tensor, memory: Tensors, past: Tensor | None, seen: Tensor | None, attention: bool
    ) -> tuple[Tensor, Tensors | None]:
        """x (B,T,D), or (B*K,1,D) after a past (B,L,n,2D), of which each row has seen some (B,1,K,n) or all."""
        cross, own = [], []
        for i, layer in enumerate(self.decoder):
            keys_values, mask = memory[f"keys_values{i}"], memory.get("mask")
            x, shares, own_shares = layer(x, keys_values, mask, None if past is None else past[:, i], seen, attention)
            cross.append(shares)
            own.append(own_shares)
        x = self.decoder_norm(x)
        if not attention:
            return x, None
        weights = {"cross": torch.stack(cross, 1)}
        if past is None:
            weights["decoder"] = torch.stack(own, 1)
        return x, weights
