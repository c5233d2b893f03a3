"""ConvS2S: convolutions instead of recurrence (Gehring et al. 2017, section 3).

Each sum of two tensors is multiplied by sqrt(1/2), which preserves the variance (section 3.4).
Two things differ from the paper. All layers have width D, so there are no projections between widths. Weight
normalization and the scaling of encoder gradients are left out: plain gradient descent needs them, Adam does not.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.model.base import Decoded, Stepped, Tensors
from nmt_cli.model.embedding import EmbeddingSeq2Seq, initialize_embedding
from nmt_cli.model.linear import Linear
from nmt_cli.model.rnn_scores import blend
from nmt_cli.model.transformer import LearnedPositions
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import PAD

SQRT_HALF = math.sqrt(0.5)


def windows(x: Tensor, kernel: int, dilation: int = 1) -> Tensor:
    """x (B,T+(kernel-1)*dilation,D) -> (B,T,kernel*D): `kernel` words for each position, `dilation` apart."""
    length = x.size(1) - (kernel - 1) * dilation
    return torch.cat([x[:, i * dilation : i * dilation + length] for i in range(kernel)], 2)


class GatedConvolution(nn.Module):
    """A convolution from width D to width 2D. One half of the result gates the other half (section 3.2)."""

    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.linear = Linear(kernel * dim, 2 * dim)  # its input is the concatenated words of a window

    def forward(self, x: Tensor) -> Tensor:
        """(B,T+kernel-1,D) -> (B,T,D)"""
        return F.glu(self.linear(windows(x, self.kernel)), -1)


class DecoderLayer(nn.Module):
    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__()
        self.convolution = GatedConvolution(dim, kernel)
        self.query = Linear(dim, dim)

    def forward(self, x: Tensor, embedded: Tensor, memory: Tensors) -> tuple[Tensor, Tensor]:
        """x (B,T+kernel-1,D), embedded (B,T,D) -> (B,T,D), attention weights (B,1,T,S)."""
        y = self.convolution(x)
        query = (self.query(y) + embedded) * SQRT_HALF
        # The hypotheses of a sentence share its source, so attention treats them like positions of one target.
        query = query.view(len(memory["keys"]), -1, y.size(2))
        scores = (query @ memory["keys"].transpose(1, 2))[:, None]
        context, weights = blend(scores, memory["mask"][:, None, None], memory["values"][:, :, None])
        return (y + context.view(y.shape)) * SQRT_HALF, weights


class Conv(EmbeddingSeq2Seq):
    def __init__(self, config: recipe.Conv, source_vocab: int, target_vocab: int) -> None:
        dim = config.dim
        super().__init__(source_vocab, target_vocab, dim, config.tie, 1.0, config.dropout)
        self.kernel = config.kernel
        self.source_positions = LearnedPositions(config.max_positions, dim)
        self.target_positions = LearnedPositions(config.max_positions, dim)
        self.encoder = nn.ModuleList(GatedConvolution(dim, config.kernel) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(dim, config.kernel) for _ in range(config.decoder_layers))
        self.initialize()

    def initialize(self) -> None:
        """Section 3.5: the standard deviations preserve the variance from layer to layer. A gate leaves about a quarter
        of the variance, which the factor 4 makes up for. The factor (1 - rate) makes up for dropout."""
        for name, module in self.named_modules():
            match module:
                case nn.Linear(bias=None):
                    nn.init.normal_(module.weight, std=0.1)  # the output layer, initialized like an embedding
                case nn.Linear():
                    gain = 4 * (1 - self.dropout_rate) if name.endswith("linear") else 1.0
                    nn.init.normal_(module.weight, std=math.sqrt(gain / module.in_features))
                    nn.init.zeros_(module.bias)
                case nn.Embedding():
                    initialize_embedding(module, 0.1)

    def positions(self, length: int) -> Tensor:
        return self.source_positions(0, length, self.target_embedding.weight)

    def encode(self, src: Tensor, attention: bool = False, keep: Tensor | None = None) -> Tensors:
        """memory: keys (B,S,D), values (B,S,D), to which the embeddings are added (eq. 2), and a mask (B,S)."""
        mask = src != PAD
        x = embedded = self.embed(src, self.source_table, self.source_positions, keep)
        margin = self.kernel // 2
        for layer in self.encoder:
            # PAD tokens are zeros here, like the positions beyond the ends of a sentence.
            y = F.pad(self.drop_out(x) * mask[..., None], (0, 0, margin, margin))
            x = (self.run(layer, y) + x) * SQRT_HALF
        # Attention to m words averages m values, which divides the variance by m. The factor m * sqrt(1/m) = sqrt(m)
        # restores the variance (section 3.4).
        scale = mask.sum(1).sqrt()[:, None, None]
        return {"keys": x, "values": (x + embedded) * SQRT_HALF * scale, "mask": mask}

    def start(self, memory: Tensors) -> Tensors:
        """The state: the last inputs of each layer (B,L,kernel-1,D), zeros at first, and the number of steps (B,)."""
        keys = memory["keys"]
        return {
            "past": keys.new_zeros(len(keys), len(self.decoder), self.kernel - 1, keys.size(2)),
            "position": torch.zeros(len(keys), dtype=torch.long, device=keys.device),
        }

    def step(self, prev: Tensor, memory: Tensors, state: Tensors, attention: bool = False) -> Stepped:
        position = int(state["position"][0])
        x = self.embed(prev[:, None], self.target_embedding, self.target_positions, start=position)
        x, weights, past = self.run_decoder(x, memory, state["past"])
        cross = {"cross": weights.movedim(3, 1).flatten(0, 1)} if attention else None  # (B,L,1,K,S) -> (B*K,L,1,S)
        return self.project(x[:, 0]), cross, {"past": past, "position": state["position"] + 1}

    def features(self, tgt_in: Tensor, memory: Tensors, attention: bool = False, keep: Tensor | None = None) -> Decoded:
        x = self.embed(tgt_in, self.target_embedding, self.target_positions, keep)
        x, weights, _ = self.run_decoder(x, memory, self.start(memory)["past"])
        return x, {"cross": weights} if attention else None

    def run_decoder(self, x: Tensor, memory: Tensors, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B,T,D), past (B,L,kernel-1,D) -> (B,T,D), attention weights (B,L,1,T,S), the next past."""
        embedded, length = x, x.size(1)
        weights, inputs = [], []
        for i, layer in enumerate(self.decoder):
            y = torch.cat([past[:, i], self.drop_out(x)], 1)
            inputs.append(y[:, length:])
            y, layer_weights = self.run(layer, y, embedded, memory)
            weights.append(layer_weights)
            x = (y + x) * SQRT_HALF
        return self.drop_out(x), torch.stack(weights, 1), torch.stack(inputs, 1)
