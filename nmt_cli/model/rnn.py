"""Recurrent models without attention (Sutskever et al. 2014; Cho et al. 2014) and with attention (Bahdanau et al. 2015;
Luong et al. 2015).

model.order = "after" (Luong):
    h_t = recurrence([y_{t-1}; s; a_{t-1}], h_{t-1})    s, the last state of the encoder, if model.context = "every", or
                                                        the mean of its states, if model.context = "mean";
                                                        a_{t-1} if model.input_feeding = true
    c_t = attention(h_t, source)                        rnn_scores.py
    a_t = tanh(W [c_t; h_t])                            Luong et al., eq. 5; without attention a_t = h_t
    p(y_t) = softmax(E a_t)                             Luong et al., eq. 6

model.order = "before" (Bahdanau):
    c_t = attention(h_{t-1}, source)                    Bahdanau et al., eq. 5 and 6
    h_t = recurrence([y_{t-1}; s; c_t], h_{t-1})        section 3.1
    a_t = tanh(W [c_t; h_t; y_{t-1}])                   eq. 4: g(y_{t-1}, s_t, c_t). The paper's g has maxout, not tanh
    p(y_t) = softmax(E a_t)

If h_t depends on neither a_{t-1} nor c_t, the recurrence computes the whole target in one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from nmt_cli.model.base import Decoded, Stepped, Tensors
from nmt_cli.model.embedding import EmbeddingSeq2Seq, initialize_embedding
from nmt_cli.model.rnn_scores import SourceAttention
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import PAD

# The recurrence over a sequence, and the function for a single step.
CELLS: dict[str, tuple[Callable[..., nn.RNNBase], Callable[..., Any]]] = {
    "rnn": (nn.RNN, torch.rnn_tanh_cell),
    "gru": (nn.GRU, torch.gru_cell),
    "lstm": (nn.LSTM, torch.lstm_cell),
}


def initialize_recurrence(layer: nn.RNNBase) -> None:
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
            nn.init.ones_(gates[1])  # the forget gate; the order is input, forget, cell, output


class Rnn(EmbeddingSeq2Seq):
    def __init__(self, config: recipe.Rnn, source_vocab: int, target_vocab: int) -> None:
        dim = config.dim
        super().__init__(source_vocab, target_vocab, dim, config.tie, math.sqrt(dim), config.dropout)
        self.state_names = ("hidden", "cell") if config.cell == "lstm" else ("hidden",)
        # The tensor of the memory that is part of each input.
        self.input_context = {"start": None, "every": "last", "mean": "mean"}[config.context]
        self.input_feeding, self.attends_before = config.input_feeding, config.order == "before"
        cell, self.single_step = CELLS[config.cell]
        # One module per layer instead of one stack, to use the dropout of dropout.py between layers.
        directions = 1 + config.bidirectional
        self.encoder = nn.ModuleList(
            cell(dim, dim // directions, batch_first=True, bidirectional=config.bidirectional)
            for _ in range(config.encoder_layers)
        )
        self.bridge = nn.Linear(dim, len(self.state_names) * config.decoder_layers * dim)
        inputs = (True, self.input_context, self.input_feeding, self.attends_before)
        input_width = sum(map(bool, inputs)) * dim
        self.decoder = nn.ModuleList(
            cell(dim if i else input_width, dim, batch_first=True) for i in range(config.decoder_layers)
        )
        self.attention = SourceAttention(config) if config.attention != "none" else None
        self.readout = nn.Linear((2 + self.attends_before) * dim, dim, bias=False) if self.attention else None
        self.initialize(dim)

    def initialize(self, dim: int) -> None:
        """Embeddings have about unit length. Each matrix is initialized by Xavier, but matrices from state to state are
        orthogonal, so that gradients neither explode nor vanish. Biases are zero, but the forget gates of an LSTM begin
        open (Jozefowicz et al. 2015)."""
        for module in self.modules():
            match module:
                case nn.Embedding():
                    initialize_embedding(module, dim**-0.5)
                case nn.Linear():
                    nn.init.xavier_uniform_(module.weight)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)
                case nn.RNNBase():
                    initialize_recurrence(module)
        if self.output is not None:
            nn.init.normal_(self.output.weight, std=dim**-0.5)  # the output layer, initialized like an embedding

    def uses_per_token(self, name: str) -> tuple[float, float]:
        """The bridge is used once per sentence and counts as 0. The parameters of a score are used once per head."""
        heads = self.attention.heads if self.attention is not None else 0
        if name.startswith("bridge"):
            return 0.0, 0.0
        if name.startswith("attention.score.hidden"):  # half of the matrix is for queries, half for keys
            return heads / 2, heads / 2
        if name.startswith("attention.score"):
            return (heads, 0.0) if ".source." in name else (0.0, heads)
        return super().uses_per_token(name)

    def encode(self, src: Tensor, attention: bool = False, keep: Tensor | None = None) -> Tensors:
        """memory: the last state (B,D), the mean of the states (B,D), and the tensors of SourceAttention.read."""
        mask = src != PAD
        x = self.embed(src, self.source_table, None, keep)
        # Packed sequences skip padding, so the last state of each direction belongs to a real token. Without padding,
        # unpacked sequences are faster.
        lengths = mask.sum(1).cpu()
        packed = bool((lengths < src.size(1)).any())
        for i, layer in enumerate(self.encoder):
            x = self.drop_out(x) if i else x
            if packed:
                output, last = layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
                x, _ = pad_packed_sequence(output, batch_first=True, total_length=src.size(1))
            else:
                x, last = layer(x)
        hidden = last[0] if isinstance(last, tuple) else last  # (directions,B,D/directions)
        memory = {"last": hidden.transpose(0, 1).flatten(1)}
        if self.input_context == "mean":
            memory["mean"] = x.sum(1) / mask.sum(1, keepdim=True)  # x is zero where the source is padding
        return memory if self.attention is None else memory | self.attention.read(x, mask)

    def start(self, memory: Tensors) -> Tensors:
        """The state: the tensors of the cells (B,L,D), a_{t-1} (B,D) with input feeding, the number of steps (B,)."""
        last = memory["last"]
        first = torch.tanh(self.bridge(last)).unflatten(1, (len(self.state_names), len(self.decoder), -1))
        state = dict(zip(self.state_names, first.unbind(1), strict=True))
        if self.input_feeding:
            state["attentional"] = torch.zeros_like(last)
        return state | {"position": torch.zeros(len(last), dtype=torch.long, device=last.device)}

    def step(self, prev: Tensor, memory: Tensors, state: Tensors, attention: bool = False) -> Stepped:
        x, cross, state = self.run_decoder(self.embed(prev[:, None], self.target_embedding, None), memory, state)
        weights: Tensors = {}
        if attention and cross is not None:  # (B,H,K,S) -> (B*K,1,H,S)
            weights["cross"] = cross.transpose(1, 2).flatten(0, 1)[:, None]
        return self.project(x[:, 0]), weights if attention else None, state

    def features(self, tgt_in: Tensor, memory: Tensors, attention: bool = False, keep: Tensor | None = None) -> Decoded:
        x, state = self.embed(tgt_in, self.target_embedding, None, keep), self.start(memory)
        # With both options, a step needs the result of the last step. Otherwise all steps run in one call.
        outputs, cross = [], []
        for part in x.split(1, 1) if self.input_feeding or self.attends_before else [x]:
            output, part_cross, state = self.run_decoder(part, memory, state)
            outputs.append(output)
            cross += [] if part_cross is None else [part_cross]
        weights = {"cross": torch.cat(cross, 2)[:, None]} if attention and cross else {}
        return torch.cat(outputs, 1), weights if attention else None

    def run_decoder(self, x: Tensor, memory: Tensors, state: Tensors) -> tuple[Tensor, Tensor | None, Tensors]:
        """Embeddings (B,T,D) and the state before -> a_t (B,T,D), attention weights (B,H,T,S), the state after."""
        position = state["position"][:, None] + torch.arange(x.size(1), device=x.device)
        next_state = {"position": position[:, -1] + 1}
        inputs = [x]
        if self.input_context is not None:
            context = memory[self.input_context].repeat_interleave(len(x) // len(memory["last"]), 0)
            inputs.append(context[:, None].expand(x.shape))
        if self.input_feeding:
            inputs.append(state["attentional"][:, None])
        weights = None
        if self.attends_before:
            context, weights = self.attend(state["hidden"][:, -1:], memory, position)
            inputs.append(context)
        hidden, recurrent = self.recur(torch.cat(inputs, 2), state)
        output = hidden
        if self.readout is not None:
            if not self.attends_before:
                context, weights = self.attend(hidden, memory, position)
            parts = [context, hidden, x] if self.attends_before else [context, hidden]
            output = torch.tanh(self.readout(torch.cat(parts, 2)))
        if self.input_feeding:
            next_state["attentional"] = output[:, -1]
        return self.drop_out(output), weights, next_state | recurrent

    def attend(self, hidden: Tensor, memory: Tensors, position: Tensor) -> tuple[Tensor, Tensor]:
        """States of the decoder (B*K,T,D) and their positions (B*K,T) -> contexts (B*K,T,D), weights (B,H,K*T,S)."""
        assert self.attention is not None
        # The hypotheses of a sentence share its source, so attention treats them like positions of one target.
        rows = len(memory["last"])
        context, weights = self.attention(hidden.reshape(rows, -1, hidden.size(2)), memory, position.view(rows, -1))
        return context.view(hidden.shape), weights

    def recur(self, x: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """The layers of the decoder: inputs (B,T,...) and a state -> h_t (B,T,D), and the last state of each layer."""
        last_states = []
        for i, layer in enumerate(self.decoder):
            x = self.drop_out(x) if i else x
            first = [state[name][:, i].contiguous() for name in self.state_names]
            if x.size(1) > 1:
                first = [part[None] for part in first]
                x, last = layer(x, tuple(first) if len(first) > 1 else first[0])
                last_states.append([part[0] for part in last] if isinstance(last, tuple) else [last[0]])
            else:  # for a single step, the function of the cell is a third faster than the module
                weights = (layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0)
                last = self.single_step(x[:, 0], first if len(first) > 1 else first[0], *weights)
                last_states.append(list(last) if isinstance(last, tuple) else [last])
                x = last_states[-1][0][:, None]
        stacked = [torch.stack(parts, 1) for parts in zip(*last_states, strict=True)]  # (B,L,D) each
        return x, dict(zip(self.state_names, stacked, strict=True))
