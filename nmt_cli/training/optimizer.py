"""The optimisers of `nmt train`: Adam by PyTorch's fused kernel, and Muon for the matrices inside the layers."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

from nmt_cli.model.attention import FUSED
from nmt_cli.recipe.schema import Train
from nmt_cli.training import distributed
from nmt_cli.training.distributed import World

ALONE = World()
MOMENTUM = 0.95
# Makes a step as large as one of Adam's, so that both share the learning rate (Liu et al. 2025, section 2.2).
LIKE_ADAM = 0.2
NEAREST_TO_ONE = ((8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526))


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
    """(N,R,C) -> U V' of each one's U S V', roughly, by matrix products alone.

    p(x) = a x + b x^3 + c x^5 acts on each singular value by itself. The first polynomial is the one that comes nearest
    to 1 on [0.01, 1], the second the nearest on what the first leaves, and so on (Amsel et al. 2025): after three,
    singular values from 0.01 to 1 times the largest are between 0.73 and 1.27.
    """
    wide = matrices.mT if matrices.size(1) > matrices.size(2) else matrices
    x = wide / (wide.norm(dim=(1, 2), keepdim=True) + 1e-7)
    square = x @ x.mT
    # No singular value is larger than the fourth root of the sum of their fourth powers; 1.01 for what is rounded.
    bound = 1.01 * square.norm(dim=(1, 2), keepdim=True).sqrt() + 1e-7
    x, square = x / bound, square / bound**2
    for turn, (a, b, c) in enumerate(NEAREST_TO_ONE):
        if turn:
            square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
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
