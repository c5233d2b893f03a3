"""The contract of every model. Search, training and inspection use nothing else of a model.

Dimensions, here, in all of model/ and in training/loss.py: B rows of a batch, S source length, T target length, D width
of the model, V size of the target vocabulary, H attention heads, L layers, K hypotheses of a sentence.
Token ids are padded with PAD at the end, and a source ends with EOS. `memory` holds the tensors that stay constant
while a target is written, `state` those that change from step to step, both with the batch on dim 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmt_cli.model.linear import linear
from nmt_cli.text.vocab import BOS, PAD

T = TypeVar("T")
Tensors = dict[str, Tensor]
Decoded = tuple[Tensor, Tensors | None]  # features or logits, and attention weights by kind
Stepped = tuple[Tensor, Tensors | None, Tensors]  # logits, attention weights, the next state


def select(tensors: Tensors, rows: Tensor) -> Tensors:
    """Reorder, repeat or drop rows: row i of the result is row rows[i] of the input."""
    return {name: tensor.index_select(0, rows) for name, tensor in tensors.items()}


def forbid_pad_and_bos(logits: Tensor) -> Tensor:
    """Set the logits (...,V) of PAD and BOS to -inf, in place. Label smoothing gives both a small probability."""
    for token in (PAD, BOS):  # the index [PAD, BOS] would be copied to an accelerator first
        logits[..., token].fill_(float("-inf"))
    return logits


class Seq2Seq(nn.Module):
    """A model that reads a source and writes a target from left to right.

    `attention=True` also returns the attention weights that the family has; this costs time. `keep` is False for tokens
    whose embedding is set to zero (SimCut); their position vectors stay.
    """

    recompute = False  # train.checkpoint_activations

    def run(self, part: Callable[..., T], *inputs: Any) -> T:
        """part(*inputs). If `recompute` is true, the backward pass computes it again, with the same dropout, instead of
        keeping its tensors."""
        if self.recompute and self.training and torch.is_grad_enabled():
            return checkpoint(part, *inputs, use_reentrant=False)
        return part(*inputs)

    def encode(self, src: Tensor, attention: bool = False, keep: Tensor | None = None) -> Tensors:
        """src (B,S) -> memory; with attention also memory["attention"] (B,L,H,S,S)."""
        raise NotImplementedError

    def read_source(self, src: Tensor) -> tuple[Tensor, Tensors]:
        """src (B,S) -> features (B,S,D) that predict the next source token, and memory. For decoder-only models."""
        raise NotImplementedError

    def start(self, memory: Tensors) -> Tensors:
        """The state before the first token."""
        raise NotImplementedError

    def step(self, prev: Tensor, memory: Tensors, state: Tensors, attention: bool = False) -> Stepped:
        """prev (B,), BOS in the first step -> logits (B,V), {"cross": (B,L,H,S)} or None, the next state.

        A step may overwrite the given state, so continue from the returned state or from a `move` of it. prev and state
        may have B*K rows: rows b*K to b*K+K-1 are the hypotheses of sentence b, and all of them use row b of memory.
        """
        raise NotImplementedError

    def move(self, state: Tensors, rows: Tensor) -> Tensors:
        """The state of the hypotheses rows (B,K): hypothesis k of sentence b continues row rows[b,k].

        All rows[b] belong to one sentence of the given state. Sentences may leave, and the others stay in order.
        """
        return select(state, rows.flatten())

    def features(self, tgt_in: Tensor, memory: Tensors, attention: bool = False, keep: Tensor | None = None) -> Decoded:
        """tgt_in (B,T), which begins with BOS -> (B,T,D), {"cross": (B,L,H,T,S), "decoder": (B,L,H,T,T)} or None."""
        raise NotImplementedError

    @property
    def output_weight(self) -> Tensor:
        """(V,D): the weight of the last layer. This layer is linear in all families, so the loss can split it."""
        raise NotImplementedError

    @property
    def output_bias(self) -> Tensor | None:
        """(V,): the bias of the last layer; None if the model has none."""
        return None

    def project(self, features: Tensor) -> Tensor:
        """(...,D) -> logits (...,V)."""
        return linear(features, self.output_weight, self.output_bias)

    def decode(self, tgt_in: Tensor, memory: Tensors, attention: bool = False) -> Decoded:
        """All steps at once, for a known target: logits (B,T,V), and attention weights as in `features`."""
        features, weights = self.features(tgt_in, memory, attention)
        return self.project(features), weights

    def positions(self, length: int) -> Tensor | None:
        """(length,D): the vectors of the positions of the source; None if the model has none."""
        return None

    def uses_per_token(self, name: str) -> tuple[float, float]:
        """How often each source token and each target token is multiplied by the parameter, for `training_flops`."""
        return (1.0, 0.0) if name.startswith("encoder") or "keys_values" in name else (0.0, 1.0)

    def auxiliary_loss(self, src: Tensor, tgt_in: Tensor) -> Tensor | None:
        """The term that training adds to the mean loss of a token, after a pass over this batch. None: no term."""
        return None

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        return self.decode(tgt_in, self.encode(src))[0]


def parameters_by_part(model: nn.Module) -> Counter[str]:
    """Parameter counts of the attributes of the model: target_embedding, encoder, decoder, ..."""
    parts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        parts[name.split(".")[0]] += parameter.numel()
    return parts


def training_flops(model: Seq2Seq, source_tokens: int, target_tokens: int) -> float:
    """The floating-point operations of training on these tokens.

    A token costs 6 operations for each weight that it is multiplied with: 2 in the forward pass, 4 in the backward.
    Looking up embeddings is free. The products between queries, keys and values, a few percent, are not counted.
    """
    output, per_source, per_target = model.output_weight, 0.0, 0.0
    for name, parameter in model.named_parameters():
        if parameter is output:
            per_target += parameter.numel()
        elif "embedding" not in name and "positions" not in name:
            by_source, by_target = model.uses_per_token(name)
            per_source += by_source * parameter.numel()
            per_target += by_target * parameter.numel()
    return 6.0 * (per_source * source_tokens + per_target * target_tokens)
