"""Recurrent models: encoder and decoder without attention (Sutskever et al. 2014; Cho et al. 2014), and with it
(Bahdanau et al. 2015; Luong et al. 2015).

    h_t = recurrence([y_{t-1}; context; a_{t-1}], h_{t-1})      context and a only if the recipe says so
    c_t = attention(h_t, source)                                scores.py
    a_t = tanh(W [c_t; h_t])                                    Luong, eq. 5; without attention a_t = h_t
    p(y_t) = softmax(E a_t)

The order is Luong's with every score: as h_t does not wait for c_t, the recurrence runs over the whole target at once,
unless a_{t-1} is fed to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from nmt_cli.model.base import Tensors
from nmt_cli.model.dropout import dropout
from nmt_cli.model.embedding import EmbeddingSeq2Seq, initialise_embedding
from nmt_cli.model.rnn_scores import SourceAttention
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import PAD

# The recurrence over a sequence, and a single step of it.
CELLS: dict[str, tuple[Callable[..., nn.RNNBase], Callable[..., Any]]] = {
    "rnn": (nn.RNN, torch.rnn_tanh_cell),
    "gru": (nn.GRU, torch.gru_cell),
    "lstm": (nn.LSTM, torch.lstm_cell),
}


def initialise_recurrence(layer: nn.RNNBase) -> None:
    for name, parameter in layer.named_parameters():
        gates = parameter.split(layer.hidden_size)
        for gate in gates:
            if name.startswith("weight_hh"):
                nn.init.orthogonal_(gate)
            elif name.startswith("weight_ih"):
                nn.init.xavier_uniform_(gate)
            else:
                nn.init.zeros_(gate)
        if name.startswith("bias_ih") and isinstance(layer, nn.LSTM):
            nn.init.ones_(gates[1])  # the gates are input, forget, cell, output


class Rnn(EmbeddingSeq2Seq):
    def __init__(self, config: recipe.Rnn, source_vocab: int, target_vocab: int) -> None:
        dim = config.dim
        super().__init__(source_vocab, target_vocab, dim, config.tie, math.sqrt(dim), config.dropout)
        self.states = ("hidden", "cell") if config.cell == "lstm" else ("hidden",)
        self.every = config.context == "every"
        self.feeding = config.input_feeding
        cell, self.single_step = CELLS[config.cell]
        # Layers of their own instead of one stack, so that the dropout between them is ours.
        directions = 1 + config.bidirectional
        self.encoder = nn.ModuleList(
            cell(dim, dim // directions, batch_first=True, bidirectional=config.bidirectional)
            for _ in range(config.encoder_layers)
        )
        self.bridge = nn.Linear(dim, len(self.states) * config.decoder_layers * dim)
        input_width = (1 + self.every + self.feeding) * dim
        self.decoder = nn.ModuleList(
            cell(dim if i else input_width, dim, batch_first=True) for i in range(config.decoder_layers)
        )
        self.attention = SourceAttention(config) if config.attention != "none" else None
        self.readout = nn.Linear(2 * dim, dim, bias=False) if self.attention else None
        self.initialise(dim)

    def initialise(self, dim: int) -> None:
        """Embeddings of unit length, which their scale makes those of unit variance. Matrices by Xavier, each gate by
        itself, but orthogonal from state to state: these neither explode nor vanish. Biases zero, except that an LSTM
        begins by not forgetting (Jozefowicz et al. 2015)."""
        for module in self.modules():
            match module:
                case nn.Embedding():
                    initialise_embedding(module, dim**-0.5)
                case nn.Linear():
                    nn.init.xavier_uniform_(module.weight)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)
                case nn.RNNBase():
                    initialise_recurrence(module)
        if self.output is not None:
            nn.init.normal_(self.output.weight, std=dim**-0.5)  # as if it were tied

    def uses_per_token(self, name: str) -> tuple[float, float]:
        """The bridge is crossed once per sentence; a score meets each head."""
        heads = self.attention.heads if self.attention is not None else 0
        if name.startswith("bridge"):
            return 0.0, 0.0
        if name.startswith("attention.score.hidden"):  # half of it for the query, half for the key
            return heads / 2, heads / 2
        if name.startswith("attention.score"):
            return (heads, 0.0) if ".source." in name else (0.0, heads)
        return (1.0, 0.0) if name.startswith(("encoder", "attention.keys_values")) else (0.0, 1.0)

    def encode(self, src: Tensor, attention: bool = False, keep: Tensor | None = None) -> Tensors:
        """memory: the last state (B,D), and what attention looks at."""
        mask = src != PAD
        x = self.embed(src, self.source_table, keep=keep)
        # Packed sequences have no padding, so that the last state of either direction is that of a word. Where there is
        # nothing to skip, the kernel without them is faster.
        lengths = mask.sum(1).cpu()
        packed = bool((lengths < src.size(1)).any())
        for i, layer in enumerate(self.encoder):
            x = self.dropped(x) if i else x
            if packed:
                output, last = layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
                x, _ = pad_packed_sequence(output, batch_first=True, total_length=src.size(1))
            else:
                x, last = layer(x)
        hidden = last[0] if isinstance(last, tuple) else last  # (directions,B,D/directions)
        memory = {"last": hidden.transpose(0, 1).flatten(1)}
        return memory if self.attention is None else memory | self.attention.read(x, mask)

    def start(self, memory: Tensors) -> Tensors:
        """The state: that of each layer (B,L,D), the last a_t (B,D) if it is fed, and the number of steps (B,)."""
        last = memory["last"]
        first = torch.tanh(self.bridge(last)).unflatten(1, (len(self.states), len(self.decoder), -1))
        state = dict(zip(self.states, first.unbind(1), strict=True))
        if self.feeding:
            state["fed"] = torch.zeros_like(last)
        return state | {"position": torch.zeros(len(last), dtype=torch.long, device=last.device)}

    def step(
        self, prev: Tensor, memory: Tensors, state: Tensors, attention: bool = False
    ) -> tuple[Tensor, Tensors | None, Tensors]:
        x, shares, state = self.advance(self.embed(prev[:, None], self.target_embedding), memory, state)
        weights: Tensors | None = {} if attention else None
        if weights is not None and shares is not None:  # (B,H,K,S), K rows to a row of memory
            weights["cross"] = shares.transpose(1, 2).flatten(0, 1)[:, None]
        return self.project(x[:, 0]), weights, state

    def features(
        self, tgt_in: Tensor, memory: Tensors, attention: bool = False, keep: Tensor | None = None
    ) -> tuple[Tensor, Tensors | None]:
        x, state = self.embed(tgt_in, self.target_embedding, keep=keep), self.start(memory)
        # All steps at once, or one after the other if each waits for what the last one attended to.
        made, shares = [], []
        for part in x.split(1, 1) if self.feeding else [x]:
            part, share, state = self.advance(part, memory, state)
            made.append(part)
            shares += [] if share is None else [share]
        weights: Tensors | None = {} if attention else None
        if weights is not None and shares:
            weights["cross"] = torch.cat(shares, 2)[:, None]
        return torch.cat(made, 1), weights

    def advance(self, x: Tensor, memory: Tensors, state: Tensors) -> tuple[Tensor, Tensor | None, Tensors]:
        """Embeddings (B,T,D) and the state before them -> a_t (B,T,D), attention weights, the state after them."""
        position = state["position"][:, None] + torch.arange(x.size(1), device=x.device)
        after = {"position": position[:, -1] + 1}
        parts = [x]
        if self.every:
            last = memory["last"].repeat_interleave(len(x) // len(memory["last"]), 0)
            parts.append(last[:, None].expand(x.shape))
        if self.feeding:
            parts.append(state["fed"][:, None])
        x, recurrent = self.recur(torch.cat(parts, 2), state)
        shares = None
        if self.attention is not None and self.readout is not None:
            # Rows that share a source, the hypotheses of a beam, go to it together, as if they were positions.
            rows = len(memory["last"])
            context, shares = self.attention(x.reshape(rows, -1, x.size(2)), memory, position.view(rows, -1))
            x = torch.tanh(self.readout(torch.cat([context.view(x.shape), x], 2)))
        if self.feeding:
            after["fed"] = x[:, -1]
        return self.dropped(x), shares, after | recurrent

    def recur(self, x: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Through the layers of the decoder: x (B,T,...) -> h_t (B,T,D), and the last state of each layer."""
        lasts = []
        for i, layer in enumerate(self.decoder):
            x = self.dropped(x) if i else x
            first = [state[name][:, i].contiguous() for name in self.states]
            if x.size(1) > 1:
                first = [part[None] for part in first]
                x, last = layer(x, tuple(first) if len(first) > 1 else first[0])
                lasts.append([part[0] for part in last] if isinstance(last, tuple) else [last[0]])
            else:  # which takes the kernel for sequences half as long again
                weights = (layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0)
                last = self.single_step(x[:, 0], first if len(first) > 1 else first[0], *weights)
                lasts.append(list(last) if isinstance(last, tuple) else [last])
                x = lasts[-1][0][:, None]
        stacked = [torch.stack(parts, 1) for parts in zip(*lasts, strict=True)]  # (B,L,D) each
        return x, dict(zip(self.states, stacked, strict=True))

    def dropped(self, x: Tensor) -> Tensor:
        return dropout(x, self.drop if self.training else 0.0)
