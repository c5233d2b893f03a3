"""The Transformer (Vaswani et al. 2017). The keys of recipe.Transformer are its options."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.errors import NmtError
from nmt_cli.model import cache
from nmt_cli.model.attention import FUSED, Attended, CrossAttention, SelfAttention
from nmt_cli.model.base import Decoded, Stepped, Tensors
from nmt_cli.model.device import on_cpu
from nmt_cli.model.dropout import dropout
from nmt_cli.model.embedding import EmbeddingSeq2Seq, initialize_embedding
from nmt_cli.model.experts import Experts
from nmt_cli.model.linear import Linear
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import PAD

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu_, "gelu": F.gelu, "swish": F.silu}


def sinusoids(length: int, dim: int) -> Tensor:
    """(length,D): PE(pos,2i) = sin(pos / 10000^(2i/D)), PE(pos,2i+1) = cos(pos / 10000^(2i/D))."""
    position = torch.arange(length, dtype=torch.float64, device="cpu")[:, None]
    angle = position / 10000 ** (torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).float()


def timing(length: int, dim: int) -> Tensor:
    """(length,D): all sines, then all cosines; pair i has the angle pos / 10000^(i/(D/2-1))."""
    position = torch.arange(length, dtype=torch.float64, device="cpu")[:, None]
    half = dim // 2
    angle = position / 10000 ** (torch.arange(half, dtype=torch.float64, device="cpu") / max(1, half - 1))
    return torch.cat([angle.sin(), angle.cos()], -1).float()


def padding_mask(src: Tensor) -> Tensor | None:
    """src (B,S) -> a mask (B,1,1,S) that is False for padding; None if there is no padding."""
    # On an accelerator, the host would have to wait for the answer. This costs more than the mask.
    if not on_cpu(src) or bool((src == PAD).any()):
        return (src != PAD)[:, None, None]
    return None


class Sinusoids(nn.Module):
    """Positions by formula. The table is not a buffer, because it is not saved and grows with the longest sentence."""

    def __init__(
        self, length: int, dim: int, first: int = 0, formula: Callable[[int, int], Tensor] = sinusoids
    ) -> None:
        super().__init__()
        self.first, self.formula = first, formula
        self.table = formula(first + length, dim)[first:]

    def forward(self, start: int, stop: int, like: Tensor) -> Tensor:
        if stop > len(self.table):
            self.table = self.formula(self.first + 2 * stop, self.table.size(1))[self.first :]
        if self.table.device != like.device:
            self.table = self.table.to(like.device)
        return self.table[start:stop].to(like.dtype)


class LearnedPositions(nn.Embedding):
    """One learned vector for each position, up to a limit."""

    def forward(self, start: int, stop: int, like: Tensor) -> Tensor:  # type: ignore[override]
        if stop > self.num_embeddings:
            raise NmtError(
                f"a sentence of {stop} pieces is longer than the {self.num_embeddings} positions of the model",
                "split the sentence, or train with a larger model.max_positions; "
                'a Transformer has no limit with model.positions = "sinusoidal"',
            )
        return self.weight[start:stop]


class NoPositions(nn.Module):
    """A zero vector for each position. The encoder is then permutation equivariant: if the words of a source change
    places, the outputs of the encoder change places with them."""

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, start: int, stop: int, like: Tensor) -> Tensor:
        return like.new_zeros(stop - start, self.dim)


POSITIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "sinusoidal": Sinusoids,
    "timing": partial(Sinusoids, formula=timing),
    "learned": LearnedPositions,
    "none": NoPositions,
}


class Residual(nn.Module):
    """The sum and the norm around each part of a layer. post-norm: norm(x + part(x)); pre-norm: x + part(norm(x))."""

    def __init__(self, config: recipe.Transformer | recipe.DecoderOnly) -> None:
        super().__init__()
        self.pre, self.dropout_rate = config.norm == "pre", config.dropout
        self.norm = nn.LayerNorm(config.dim)

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.pre else x

    def after(self, x: Tensor, output: Tensor) -> Tensor:
        x = dropout(output, self.dropout_rate if self.training else 0.0, residual=x)
        return x if self.pre else self.norm(x)


class FeedForward(nn.Module):
    def __init__(self, dim: int, inner: int, activation: str, dropout_rate: float) -> None:
        super().__init__()
        self.inner = Linear(dim, inner)
        self.outer = Linear(inner, dim)
        self.activation = ACTIVATIONS[activation]
        self.dropout_rate = dropout_rate

    def forward(self, x: Tensor) -> Tensor:
        # x becomes one matrix, so that the result of `inner` is not a view and ReLU can overwrite it. Autograd would
        # copy a view first.
        hidden = self.activation(self.inner(x.flatten(0, -2)))
        return self.outer(dropout(hidden, self.dropout_rate if self.training else 0.0)).view(x.shape)


def feed_forward(config: recipe.Transformer | recipe.DecoderOnly) -> nn.Module:
    """One feed-forward network, or model.experts of them."""
    network = partial(FeedForward, config.dim, config.ff, config.activation, config.ff_dropout)
    return Experts(config, network) if isinstance(config, recipe.Transformer) and config.experts else network()


class EncoderLayer(nn.Module):
    def __init__(self, config: recipe.Transformer | recipe.DecoderOnly) -> None:
        super().__init__()
        self.attention = SelfAttention(config.dim, config.heads, config.attention_dropout)
        self.around_attention = Residual(config)
        self.feed_forward = feed_forward(config)
        self.around_feed_forward = Residual(config)

    def forward(self, x: Tensor, mask: Tensor | None, need_weights: bool) -> Attended:
        """x (B,T,D) -> (B,T,D), and attention weights (B,H,T,T) if needed."""
        y, weights = self.attention(self.around_attention.before(x), mask, need_weights)
        return self.finish(x, y), weights

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The input of the layer and the output of its attention -> the output of the layer."""
        x = self.around_attention.after(x, attended)
        y = self.feed_forward(self.around_feed_forward.before(x))
        return self.around_feed_forward.after(x, y)


