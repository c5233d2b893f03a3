"""The attention of recurrent decoders: seven ways to score a source position, and what is done with the scores.

The scores differ in `Score.keys` and `Score.forward` and in nothing else; window, mask, softmax and context are written
once, below them. A score has one set of parameters for all heads, which differ by their projections; d = D/H is the
width of a head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.model.base import Tensors
from nmt_cli.recipe import schema as recipe

# ---------------------------------------------------------------------------------------------------------------------
# Scores


def small_vector(dim: int) -> Tensor:
    return torch.empty(dim).uniform_(-(dim**-0.5), dim**-0.5)


class Score(nn.Module):
    """How well a query, the decoder's state q, and a key, the encoder's state k, go together."""

    def keys(self, states: Tensor) -> Tensor:
        """(B,S,H,d) -> what `forward` wants of the source, batch first: computed once per sentence."""
        return states

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """query (B,T,H,d) and the keys -> (B,H,T,S)"""
        raise NotImplementedError


class Dot(Score):
    """q . k (Luong et al. 2015, eq. 8)"""

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query.transpose(1, 2) @ keys.permute(0, 2, 3, 1)


class ScaledDot(Dot):
    """q . k / sqrt(d) (Vaswani et al. 2017, eq. 1)"""

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return super().forward(query / math.sqrt(query.size(-1)), keys)


class General(Dot):
    """q . W k (Luong et al. 2015, eq. 8)"""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.source = nn.Linear(dim, dim, bias=False)

    def keys(self, states: Tensor) -> Tensor:
        return self.source(states)


class Cosine(Dot):
    """b cos(q, k), with a strength b = softplus(w . q + c) (Graves et al. 2014, eq. 5 and 6)"""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.strength = nn.Linear(dim, 1, bias=False)
        self.offset = nn.Parameter(torch.full((1,), 4.0))  # with b near 1, a softmax could not tell cosines apart

    def keys(self, states: Tensor) -> Tensor:
        return F.normalize(states, dim=-1)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return super().forward(F.softplus(self.strength(query) + self.offset) * F.normalize(query, dim=-1), keys)


class Additive(Score):
    """v . tanh(W q + U k) (Bahdanau et al. 2015, appendix A.1.2)"""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(dim, dim, bias=False)
        self.source = nn.Linear(dim, dim, bias=False)
        self.vector = nn.Parameter(small_vector(dim))

    def keys(self, states: Tensor) -> Tensor:
        return self.source(states)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        pairs = torch.tanh(self.query(query)[:, :, None] + keys[:, None])  # (B,T,S,H,d)
        return (pairs @ self.vector).permute(0, 3, 1, 2)


class Perceptron(Score):
    """v . relu(W [q; k] + b), a perceptron over the concatenation. (With tanh and without b it would be `Additive`, of
    which Luong's concat is another notation.)"""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * dim, dim)
        self.vector = nn.Parameter(small_vector(dim))

    def keys(self, states: Tensor) -> Tensor:
        # W [q; k] = W_q q + W_k k: nothing as large as all concatenations ever exists.
        return F.linear(states, self.hidden.weight[:, states.size(-1) :], self.hidden.bias)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        query = F.linear(query, self.hidden.weight[:, : query.size(-1)])
        pairs = (query[:, :, None] + keys[:, None]).relu_()  # (B,T,S,H,d)
        return (pairs @ self.vector).permute(0, 3, 1, 2)


class Location(Score):
    """w_s . q, whatever stands at position s (Luong et al. 2015, eq. 9). As in the paper, words of a long sentence that
    no w is left for are ignored."""

    IGNORED = -1e4  # a probability of 0, unless a window shows nothing else

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.location = nn.Linear(dim, size, bias=False)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        scores = self.location(query).transpose(1, 2)
        return F.pad(scores, (0, keys.size(1) - scores.size(-1)), value=self.IGNORED)


def make_score(config: recipe.Rnn) -> Score:
    dim = config.dim // config.heads
    match config.attention:
        case "cosine":
            return Cosine(dim)
        case "additive":
            return Additive(dim)
        case "location":
            return Location(dim, config.location_size)
        case "general":
            return General(dim)
        case "dot":
            return Dot()
        case "scaled_dot":
            return ScaledDot()
        case "mlp":
            return Perceptron(dim)
    raise ValueError(f"no score {config.attention}")


# ---------------------------------------------------------------------------------------------------------------------
# From scores to contexts


def blend(scores: Tensor, mask: Tensor | None, values: Tensor, factors: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """scores (B,H,T,S), values (B,S,H,d) -> contexts (B,T,H*d) and the weights (B,H,T,S).

    `mask` is True where one may look, `factors` change the weights after the softmax; both broadcast to (B,H,T,S).
    """
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1)
    if factors is not None:
        weights = weights * factors
    return (weights @ values.transpose(1, 2)).transpose(1, 2).flatten(2), weights


class SourceAttention(nn.Module):
    """States of the decoder look up states of the encoder, all of them or a window (Luong et al. 2015, section 3)."""

    def __init__(self, config: recipe.Rnn) -> None:
        super().__init__()
        dim = config.dim
        self.heads = config.heads
        self.span = config.span
        self.radius = config.radius
        self.score = make_score(config)
        self.query = nn.Linear(dim, dim, bias=False) if config.projections else None
        self.keys_values = nn.Linear(dim, 2 * dim, bias=False) if config.projections else None
        if config.span == "predictive":
            self.centre_hidden = nn.Linear(dim, dim, bias=False)
            self.centre = nn.Linear(dim, 1, bias=False)

    def split(self, x: Tensor) -> Tensor:
        """(B,T,D) -> (B,T,H,d)"""
        return x.unflatten(-1, (self.heads, -1))

    def read(self, states: Tensor, mask: Tensor) -> Tensors:
        """What stays the same while a target is written: states (B,S,D), mask (B,S), False for padding."""
        keys = values = states
        if self.keys_values is not None:
            keys, values = self.keys_values(states).chunk(2, -1)
        return {"keys": self.score.keys(self.split(keys)), "values": self.split(values), "mask": mask}

    def forward(self, states: Tensor, memory: Tensors, position: Tensor) -> tuple[Tensor, Tensor]:
        """states (B,T,D) of the decoder at positions (B,T) -> contexts (B,T,D), weights (B,H,T,S)."""
        query = states if self.query is None else self.query(states)
        scores = self.score(self.split(query), memory["keys"])
        visible, factors = self.window(states, position, memory["mask"])
        return blend(scores, visible, memory["values"], factors)

    def window(self, states: Tensor, position: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """What may be seen (B,1,T,S), and the factors on its weights (B,1,T,S), if any; positions count from 0."""
        if self.span == "global":
            return mask[:, None, None], None
        length = mask.sum(1, keepdim=True)
        if self.span == "monotonic":  # local-m: the centre is the target's own position, or the last word
            centre = torch.minimum(position, length - 1)
        else:  # local-p: S sigmoid(v . tanh(W h))
            centre = length * torch.sigmoid(self.centre(torch.tanh(self.centre_hidden(states)))).squeeze(-1)
        distance = (torch.arange(mask.size(1), device=mask.device) - centre[..., None])[:, None]  # (B,1,T,S)
        visible = mask[:, None, None] & (distance.abs() <= self.radius)
        if self.span == "monotonic":
            return visible, None
        return visible, torch.exp(-(distance**2) / (2 * (self.radius / 2) ** 2))  # a Gaussian, sigma = radius / 2
