"""ConvS2S, convolutions instead of recurrence (Gehring et al. 2017, section 3).

Every layer of the encoder sees a few words around its position, every layer of the decoder a few words before it, and
the decoder attends to the source in every layer. Sums of two are scaled by sqrt(1/2), which keeps their variance
(section 3.5). All is dim wide, so there are no maps between widths. Left out are weight normalisation and the scaling
of the encoder's gradients, which the authors need for plain gradient descent: Adam sizes its steps for each parameter.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.model.base import Tensors
from nmt_cli.model.dropout import dropout
from nmt_cli.model.embedding import EmbeddingSeq2Seq, initialise_embedding
from nmt_cli.model.rnn_scores import blend
from nmt_cli.model.transformer import LearnedPositions
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import PAD

HALF = math.sqrt(0.5)


class GatedConvolution(nn.Module):
    """A convolution to twice the width, half of which gates the other half (section 3.2)."""

    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.linear = nn.Linear(kernel * dim, 2 * dim)  # on the words of a window side by side

    def forward(self, x: Tensor) -> Tensor:
        """(B,T+kernel-1,D) -> (B,T,D)"""
        length = x.size(1) - self.kernel + 1
        windows = torch.cat([x[:, i : i + length] for i in range(self.kernel)], 2)
        return F.glu(self.linear(windows), -1)


class DecoderLayer(nn.Module):
    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__()
        self.convolution = GatedConvolution(dim, kernel)
        self.query = nn.Linear(dim, dim)

    def forward(self, x: Tensor, embedded: Tensor, memory: Tensors) -> tuple[Tensor, Tensor]:
        """x (B,T+kernel-1,D), embedded (B,T,D) -> (B,T,D), attention weights (B,1,T,S)."""
        y = self.convolution(x)
        query = (self.query(y) + embedded) * HALF
        # Rows that share a source, the hypotheses of a beam, go to it together, as if they were positions.
        query = query.view(len(memory["keys"]), -1, y.size(2))
        scores = (query @ memory["keys"].transpose(1, 2))[:, None]
        context, shares = blend(scores, memory["mask"][:, None, None], memory["values"][:, :, None])
        return (y + context.view(y.shape)) * HALF, shares


class Conv(EmbeddingSeq2Seq):
    def __init__(self, config: recipe.Conv, source_vocab: int, target_vocab: int) -> None:
        dim = config.dim
        super().__init__(source_vocab, target_vocab, dim, config.tie, 1.0, config.dropout)
        self.kernel = config.kernel
        self.source_positions = LearnedPositions(config.max_positions, dim)
        self.target_positions = LearnedPositions(config.max_positions, dim)
        self.encoder = nn.ModuleList(GatedConvolution(dim, config.kernel) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(dim, config.kernel) for _ in range(config.decoder_layers))
        self.initialise()

    def initialise(self) -> None:
        """Section 3.6: variances are kept in spite of gates, which take three quarters, and of dropout."""
        for name, module in self.named_modules():
            match module:
                case nn.Linear(bias=None):
                    nn.init.normal_(module.weight, std=0.1)  # the output, as if it were tied
                case nn.Linear():
                    gain = 4 * (1 - self.drop) if name.endswith("linear") else 1.0
                    nn.init.normal_(module.weight, std=math.sqrt(gain / module.in_features))
                    nn.init.zeros_(module.bias)
                case nn.Embedding():
                    initialise_embedding(module, 0.1)

    def uses_per_token(self, name: str) -> tuple[float, float]:
        return (1.0, 0.0) if name.startswith("encoder") else (0.0, 1.0)

    def positions(self, length: int) -> Tensor:
        return self.source_positions(0, length, self.target_embedding.weight)

    def encode(self, src: Tensor, attention: bool = False, keep: Tensor | None = None) -> Tensors:
        """memory: keys, values (B,S,D), which have the embeddings in them too (eq. 2), and a mask (B,S)."""
        mask = src != PAD
        x = embedded = self.embed(src, self.source_table, self.source_positions, keep)
        side = self.kernel // 2
        for layer in self.encoder:
            # Padding is as empty as what is beyond the ends of a sentence.
            y = F.pad(self.dropped(x) * mask[..., None], (0, 0, side, side))
            x = (layer(y) + x) * HALF
        # The mean of m values has a variance of 1/m: m * sqrt(1/m) restores it (section 3.5).
        grow = mask.sum(1).sqrt()[:, None, None]
        return {"keys": x, "values": (x + embedded) * HALF * grow, "mask": mask}

    def start(self, memory: Tensors) -> Tensors:
        """The state: the last inputs of each layer (B,L,kernel-1,D), nothing at first, and the number of steps (B,)."""
        keys = memory["keys"]
        return {
            "past": keys.new_zeros(len(keys), len(self.decoder), self.kernel - 1, keys.size(2)),
            "position": torch.zeros(len(keys), dtype=torch.long, device=keys.device),
        }

    def step(
        self, prev: Tensor, memory: Tensors, state: Tensors, attention: bool = False
    ) -> tuple[Tensor, Tensors | None, Tensors]:
        position = int(state["position"][0])
        x = self.embed(prev[:, None], self.target_embedding, self.target_positions, start=position)
        x, shares, past = self.advance(x, memory, state["past"])
        weights = {"cross": shares.movedim(3, 1).flatten(0, 1)} if attention else None  # from (B,L,1,K,S)
        return self.project(x[:, 0]), weights, {"past": past, "position": state["position"] + 1}

    def features(
        self, tgt_in: Tensor, memory: Tensors, attention: bool = False, keep: Tensor | None = None
    ) -> tuple[Tensor, Tensors | None]:
        x = self.embed(tgt_in, self.target_embedding, self.target_positions, keep)
        x, shares, _ = self.advance(x, memory, self.start(memory)["past"])
        return x, {"cross": shares} if attention else None

    def advance(self, x: Tensor, memory: Tensors, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B,T,D) -> (B,T,D), attention weights (B,L,1,T,S), the last inputs of each layer."""
        embedded, length = x, x.size(1)
        shares, inputs = [], []
        for i, layer in enumerate(self.decoder):
            y = torch.cat([past[:, i], self.dropped(x)], 1)
            inputs.append(y[:, length:])
            y, share = layer(y, embedded, memory)
            shares.append(share)
            x = (y + x) * HALF
        return self.dropped(x), torch.stack(shares, 1), torch.stack(inputs, 1)

    def dropped(self, x: Tensor) -> Tensor:
        return dropout(x, self.drop if self.training else 0.0)