class DecoderLayer(nn.Module):
    def __init__(self, config: recipe.Transformer) -> None:
        super().__init__()
        self.attention = SelfAttention(config.dim, config.heads, config.attention_dropout)
        self.around_attention = Residual(config)
        self.cross = CrossAttention(config.dim, config.heads, config.attention_dropout)
        self.around_cross = Residual(config)
        self.feed_forward = feed_forward(config)
        self.around_feed_forward = Residual(config)

    def forward(
        self,
        x: Tensor,
        source: Tensor,
        mask: Tensor | None,
        past: Tensor | None,
        seen: Tensor | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """x -> the output of the layer, the weights of cross-attention, the weights of self-attention.

        `source` (B,S,2D) holds the keys and values of the source. Without a past, x (B,T,D) is the whole target. With a
        past (B,n,2D), x (B*K,1,D), `past` and `seen` are the arguments of SelfAttention.step.
        """
        y = self.around_attention.before(x)
        if past is None:
            y, self_weights = self.attention(y, None, need_weights, causal=True)
        else:
            y, self_weights = self.attention.step(y, past, seen, need_weights=False)
        x = self.around_attention.after(x, y)
        # The hypotheses of a sentence share its source, so attention treats them like positions of one target.
        y = self.around_cross.before(x).view(len(source), -1, x.size(-1))
        y, cross_weights = self.cross(y, source, mask, need_weights)
        x = self.around_cross.after(x, y.view(x.shape))
        y = self.feed_forward(self.around_feed_forward.before(x))
        return self.around_feed_forward.after(x, y), cross_weights, self_weights


def initialize(model: nn.Module, dim: int) -> None:
    """Initialize each matrix by Xavier, also each matrix of a fused layer. Embeddings get about unit length."""
    for name, module in model.named_modules():
        match module:
            case nn.Linear(bias=None):
                nn.init.normal_(module.weight, std=dim**-0.5)  # the output layer, initialized like an embedding
            case nn.Linear():
                for matrix in module.weight.chunk(FUSED.get(name.rpartition(".")[2], 1)):
                    nn.init.xavier_uniform_(matrix)
                nn.init.zeros_(module.bias)
            case nn.Embedding():
                initialize_embedding(module, dim**-0.5)


class Transformer(EmbeddingSeq2Seq):
    def __init__(self, config: recipe.Transformer, source_vocab: int, target_vocab: int) -> None:
        dim = config.dim
        scale = math.sqrt(dim) if config.scale_embeddings else 1.0
        super().__init__(source_vocab, target_vocab, dim, config.tie, scale, config.dropout)
        self.bias = nn.Parameter(torch.zeros(target_vocab)) if config.output_bias else None
        positions: Callable[..., nn.Module] = POSITIONS[config.positions]
        if config.first_position:
            positions = partial(positions, first=config.first_position)
        self.source_positions = positions(config.max_positions, dim)
        self.target_positions = positions(config.max_positions, dim)
        self.join = Linear(2 * dim, dim) if config.positions_join == "concat" else None
        self.source_embedding_norm = nn.LayerNorm(dim) if config.embedding_norm else None
        self.target_embedding_norm = nn.LayerNorm(dim) if config.embedding_norm else None
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        # A post-norm layer already ends with a norm.
        self.encoder_norm = nn.LayerNorm(dim) if config.norm == "pre" else nn.Identity()
        self.decoder_norm = nn.LayerNorm(dim) if config.norm == "pre" else nn.Identity()
        initialize(self, dim)

    def positions(self, length: int) -> Tensor | None:
        if isinstance(self.source_positions, NoPositions):
            return None
        return self.source_positions(0, length, self.target_embedding.weight)

    def encode(self, src: Tensor, attention: bool = False, keep: Tensor | None = None) -> Tensors:
        """memory: the keys and values of each decoder layer (B,S,2D), and the padding mask unless it is None."""
        self.forget_routes()
        mask = padding_mask(src)
        memory: Tensors = {} if mask is None else {"mask": mask}
        x = self.embed(src, self.source_table, self.source_positions, keep, norm=self.source_embedding_norm)
        weights = []
        for layer in self.encoder:
            x, layer_weights = self.run(layer, x, mask, attention)
            weights.append(layer_weights)
        x = self.encoder_norm(x)
        for i, layer in enumerate(self.decoder):
            assert isinstance(layer, DecoderLayer)
            memory[f"keys_values{i}"] = layer.cross.keys_values(x)
        if attention:
            memory["attention"] = torch.stack(weights, 1)
        return memory

    def features(self, tgt_in: Tensor, memory: Tensors, attention: bool = False, keep: Tensor | None = None) -> Decoded:
        norm = self.target_embedding_norm
        x = self.embed(tgt_in, self.target_embedding, self.target_positions, keep, norm=norm)
        return self.run_decoder(x, memory, None, None, attention)

    move = staticmethod(cache.move)  # the state is that of cache.py

    def start(self, memory: Tensors) -> Tensors:
        like = memory["keys_values0"]
        return cache.start(like.new_empty(len(like), len(self.decoder), 0, like.size(-1)))

    def step(self, prev: Tensor, memory: Tensors, state: Tensors, attention: bool = False) -> Stepped:
        position = int(state["position"][0])
        state = cache.make_room(state, len(prev))
        past, seen = state["cache"], state["seen"]
        norm = self.target_embedding_norm
        x = self.embed(prev[:, None], self.target_embedding, self.target_positions, start=position, norm=norm)
        # If there are as many slots as steps, each sentence has had one hypothesis in every step. This hypothesis sees
        # all slots, so no mask is needed.
        visible = None if seen.size(1) == position + 1 else seen.view(len(past), 1, -1, seen.size(1))
        x, weights = self.run_decoder(x, memory, past[:, :, : seen.size(1)], visible, attention)
        if weights is not None:  # (B,L,H,K,S) -> (B*K,L,H,S)
            weights = {"cross": weights["cross"].movedim(3, 1).flatten(0, 1)}
        return self.project(x[:, 0]), weights, state

    def run_decoder(
        self, x: Tensor, memory: Tensors, past: Tensor | None, seen: Tensor | None, attention: bool
    ) -> Decoded:
        """Run all layers, with or without a past (B,L,n,2D), as in DecoderLayer.forward."""
        cross_weights, self_weights = [], []
        for i, layer in enumerate(self.decoder):
            source, layer_past = memory[f"keys_values{i}"], None if past is None else past[:, i]
            inputs = (x, source, memory.get("mask"), layer_past, seen, attention)
            x, layer_cross, layer_self = self.run(layer, *inputs)
            cross_weights.append(layer_cross)
            self_weights.append(layer_self)
        x = self.decoder_norm(x)
        if not attention:
            return x, None
        weights = {"cross": torch.stack(cross_weights, 1)}
        if past is None:
            weights["decoder"] = torch.stack(self_weights, 1)
        return x, weights
