"""Recurrent models without attention (Sutskever et al. 2014; Cho et al. 2014) and with attention (Bahdanau et al. 2015;
Luong et al. 2015), and the deep models Deep-Att (Zhou et al. 2016) and GNMT (Wu et al. 2016).

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

model.order = "bottom" (Deep-Att and GNMT), with h^i_t for layer i of L:
    c_t = attention(h^1_{t-1}, source)                  Wu et al., section 3
    h^1_t = recurrence([y_{t-1}; s; c_t], h^1_{t-1})
    h^i_t = recurrence(x^i_t, h^i_{t-1})                x^i_t = h^{i-1}_t, changed by `Rnn.connect` if model.skip is
                                                        set; with model.context_to_all = true also c_t
    p(y_t) = softmax(E h^L_t)

With model.experts, a mixture of experts f stands before the highest layer of the encoder and before that of the decoder
(Shazeer et al. 2017, appendix E): x + f(x) is the input of that layer.

If h_t depends on neither a_{t-1} nor c_t, the recurrence computes the whole target in one call. With "bottom", this
holds for all layers but the lowest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from nmt_cli.model.base import Decoded, Stepped, Tensors
from nmt_cli.model.device import on_cpu
from nmt_cli.model.embedding import EmbeddingSeq2Seq, initialize_embedding
from nmt_cli.model.experts import Experts
from nmt_cli.model.linear import Linear, linear
from nmt_cli.model.rnn_scores import SourceAttention
from nmt_cli.model.transformer import FeedForward
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


def backwards(x: Tensor, mask: Tensor) -> Tensor:
    """x (B,S,...) with the tokens of each sentence in the opposite order. Padding stays at the end."""
    length = x.size(1)
    index = (mask.sum(1, keepdim=True) - 1 - torch.arange(length, device=x.device)) % length
    return x.gather(1, index[..., None].expand(x.shape))


def half_of_products(layer: nn.RNNBase, x: Tensor) -> Tensor:
    """Half(f) of Zhou et al.: the first half of f = W x + b, which the cell adds to U h. A layer of both directions has
    two of them."""
    halves = []
    for direction in ("", "_reverse")[: 1 + layer.bidirectional]:
        weight, bias = (getattr(layer, f"{name}_ih_l0{direction}") for name in ("weight", "bias"))
        halves.append(linear(x, weight[: len(weight) // 2], bias[: len(bias) // 2]))
    return torch.cat(halves, 2)


def read_packed(layer: nn.RNNBase, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs (B,S,...) and a mask (B,S) that is False for padding -> states (B,S,D), the last state (B,D).

    Packed sequences skip padding, so the last state of each direction belongs to a real token. Without padding,
    unpacked sequences are faster.
    """
    lengths = mask.sum(1)
    if bool((lengths < x.size(1)).any()):
        output, last = layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        output, _ = pad_packed_sequence(output, batch_first=True, total_length=x.size(1))
    else:
        output, last = layer(x)
    hidden = last[0] if isinstance(last, tuple) else last  # (directions,B,D/directions)
    return output, hidden.transpose(0, 1).flatten(1)


