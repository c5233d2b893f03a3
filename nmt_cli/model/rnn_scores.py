"""The attention of recurrent decoders: eight scores, and the attention that uses them.

A score says how well a query q, a state of the decoder, matches a key k, a state of the encoder. All heads share the
parameters of the score; heads differ by their projections. d = D/H is the width of a head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.model.base import Tensors
from nmt_cli.model.linear import Linear, linear
from nmt_cli.recipe import schema as recipe


def small_vector(dim: int) -> Tensor:
    return torch.empty(dim).uniform_(-(dim**-0.5), dim**-0.5)


class Score(nn.Module):
    """The base class of all scores. The docstring of each class is its formula for one query q and one key k."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def keys(self, states: Tensor) -> Tensor:
        """States of the encoder (B,S,H,d) -> the keys that `forward` takes, computed once per sentence."""
        return states

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Queries (B,T,H,d) and keys -> scores (B,H,T,S)."""
        raise NotImplementedError


class Dot(Score):
    """q . k (Luong et al. 2015, eq. 8, "dot")"""

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query.transpose(1, 2) @ keys.permute(0, 2, 3, 1)


class ScaledDot(Dot):
    """q . k / sqrt(d) (Vaswani et al. 2017, eq. 1)"""

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return super().forward(query / math.sqrt(query.size(-1)), keys)


class General(Dot):
    """q . W k (Luong et al. 2015, eq. 8, "general")"""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.source = Linear(dim, dim, bias=False)

    def keys(self, states: Tensor) -> Tensor:
        return self.source(states)


class PlainCosine(Dot):
    """cos(q, k), from -1 to 1: of two positions, one has at most e^2 times the weight of the other"""

    def keys(self, states: Tensor) -> Tensor:
        return F.normalize(states, dim=-1)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return super().forward(F.normalize(query, dim=-1), keys)


class Cosine(PlainCosine):
    """b cos(q, k), where the strength b is softplus(w . q + c) (Graves et al. 2014, eq. 5 and 6)"""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.strength = Linear(dim, 1, bias=False)
        self.offset = nn.Parameter(torch.full((1,), 4.0))  # c; with b near 1, the softmax would be nearly flat

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        strength = F.softplus(self.strength(query) + self.offset)
        return Dot.forward(self, strength * F.normalize(query, dim=-1), keys)


class Additive(Score):
    """v . tanh(W q + U k) (Bahdanau et al. 2015, appendix A.1.2)"""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.query = Linear(dim, dim, bias=False)
        self.source = Linear(dim, dim, bias=False)
        self.vector = nn.Parameter(small_vector(dim))

    def keys(self, states: Tensor) -> Tensor:
        return self.source(states)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        pairs = torch.tanh(self.query(query)[:, :, None] + keys[:, None])  # (B,T,S,H,d)
        return (pairs @ self.vector).permute(0, 3, 1, 2)


class Perceptron(Score):
    """v . relu(W [q; k] + b); "concat" of Luong et al. 2015 has tanh and no b, and equals `Additive`"""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.hidden = Linear(2 * dim, dim)
        self.vector = nn.Parameter(small_vector(dim))

    def keys(self, states: Tensor) -> Tensor:
        # W [q; k] = W_q q + W_k k, so the concatenations of all pairs are never stored.
        return linear(states, self.hidden.weight[:, states.size(-1) :], self.hidden.bias)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        query = linear(query, self.hidden.weight[:, : query.size(-1)])
        pairs = (query[:, :, None] + keys[:, None]).relu_()  # (B,T,S,H,d)
        return (pairs @ self.vector).permute(0, 3, 1, 2)


class Location(Score):
    """w_s . q for position s (Luong et al. 2015, eq. 9); positions from model.location_size on are ignored"""

    def __init__(self, dim: int, size: int) -> None:
        super().__init__(dim)
        self.location = Linear(dim, size, bias=False)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        scores = self.location(query).transpose(1, 2)
        # The padding is finite, because the softmax of a window with -inf only would be NaN.
        return F.pad(scores, (0, keys.size(1) - scores.size(-1)), value=-1e4)


def make_score(config: recipe.Rnn) -> Score:
    dim = config.dim // config.heads
    if config.attention == "location":
        return Location(dim, config.location_size)
    scores = {"cosine": Cosine, "additive": Additive, "general": General, "dot": Dot, "scaled_dot": ScaledDot}
    return {**scores, "mlp": Perceptron, "plain_cosine": PlainCosine}[config.attention](dim)


def blend(
    scores: Tensor, mask: Tensor, values: Tensor, factors: Tensor | None = None, hard: bool = False
) -> tuple[Tensor, Tensor]:
    """scores (B,H,T,S), values (B,S,H,d) -> contexts (B,T,D), weights (B,H,T,S).

    Positions where the mask is False get no weight. `factors` multiply the weights after the softmax. `hard` gives the
    position with the largest weight the weight 1, and all others 0. This step has no gradient. The backward pass takes
    the gradient of the weights before it, as if it were not there (straight-through; Bengio et al. 2013).
    """
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    if factors is not None:
        weights = weights * factors
    if hard:
        chosen = torch.zeros_like(weights).scatter_(-1, weights.argmax(-1, keepdim=True), 1.0)
        weights = chosen + (weights - weights.detach())
    return (weights @ values.transpose(1, 2)).transpose(1, 2).flatten(2), weights


class SourceAttention(nn.Module):
    """Attention to the whole source or to a window of it (Luong et al. 2015, sections 3.1 and 3.2)."""

    def __init__(self, config: recipe.Rnn) -> None:
        super().__init__()
        dim = config.dim
        self.heads, self.span, self.radius, self.hard = config.heads, config.span, config.radius, config.hard
        self.score = make_score(config)
        self.query = Linear(dim, dim, bias=False) if config.projections else None
        self.keys_values = Linear(dim, 2 * dim, bias=False) if config.projections else None
        if config.span == "predictive":
            self.center_hidden = Linear(dim, dim, bias=False)
            self.center = Linear(dim, 1, bias=False)

    def split(self, x: Tensor) -> Tensor:
        """(B,T,D) -> (B,T,H,d)."""
        return x.unflatten(-1, (self.heads, -1))

    def read(self, states: Tensor, mask: Tensor) -> Tensors:
        """States of the encoder (B,S,D), mask (B,S) that is False for padding -> the memory that attention uses."""
        keys = values = states
        if self.keys_values is not None:
            keys, values = self.keys_values(states).chunk(2, -1)
        return {"keys": self.score.keys(self.split(keys)), "values": self.split(values), "mask": mask}

    def forward(self, states: Tensor, memory: Tensors, position: Tensor) -> tuple[Tensor, Tensor]:
        """States of the decoder (B,T,D) and their positions (B,T) -> contexts (B,T,D), weights (B,H,T,S)."""
        query = states if self.query is None else self.query(states)
        scores = self.score(self.split(query), memory["keys"])
        visible, factors = self.window(states, position, memory["mask"])
        return blend(scores, visible, memory["values"], factors, self.hard)

    def window(self, states: Tensor, position: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """The mask of visible positions (B,1,T,S), and factors for the weights (B,1,T,S) or None."""
        if self.span == "global":
            return mask[:, None, None], None
        length = mask.sum(1, keepdim=True)
        if self.span == "monotonic":  # local-m: the center p_t = t, or the last word if the source is shorter
            center = torch.minimum(position, length - 1)
        else:  # local-p: p_t = S sigmoid(v . tanh(W h)), eq. 10
            center = length * torch.sigmoid(self.center(torch.tanh(self.center_hidden(states)))).squeeze(-1)
        distance = (torch.arange(mask.size(1), device=mask.device) - center[..., None])[:, None]  # (B,1,T,S)
        visible = mask[:, None, None] & (distance.abs() <= self.radius)
        if self.span == "monotonic":
            return visible, None
        return visible, torch.exp(-(distance**2) / (2 * (self.radius / 2) ** 2))  # eq. 11
