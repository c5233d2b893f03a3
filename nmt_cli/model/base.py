"""What every model is to the rest of nmt: search, training and inspection know this contract and nothing else.

Dimensions, here and in all of model/ and loss.py:
    B rows of a batch, S source length, T target length, D width of the model, V target vocabulary,
    H attention heads, L layers of the part in question.

Token ids are padded with PAD at the end; a source ends with EOS. `memory` is what stays constant while a target is
written, `state` what changes from step to step. Both are dicts of tensors with the batch on dim 0; two dicts, because
reordering hypotheses, `move`, must not copy the source side.
"""

from __future__ import annotations

from collections import Counter

import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.text.vocab import BOS, PAD

Tensors = dict[str, Tensor]


def select(tensors: Tensors, rows: Tensor) -> Tensors:
    """Reorder, repeat or drop rows: row i of the result is row rows[i]."""
    return {name: tensor.index_select(0, rows) for name, tensor in tensors.items()}


def forbid_pad_and_bos(logits: Tensor) -> Tensor:
    """logits (...,V) with nothing left for PAD and BOS, which are no words: label smoothing gives them a share, as it
    does to everything. They are overwritten."""
    logits[..., [PAD, BOS]] = float("-inf")
    return logits


class Seq2Seq(nn.Module):
    """A model that writes a target from left to right, given a source.

    `attention=True` also returns the attention weights, which costs time; what a family has no equivalent of is left
    out of the dict. `keep` is False for tokens whose embedding is zeroed (SimCut); their positions remain.
    """

    def encode(self, src: Tensor, attention: bool = False, keep: Tensor | None = None) -> Tensors:
        """src (B,S) -> memory; with attention also memory["attention"] (B,L,H,S,S)."""
        raise NotImplementedError

    def start(self, memory: Tensors) -> Tensors:
        """The state before the first token."""
        raise NotImplementedError

    def step(
        self, prev: Tensor, memory: Tensors, state: Tensors, attention: bool = False
    ) -> tuple[Tensor, Tensors | None, Tensors]:
        """prev (B,), BOS at first -> logits (B,V), {"cross": (B,L,H,S)} or None, the next state.

        The given state may be overwritten: go on from the one returned, or from a `move` of it. prev and state may
        have K rows to each row of memory, next to each other: the hypotheses of a beam share their source.
        """
        raise NotImplementedError

    def move(self, state: Tensors, rows: Tensor) -> Tensors:
        """The state of the hypotheses rows (B,K): hypothesis k of sentence b is what row rows[b,k] was.

        All rows of a sentence were rows of one sentence before, and sentences stay in order, though some may leave.
        """
        return select(state, rows.flatten())

    def features(
        self, tgt_in: Tensor, memory: Tensors, attention: bool = False, keep: Tensor | None = None
    ) -> tuple[Tensor, Tensors | None]:
        """tgt_in (B,T), BOS first -> (B,T,D), {"cross": (B,L,H,T,S), "decoder": (B,L,H,T,T)} or None."""
        raise NotImplementedError

    @property
    def output_weight(self) -> Tensor:
        """(V,D): the last layer of every family is a linear map without bias, so that the loss can work in pieces."""
        raise NotImplementedError

    def project(self, features: Tensor) -> Tensor:
        """(...,D) -> logits (...,V)."""
        return F.linear(features, self.output_weight)

    def decode(self, tgt_in: Tensor, memory: Tensors, attention: bool = False) -> tuple[Tensor, Tensors | None]:
        """All steps at once, for a known target: logits (B,T,V) and attention as in `features`."""
        features, weights = self.features(tgt_in, memory, attention)
        return self.project(features), weights

    def positions(self, length: int) -> Tensor | None:
        """(length,D): what is added to the embeddings of a source to say where they stand; None: no such thing."""
        return None

    def uses_per_token(self, name: str) -> tuple[float, float]:
        """How often a source token and a target token are multiplied with a parameter, for the count of FLOPs.

        Not asked of embeddings and positions, which are looked up, and of `output_weight`, which target tokens meet.
        """
        raise NotImplementedError

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        return self.decode(tgt_in, self.encode(src))[0]


def parameters_by_part(model: nn.Module) -> Counter[str]:
    """Parts are what the model itself is made of: target_embedding, encoder, ..."""
    parts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        parts[name.split(".")[0]] += parameter.numel()
    return parts


def count_parameters(model: nn.Module) -> int:
    """Build the model `with torch.device("meta")` to count without allocating."""
    return sum(parameter.numel() for parameter in model.parameters())