def read_padded(layer: nn.RNNBase, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """As read_packed, for accelerators: packing would have to wait for the lengths. Padding is at the end, so each
    direction reads a sentence before its padding."""
    functions: dict[type, Callable[..., Any]] = {nn.RNN: torch.rnn_tanh, nn.GRU: torch.gru, nn.LSTM: torch.lstm}
    last_place = mask.sum(1)[:, None, None] - 1
    outputs, last = [], []
    for suffix in ("", "_reverse")[: 1 + layer.bidirectional]:
        weights = [getattr(layer, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        start = x.new_zeros(1, len(x), layer.hidden_size)
        first = (start, start) if isinstance(layer, nn.LSTM) else start
        inputs = backwards(x, mask) if suffix else x
        output = functions[type(layer)](inputs, first, weights, True, 1, 0.0, layer.training, False, True)[0]
        last.append(output.gather(1, last_place.expand(-1, -1, output.size(2)))[:, 0])
        outputs.append(backwards(output, mask) if suffix else output)
    return torch.cat(outputs, 2) * mask[..., None], torch.cat(last, 1)


class Rnn(EmbeddingSeq2Seq):
    def __init__(self, config: recipe.Rnn, source_vocab: int, target_vocab: int) -> None:
        dim = config.dim
        super().__init__(source_vocab, target_vocab, dim, config.tie, math.sqrt(dim), config.dropout)
        self.state_names = ("hidden", "cell") if config.cell == "lstm" else ("hidden",)
        # The tensor of the memory that is part of each input.
        self.input_context = {"start": None, "every": "last", "mean": "mean"}[config.context]
        self.input_feeding, self.skip, self.context_to_all = config.input_feeding, config.skip, config.context_to_all
        self.attends_before, attends_at_bottom = config.order != "after", config.order == "bottom"
        # The number of layers that run step by step, if a step needs the result of the last step (run_decoder).
        self.single_layers = 1 if attends_at_bottom else config.decoder_layers
        self.asking_layer = 0 if attends_at_bottom else -1  # the layer whose last state is the query
        cell, self.single_step = CELLS[config.cell]
        fast_forward = {"rnn": 1, "gru": 3, "lstm": 4}[config.cell] * dim // 2 if config.skip == "fast_forward" else 0
        # One module per layer instead of one stack, to use the dropout of dropout.py between layers.
        self.columns = 2 if config.directions == "interleaved" else 1
        self.encoder = nn.ModuleList()
        for i in [*range(config.encoder_layers)] * self.columns:
            both = config.directions == "both" or (config.directions == "both_first" and i == 0)
            input_width = (dim + fast_forward) // self.columns if i else dim
            width = dim // 2 if both else dim // self.columns
            self.encoder.append(cell(input_width, width, batch_first=True, bidirectional=both))
        # W_p of Deep-Att: the states that the decoder sees, from [W x; h] of the highest layer of each column.
        self.encoder_states = Linear(dim + fast_forward, dim, bias=False) if fast_forward else None
        self.bridge = Linear(dim, len(self.state_names) * config.decoder_layers * dim)
        inputs = (True, self.input_context, self.input_feeding, self.attends_before)
        input_width = sum(map(bool, inputs)) * dim
        higher_width = dim + fast_forward + self.context_to_all * dim
        self.decoder = nn.ModuleList(
            cell(higher_width if i else input_width, dim, batch_first=True) for i in range(config.decoder_layers)
        )
        network = partial(FeedForward, dim, config.experts_ff, "relu", 0.0)
        self.encoder_experts = Experts(config, network) if config.experts else None
        self.decoder_experts = Experts(config, network) if config.experts else None
        self.attention = SourceAttention(config) if config.attention != "none" else None
        has_readout = self.attention is not None and not attends_at_bottom
        self.readout = Linear((2 + self.attends_before) * dim, dim, bias=False) if has_readout else None
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
        by_source, by_target = super().uses_per_token(name)
        # A fast-forward connection multiplies half of the input matrix once more. The highest decoder layer has none.
        again = self.skip == "fast_forward" and "weight_ih" in name
        factor = 1.5 if again and not name.startswith(f"decoder.{len(self.decoder) - 1}.") else 1.0
        return factor * by_source, factor * by_target

    def encode(self, src: Tensor, attention: bool = False, keep: Tensor | None = None) -> Tensors:
        """memory: the last state (B,D), the mean of the states (B,D), and the tensors of SourceAttention.read."""
        self.forget_routes()
        mask = src != PAD
        x = self.embed(src, self.source_table, None, keep)
        read = read_packed if on_cpu(src) else read_padded
        depth = len(self.encoder) // self.columns
        outputs, lasts = [], []
        for column in range(self.columns):
            y = x
            for i in range(depth):
                if self.encoder_experts is not None and i + 1 == depth:
                    y = y + self.encoder_experts(y)
                layer, inputs = self.encoder[column * depth + i], y
                assert isinstance(layer, nn.RNNBase)
                if self.columns == 2 and (i + column) % 2:  # odd layers of one column, even layers of the other
                    y, last = read(layer, backwards(y, mask), mask)
                    y = backwards(y, mask)
                else:
                    y, last = read(layer, y, mask)
                y = self.connect(i, layer, inputs, inputs, y, is_last=i + 1 == depth)
                if self.encoder_states is not None and i + 1 == depth:
                    y = torch.cat([half_of_products(layer, inputs), y], 2)
            outputs.append(y)
            lasts.append(last)
        x = torch.cat(outputs, 2)
        x = x if self.encoder_states is None else self.encoder_states(x)
        memory = {"last": torch.cat(lasts, 1)}
        if self.input_context == "mean":
            memory["mean"] = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return memory if self.attention is None else memory | self.attention.read(x, mask)

    def connect(self, i: int, layer: nn.RNNBase, inputs: Tensor, x: Tensor, y: Tensor, is_last: bool) -> Tensor:
        """Turn the output y of layer i into the input of the next layer. `inputs` is the input of layer i: x, and with
        model.context_to_all also the context."""
        y = y if is_last else self.drop_out(y)
        if self.skip == "residual" and i >= 2:
            return x + y
        if self.skip == "fast_forward" and not is_last:
            return torch.cat([half_of_products(layer, inputs), y], 2)
        return y

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
        x = self.embed(tgt_in, self.target_embedding, None, keep)
        x, cross, _ = self.run_decoder(x, memory, self.start(memory))
        weights = {} if cross is None else {"cross": cross[:, None]}
        return x, weights if attention else None

    def run_decoder(self, x: Tensor, memory: Tensors, state: Tensors) -> tuple[Tensor, Tensor | None, Tensors]:
        """Embeddings (B,T,D) and the state before -> a_t (B,T,D), attention weights (B,H,T,S), the state after."""
        position = state["position"][:, None] + torch.arange(x.size(1), device=x.device)
        cells = [list(cell) for cell in zip(*(state[name].unbind(1) for name in self.state_names), strict=True)]
        attentional, first, rest = state.get("attentional"), range(self.single_layers), range(len(self.decoder))
        if self.input_context is not None:
            source = memory[self.input_context].repeat_interleave(len(x) // len(memory["last"]), 0)[:, None]
        # With input feeding and with attention before the recurrence, a step needs the result of the last step.
        # Otherwise all steps run in one call.
        waits, context = self.input_feeding or self.attends_before, None
        outputs, contexts, cross = [], [], []
        for part, at in zip(x.split(1, 1), position.split(1, 1), strict=True) if waits else [(x, position)]:
            inputs = [part]
            if self.input_context is not None:
                inputs.append(source.expand(part.shape))
            if attentional is not None:
                inputs.append(attentional[:, None])
            if self.attends_before:
                context, weights = self.attend(cells[self.asking_layer][0][:, None], memory, at)
                inputs.append(context)
            output = self.recur(first, torch.cat(inputs, 2), cells, context)
            if self.readout is not None:
                if context is None or not self.attends_before:
                    context, weights = self.attend(output, memory, at)
                seen = [context, output, part] if self.attends_before else [context, output]
                output = torch.tanh(self.readout(torch.cat(seen, 2)))
            if self.input_feeding:
                attentional = output[:, -1]
            outputs.append(output)
            if context is not None:
                contexts.append(context)
                cross.append(weights)
        context = torch.cat(contexts, 1) if contexts else None
        output = self.recur(rest[self.single_layers :], torch.cat(outputs, 1), cells, context)
        next_state = {"position": position[:, -1] + 1}
        if attentional is not None:
            next_state["attentional"] = attentional
        for name, parts in zip(self.state_names, zip(*cells, strict=True), strict=True):
            next_state[name] = torch.stack(parts, 1)
        return self.drop_out(output), torch.cat(cross, 2) if cross else None, next_state

    def attend(self, hidden: Tensor, memory: Tensors, position: Tensor) -> tuple[Tensor, Tensor]:
        """States of the decoder (B*K,T,D) and their positions (B*K,T) -> contexts (B*K,T,D), weights (B,H,K*T,S)."""
        assert self.attention is not None
        # The hypotheses of a sentence share its source, so attention treats them like positions of one target.
        rows = len(memory["last"])
        context, weights = self.attention(hidden.reshape(rows, -1, hidden.size(2)), memory, position.reshape(rows, -1))
        return context.view(hidden.shape), weights

    def recur(self, layers: range, x: Tensor, cells: list[list[Tensor]], context: Tensor | None) -> Tensor:
        """Some layers of the decoder: inputs (B,T,...) -> the output of the last of them (B,T,D). cells[i] are the
        tensors (B,D) of the state of layer i, which are replaced. `context` (B,T,D) is for model.context_to_all."""
        for i in layers:
            layer, first = self.decoder[i], cells[i]
            assert isinstance(layer, nn.RNNBase)
            if self.decoder_experts is not None and i + 1 == len(self.decoder):
                x = x + self.decoder_experts(x)
            inputs = torch.cat([x, context], 2) if i and self.context_to_all and context is not None else x
            if x.size(1) > 1:
                first = [part.contiguous()[None] for part in first]
                y, last = layer(inputs, tuple(first) if len(first) > 1 else first[0])
                cells[i] = [part[0] for part in last] if isinstance(last, tuple) else [last[0]]
            else:  # for a single step, the function of the cell is a third faster than the module
                weights = (layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0)
                last = self.single_step(inputs[:, 0], first if len(first) > 1 else first[0], *weights)
                cells[i] = list(last) if isinstance(last, tuple) else [last]
                y = cells[i][0][:, None]
            x = self.connect(i, layer, inputs, x, y, is_last=i + 1 == len(self.decoder))
        return x
