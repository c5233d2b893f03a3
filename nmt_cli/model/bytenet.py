"""ByteNet: dilated convolutions without attention, the decoder stacked on the encoder (Kalchbrenner et al. 2016).

    block      x + W_3 relu(norm(conv(relu(norm(W_1 relu(norm(x)))))))     section 3.6; conv has half the width
    conv       positions s - d and s + d around s in the encoder, t - d and t - 2d before t in the decoder (kernel 3);
               the dilation d is 1, 2, 4, 8, 16, 1, 2, ... from block to block (sections 3.4 and 3.5)
    encoder    reads the source, then zeros up to position a S + b (section 3.2, eq. 2) -> r_1 r_2 ... r_{aS+b}
    decoder    reads e(y_{t-1}) + r_t at step t; r_t = 0 after the end of the encoder (dynamic unfolding, section 3.3)

Three things differ from the paper or are not stated there: the column r_t is added to the embedding of the last word,
the output layer is one linear layer without bias after a norm, and there is no sub-batch normalization.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.model.base import Decoded, Stepped, Tensors
from nmt_cli.model.conv import windows
from nmt_cli.model.device import on_cpu
from nmt_cli.model.embedding import EmbeddingSeq2Seq, initialize_embedding
from nmt_cli.model.linear import Linear
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import PAD


class Block(nn.Module):
    def __init__(self, dim: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.kernel, self.dilation = kernel, dilation
        self.context = (kernel - 1) * dilation  # positions that the convolution reads beside its own
        half = dim // 2
        self.before, self.down = nn.LayerNorm(dim), Linear(dim, half)
        self.norm, self.convolution = nn.LayerNorm(half), Linear(kernel * half, half)
        self.after, self.up = nn.LayerNorm(half), Linear(half, dim)

    def narrow(self, x: Tensor) -> Tensor:
        """x (B,T,D) -> the input of the convolution (B,T,D/2)."""
        return torch.relu(self.norm(self.down(torch.relu(self.before(x)))))

    def convolve(self, y: Tensor) -> Tensor:
        """y (B,T+context,D/2), the input of the convolution with its context -> (B,T,D)."""
        y = self.convolution(windows(y, self.kernel, self.dilation))
        return self.up(torch.relu(self.after(y)))


class ByteNet(EmbeddingSeq2Seq):
    def __init__(self, config: recipe.ByteNet, source_vocab: int, target_vocab: int) -> None:
        dim = config.dim
        super().__init__(source_vocab, target_vocab, dim, config.tie, dim**0.5, config.dropout)
        self.unfold_ratio, self.unfold_extra = config.unfold_ratio, config.unfold_extra

        def blocks(count: int) -> nn.ModuleList:
            return nn.ModuleList(Block(dim, config.kernel, 2 ** (i % config.cycle)) for i in range(count))

        self.encoder = blocks(config.encoder_layers)
        self.encoder_norm, self.encoder_output = nn.LayerNorm(dim), Linear(dim, dim)
        self.decoder = blocks(config.decoder_layers)
        self.decoder_norm = nn.LayerNorm(dim)
        for module in self.modules():
            match module:
                case nn.Linear(bias=None):
                    nn.init.normal_(module.weight, std=dim**-0.5)  # the output layer, initialized like an embedding
                case nn.Linear():
                    nn.init.xavier_uniform_(module.weight)
                    nn.init.zeros_(module.bias)
                case nn.Embedding():
                    initialize_embedding(module, dim**-0.5)

    def uses_per_token(self, name: str) -> tuple[float, float]:
        by_source, by_target = super().uses_per_token(name)
        return self.unfold_ratio * by_source, by_target

    def encode(self, src: Tensor, attention: bool = False, keep: Tensor | None = None) -> Tensors:
        """memory: the columns r (B,W,D), zeros after the last column of each row."""
        lengths = ((src != PAD).sum(1) * self.unfold_ratio).ceil().long() + self.unfold_extra
        # On a CPU, the width is the largest of the lengths. On an accelerator, the host would have to wait for this
        # number, so the width is computed from the padded length. It may be a little larger.
        width = int(src.size(1) * self.unfold_ratio) + 1 + self.unfold_extra
        width = max(int(lengths.max()), src.size(1)) if on_cpu(src) else width
        mask = (torch.arange(width, device=src.device) < lengths[:, None])[..., None]
        x = self.embed(src, self.source_table, None, keep) * (src != PAD)[..., None]
        x = F.pad(x, (0, 0, 0, width - src.size(1)))
        for block in self.encoder:
            assert isinstance(block, Block)
            # Positions after the end of a row are zeros, like those beyond the ends of the tensor.
            margin = block.context // 2
            y = F.pad(self.run(block.narrow, x) * mask, (0, 0, margin, margin))
            x = x + self.drop_out(self.run(block.convolve, y))
        return {"columns": self.encoder_output(self.encoder_norm(x)) * mask}

    def start(self, memory: Tensors) -> Tensors:
        """The state: the last inputs of each convolution (B,context,D/2), zeros at first, and the number of steps."""
        columns = memory["columns"]
        rows, half = len(columns), columns.size(2) // 2
        state = {"position": torch.zeros(rows, dtype=torch.long, device=columns.device)}
        for i, block in enumerate(self.decoder):
            assert isinstance(block, Block)
            state[f"past{i}"] = columns.new_zeros(rows, block.context, half)
        return state

    def step(self, prev: Tensor, memory: Tensors, state: Tensors, attention: bool = False) -> Stepped:
        x = self.embed(prev[:, None], self.target_embedding, None)
        x, state = self.run_decoder(x, memory, state, int(state["position"][0]))
        return self.project(x[:, 0]), {} if attention else None, state

    def features(self, tgt_in: Tensor, memory: Tensors, attention: bool = False, keep: Tensor | None = None) -> Decoded:
        x = self.embed(tgt_in, self.target_embedding, None, keep)
        return self.run_decoder(x, memory, self.start(memory), 0)[0], {} if attention else None

    def run_decoder(self, x: Tensor, memory: Tensors, state: Tensors, first: int) -> tuple[Tensor, Tensors]:
        """Embeddings (B*K,T,D) from position `first` on and the state before -> (B*K,T,D), the state after."""
        length = x.size(1)
        columns = memory["columns"][:, first : first + length]
        columns = F.pad(columns, (0, 0, 0, length - columns.size(1)))
        x = x + columns.repeat_interleave(len(x) // len(columns), 0)
        next_state = {"position": state["position"] + length}
        for i, block in enumerate(self.decoder):
            assert isinstance(block, Block)
            y = torch.cat([state[f"past{i}"], self.run(block.narrow, x)], 1)
            next_state[f"past{i}"] = y[:, length:]
            x = x + self.drop_out(self.run(block.convolve, y))
        return self.drop_out(self.decoder_norm(x)), next_state
