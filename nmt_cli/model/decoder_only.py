"""One causal Transformer over source and target (Liu et al. 2018, section 4.2.3).

The sequence is the source up to its EOS, then BOS, then the target. Only target tokens are predicted, unless
train.source_loss is set: then each source token predicts the next one, too, and `SourceWriter` can continue a text.
The source does not depend on the target, so its keys and values are computed once per sentence and form the memory.
Source and target both count positions from 0, so padding between them changes nothing.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.model import cache
from nmt_cli.model.attention import Attended
from nmt_cli.model.base import Decoded, Seq2Seq, Stepped, Tensors
from nmt_cli.model.embedding import EmbeddingSeq2Seq
from nmt_cli.model.linear import Linear, linear
from nmt_cli.model.transformer import POSITIONS, EncoderLayer, NoPositions, initialize, padding_mask
from nmt_cli.recipe import schema as recipe


class SidePositions(nn.Module):
    """Positions, plus one learned vector for the side: source or target."""

    def __init__(self, config: recipe.DecoderOnly) -> None:
        super().__init__()
        self.table = POSITIONS[config.positions](config.max_positions, config.dim)
        self.side = nn.Parameter(torch.randn(config.dim))  # as large as a scaled embedding

    def forward(self, start: int, stop: int, like: Tensor) -> Tensor:
        return self.table(start, stop, like) + self.side


class Layer(EncoderLayer):
    """An encoder layer of the Transformer with causal attention. The keys and values of the source are a prefix."""

    def keys_values(self, x: Tensor) -> Tensor:
        """The source (B,S,D) -> its keys and values (B,S,2D)."""
        qkv, dim = self.attention.qkv, x.size(-1)
        return linear(self.around_attention.before(x), qkv.weight[dim:], qkv.bias[dim:])

    def read(self, x: Tensor, need_weights: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """The source (B,S,D) -> the output of this layer (B,S,D), keys and values (B,S,2D), weights (B,H,S,S)."""
        query, keys_values = self.attention.project(self.around_attention.before(x))
        # No mask is needed: padding is at the end, and causal attention does not look ahead.
        parts = (query, *self.attention.split(keys_values, 2))
        y, weights = self.attention.attend(parts, None, need_weights, causal=True)
        return self.finish(x, y), keys_values, weights

    def write(self, x: Tensor, prefix: Tensor, mask: Tensor | None, need_weights: bool) -> Attended:
        """The whole target (B,T,D) after the prefix (B,S,2D) -> (B,T,D), weights (B,H,T,S+T)."""
        length, width = x.size(1), prefix.size(1)
        query, keys_values = self.attention.project(self.around_attention.before(x))
        parts = (query, *self.attention.split(torch.cat([prefix, keys_values], 1), 2))
        visible = torch.ones(length, width + length, dtype=torch.bool, device=x.device).tril(width)
        if mask is not None:  # (B,1,1,S)
            visible = visible & F.pad(mask, (0, length), value=True)
        y, weights = self.attention.attend(parts, visible, need_weights)
        return self.finish(x, y), weights


class DecoderOnly(EmbeddingSeq2Seq):
    def __init__(self, config: recipe.DecoderOnly, source_vocab: int, target_vocab: int) -> None:
        dim = config.dim
        super().__init__(source_vocab, target_vocab, dim, config.tie, math.sqrt(dim), config.dropout)
        self.source_positions = SidePositions(config)
        self.target_positions = SidePositions(config)
        self.join = Linear(2 * dim, dim) if config.positions_join == "concat" else None
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(dim) if config.norm == "pre" else nn.Identity()
        initialize(self, dim)

    def uses_per_token(self, name: str) -> tuple[float, float]:
        if name.startswith("norm"):
            return 0.0, 1.0
        if not name.startswith(f"layers.{len(self.layers) - 1}."):
            return 1.0, 1.0
        # The last layer computes only keys and values of the source: two of the three matrices of qkv.
        return (2 / 3 if "qkv" in name else 0.0), 1.0

    def positions(self, length: int) -> Tensor | None:
        if isinstance(self.source_positions.table, NoPositions):
            return None
        return self.source_positions.table(0, length, self.target_embedding.weight)

    def encode(self, src: Tensor, attention: bool = False, keep: Tensor | None = None) -> Tensors:
        """memory: the keys and values of each layer (B,S,2D), and the padding mask (B,1,1,S) if there is one."""
        return self.read(src, attention, keep)[1]

    def read_source(self, src: Tensor) -> tuple[Tensor, Tensors]:
        x, memory = self.read(src, whole=True)
        return self.norm(x), memory

    def read(
        self, src: Tensor, attention: bool = False, keep: Tensor | None = None, whole: bool = False
    ) -> tuple[Tensor, Tensors]:
        """The output of the last layer if `whole` is true (B,S,D), and memory."""
        mask = padding_mask(src)
        memory: Tensors = {} if mask is None else {"mask": mask}
        x = self.embed(src, self.source_table, self.source_positions, keep)
        weights: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            if i + 1 < len(self.layers) or attention or whole:
                x, memory[f"keys_values{i}"], layer_weights = self.run(layer.read, x, attention)
                weights += [] if layer_weights is None else [layer_weights]
            else:  # the target needs nothing else of the source from the last layer
                memory[f"keys_values{i}"] = layer.keys_values(x)
        if attention:
            memory["attention"] = torch.stack(weights, 1)
        return x, memory

    move = staticmethod(cache.move)

    def start(self, memory: Tensors) -> Tensors:
        """The state is that of cache.py, where the source comes first."""
        source = torch.stack([memory[f"keys_values{i}"] for i in range(len(self.layers))], 1)
        return cache.start(source, memory["mask"][:, 0, 0] if "mask" in memory else None)

    def step(self, prev: Tensor, memory: Tensors, state: Tensors, attention: bool = False) -> Stepped:
        x = self.embed(prev[:, None], self.target_embedding, self.target_positions, start=int(state["position"][0]))
        return self.continued(x, memory["keys_values0"].size(1), state, attention)

    def continued(self, x: Tensor, length: int, state: Tensors, attention: bool = False) -> Stepped:
        """`step` from the embedding x (B*K,1,D) of a token on. `length` is S."""
        state = cache.make_room(state, len(x), fixed=length)
        past, seen = state["cache"], state["seen"]
        visible = seen.view(len(past), 1, -1, seen.size(1))
        cross: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            y = layer.around_attention.before(x)
            y, layer_weights = layer.attention.step(y, past[:, i, : seen.size(1)], visible, attention)
            x = layer.finish(x, y)
            cross += [] if layer_weights is None else [layer_weights[..., :length]]
        weights = {"cross": torch.stack(cross, 1).movedim(3, 1).flatten(0, 1)} if attention else None
        return self.project(self.norm(x[:, 0])), weights, state

    def features(self, tgt_in: Tensor, memory: Tensors, attention: bool = False, keep: Tensor | None = None) -> Decoded:
        """As in Seq2Seq. One softmax covers both sides: together, "cross" and "decoder" of a word sum to 1."""
        x = self.embed(tgt_in, self.target_embedding, self.target_positions, keep)
        weights: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            inputs = (x, memory[f"keys_values{i}"], memory.get("mask"), attention)
            x, layer_weights = self.run(layer.write, *inputs)
            weights += [] if layer_weights is None else [layer_weights]
        if not attention:
            return self.norm(x), None
        cross, decoder = torch.stack(weights, 1).split([memory["keys_values0"].size(1), tgt_in.size(1)], -1)
        return self.norm(x), {"cross": cross, "decoder": decoder}


class SourceWriter(Seq2Seq):
    """A decoder-only model as a language model: it continues a text of the source language (train.source_loss).

    The text is the target of this model, and there is no source. A search must force the first token, because the
    source side of a decoder-only model has no BOS to predict it from.
    """

    def __init__(self, model: DecoderOnly) -> None:
        super().__init__()
        self.model = model.eval()
        self.eval()

    @property
    def output_weight(self) -> Tensor:
        return self.model.output_weight

    def encode(self, src: Tensor, attention: bool = False, keep: Tensor | None = None) -> Tensors:
        return {"none": src.new_zeros(len(src), 0)}

    move = staticmethod(cache.move)

    def start(self, memory: Tensors) -> Tensors:
        weight = self.output_weight
        return cache.start(weight.new_zeros(len(memory["none"]), len(self.model.layers), 0, 2 * weight.size(1)))

    def step(self, prev: Tensor, memory: Tensors, state: Tensors, attention: bool = False) -> Stepped:
        """BOS is not read: the first step gives all tokens the same probability."""
        position = int(state["position"][0]) - 1
        if position < 0:
            logits = self.output_weight.new_zeros(len(prev), len(self.output_weight))
            return logits, {} if attention else None, {**state, "position": state["position"] + 1}
        x = self.model.embed(prev[:, None], self.model.source_table, self.model.source_positions, start=position)
        logits, _, state = self.model.continued(x, 0, state)
        return logits, {} if attention else None, state
