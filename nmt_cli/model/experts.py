"""A sparsely gated mixture of experts (Shazeer et al. 2017): each token goes through k of n feed-forward networks.

    h_i(x) = (x W)_i + noise * softplus((x N)_i)      noise ~ N(0, 1), in training only (eq. 4)
    g(x)   = softmax over the k largest h_i(x); 0 for the other experts (eq. 3 and 5)
    y      = sum over i of g_i(x) expert_i(x) (eq. 1)

Without a loss against it, a few experts get all tokens. Two terms keep the experts in equal use over the tokens of a
batch: the square of the coefficient of variation of the importance (sum of g_i, eq. 6 and 7) and of the load
(section A of the appendix), a differentiable estimate of the number of tokens that reach expert i.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.model.linear import linear
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import PAD


class Experts(nn.Module):
    def __init__(self, config: recipe.Transformer | recipe.Rnn, make_expert: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.top, self.balance = config.experts_top, config.experts_balance
        self.experts = nn.ModuleList(make_expert() for _ in range(config.experts))
        self.gate = nn.Parameter(torch.empty(config.experts, config.dim))
        self.noise = nn.Parameter(torch.empty(config.experts, config.dim))
        self.routes: list[tuple[Tensor, Tensor]] = []  # of a training pass: g and the load of each call, (B,T,n)
        self.initialize()

    def initialize(self) -> None:
        """Zeros: at first, only the noise chooses the experts (section A of the appendix)."""
        nn.init.zeros_(self.gate)
        nn.init.zeros_(self.noise)

    @property
    def share(self) -> float:
        """The share of the experts that a token uses."""
        return self.top / len(self.experts)

    def forward(self, x: Tensor) -> Tensor:
        """(B,T,D) -> (B,T,D)"""
        gates = self.gates(x).flatten(0, 1).to(x.dtype)  # (N,n)
        x, shape = x.flatten(0, 1), x.shape
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = gates[:, i].nonzero().squeeze(1)
            if len(rows) or self.training:  # an expert without tokens gets a gradient of zeros: FSDP2 needs it
                output = expert(x.index_select(0, rows)) * gates[rows, i, None]
                y = y.index_add(0, rows, output.to(y.dtype))
        return y.view(shape)

    def gates(self, x: Tensor) -> Tensor:
        """x (B,T,D) -> g(x) (B,T,n). A training pass also notes the routes for `balance_loss`."""
        noisy = self.training and torch.is_grad_enabled()
        with torch.autocast(x.device.type, enabled=False):  # rounded logits would send tokens to other experts
            clean = logits = linear(x.float(), self.gate)
            if noisy:
                spread = F.softplus(linear(x.float(), self.noise))
                logits = clean + torch.randn_like(clean) * spread
        best, chosen = logits.topk(self.top + 1, -1)
        gates = torch.zeros_like(logits).scatter(-1, chosen[..., :-1], best[..., :-1].softmax(-1))
        if noisy:
            # P(expert i stays among the best k if only its noise is drawn again). An expert that is among the best
            # must beat the next best; another expert must beat the last of the best.
            threshold = torch.where(logits > best[..., -1:], best[..., -1:], best[..., -2:-1])
            load = torch.special.ndtr((clean - threshold) / spread)
            self.routes.append((gates, load))
        return gates

    def balance_loss(self, ids: Tensor) -> Tensor:
        """The loss of the noted routes. Then the notes are removed. ids (B,T) are the tokens; PAD does not count."""
        importance, load = (torch.cat(parts, 1)[ids != PAD].sum(0) for parts in zip(*self.routes, strict=True))
        self.routes = []
        return self.balance * (squared_variation(importance) + squared_variation(load))


def squared_variation(x: Tensor) -> Tensor:
    """The square of the coefficient of variation: variance / mean^2."""
    return x.var(correction=0) / x.mean().square()
