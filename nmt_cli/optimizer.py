"""The optimisers of `nmt train`: Adam by PyTorch's fused kernel, and Muon for the matrices inside the layers."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

from nmt_cli import distributed
from nmt_cli.distributed import World
from nmt_cli.model.attention import FUSED
from nmt_cli.recipe import Train

ALONE = World()
MOMENTUM = 0.95
# Makes a step as large as one of Adam's, so that both share the learning rate (Liu et al. 2025, section 2.2).
LIKE_ADAM = 0.2


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised: every direction of a matrix is stepped along alike (Jordan et al. 2024).

    PyTorch has a Muon too, but it multiplies in bfloat16, of which some CPUs die (docs/performance.md), and one matrix
    at a time. Here matrices of one shape go through the iteration together, in the precision they have.
    """

    def __init__(
        self, parameters: list[nn.Parameter], fused: list[int], weight_decay: float, world: World = ALONE
    ) -> None:
        """fused[i]: how many matrices, one above the other, parameters[i] holds."""
        super().__init__(parameters, {"lr": 0.0, "weight_decay": weight_decay})
        self.fused, self.world = fused, world

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        alike: dict[tuple[int, int, int], list[Tensor]] = defaultdict(list)
        for parameter, parts in zip(group["params"], self.fused, strict=True):
            alike[parts, len(parameter) // parts, parameter.size(1)].append(parameter)
        directions = {shape: self.directions(parameters, *shape) for shape, parameters in alike.items()}
        distributed.add_up(directions.values(), self.world)
        for shape, parameters in alike.items():
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            rate = group["lr"] * LIKE_ADAM * max(shape[1:]) ** 0.5
            steps = directions[shape].view(len(parameters), *parameters[0].shape)
            torch._foreach_add_(parameters, list(steps.unbind()), alpha=-rate)

    def directions(self, parameters: list[Tensor], parts: int, rows: int, columns: int) -> Tensor:
        """(N * parts,R,C). All processes have the same gradients: each finds some, and leaves 0 for the others."""
        means = torch.stack([self.momentum(parameter) for parameter in parameters]).view(-1, rows, columns)
        found, own = torch.zeros_like(means), slice(self.world.rank, None, self.world.size)
        found[own] = orthogonal(means[own])
        return found

    def momentum(self, parameter: Tensor) -> Tensor:
        """Nesterov's: the mean gradient as it will be if the next one is like this one."""
        state = self.state[parameter]
        if "mean" not in state:
            state["mean"] = torch.zeros_like(parameter)
        assert parameter.grad is not None
        state["mean"].lerp_(parameter.grad, 1 - MOMENTUM)
        return parameter.grad.lerp(state["mean"], MOMENTUM)


def orthogonal(matrices: Tensor) -> Tensor:
    """(N,R,C) -> U V' of each one's U S V', roughly: the singular values come out between 0.7 and 1.2.

    Newton and Schulz's iteration with the coefficients of Jordan et al., which only needs matrix products.
    """
    wide = matrices.mT if matrices.size(1) > matrices.size(2) else matrices
    x = wide / (wide.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.mT if matrices.size(1) > matrices.size(2) else x


def make_optimizers(model: nn.Module, settings: Train, world: World = ALONE) -> list[torch.optim.Optimizer]:
    """One, or with muon two, which share the parameters out; weight decay on matrices only."""
    matrices: list[nn.Parameter] = []
    parts: list[int] = []
    embeddings: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        looked_up = "embedding" in name or "positions" in name or name.startswith("output")
        if parameter.dim() == 2 and not looked_up:
            matrices.append(parameter)
            parts.append(FUSED.get(name.split(".")[-2], 1))
        else:
            (embeddings if parameter.dim() == 2 else vectors).append(parameter)
    muon = settings.optimizer == "muon"
    groups = [
        {"params": embeddings if muon else [*embeddings, *matrices], "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    fused = vectors[0].device.type in ("cpu", "cuda")
    adam = kind(groups, lr=0.0, betas=(settings.beta1, settings.beta2), eps=settings.epsilon, fused=fused)
    return [adam, Muon(matrices, parts, settings.weight_decay, world)] if muon else [adam]
