"""The optimizers of `nmt train`: Adam by PyTorch's fused kernel, and Muon for the matrices inside the layers."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

from nmt_cli.model.attention import FUSED
from nmt_cli.recipe.schema import Train
from nmt_cli.training import distributed

ALONE = distributed.World()
MOMENTUM = 0.95
# This factor makes a step as large as one of Adam, so that both share the learning rate (Liu et al. 2025, section 2.2).
SCALE_OF_ADAM = 0.2
# The coefficients (a, b, c) of three polynomials a x + b x^3 + c x^5; see `orthogonal`.
POLYNOMIALS = ((8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526))


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonalized momentum of each matrix: equally far in every direction (Jordan et al. 2024).

    torch.optim.Muon multiplies in bfloat16, which crashes some CPUs (docs/performance.md), one matrix at a time. Here
    all matrices of one shape are orthogonalized together, in their own precision.
    """

    def __init__(self, fused: dict[nn.Parameter, int], weight_decay: float, world: distributed.World) -> None:
        """`fused` is the number of matrices that each parameter holds, one above the other."""
        super().__init__(list(fused), {"lr": 0.0, "weight_decay": weight_decay})
        self.fused, self.world = fused, world
        # 1 if a step must change nothing, 0 otherwise; None: it may. Fused Adam has the same attribute.
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        by_shape: dict[tuple[int, int, int], list[Tensor]] = defaultdict(list)
        for parameter, parts in self.fused.items():
            by_shape[parts, len(parameter) // parts, parameter.size(1)].append(parameter)
        directions = {shape: self.directions(parameters, *shape) for shape, parameters in by_shape.items()}
        distributed.add_up(directions.values(), self.world)
        for shape, parameters in by_shape.items():
            decay, rate = 1 - group["lr"] * group["weight_decay"], group["lr"] * SCALE_OF_ADAM * max(shape[1:]) ** 0.5
            steps = directions[shape].view(len(parameters), *parameters[0].shape)
            if self.found_inf is not None:
                decay, steps = torch.where(self.found_inf > 0, 1.0, decay), steps.masked_fill(self.found_inf > 0, 0.0)
            torch._foreach_mul_(parameters, decay)
            torch._foreach_add_(parameters, list(steps.unbind()), alpha=-rate)

    def directions(self, parameters: list[Tensor], parts: int, rows: int, columns: int) -> Tensor:
        """(N * parts,R,C). All processes have the same gradients: each computes its share and leaves 0 elsewhere."""
        means = torch.stack([self.momentum(parameter) for parameter in parameters]).view(-1, rows, columns)
        directions, share = torch.zeros_like(means), slice(self.world.rank, None, self.world.size)
        directions[share] = orthogonal(means[share])
        return directions

    def momentum(self, parameter: Tensor) -> Tensor:
        """Nesterov's momentum: the mean gradient after one more gradient like this one."""
        state = self.state[parameter]
        if "mean" not in state:
            state["mean"] = torch.zeros_like(parameter)
        gradient, mean = parameter.grad, state["mean"]
        assert gradient is not None
        if self.found_inf is None:
            mean.lerp_(gradient, 1 - MOMENTUM)
        else:
            mean.copy_(torch.where(self.found_inf > 0, mean, mean.lerp(gradient, 1 - MOMENTUM)))
        return gradient.lerp(mean, MOMENTUM)


def orthogonal(matrices: Tensor) -> Tensor:
    """(N,R,C) -> approximately U V' for each matrix U S V', by matrix products alone.

    A polynomial of a matrix changes each singular value x to p(x), as close as possible to 1 (Amsel et al. 2025). After
    three, all singular values from 0.01 to 1 times the largest lie between 0.73 and 1.27.
    """
    wide = matrices.mT if matrices.size(1) > matrices.size(2) else matrices
    x = wide / (wide.norm(dim=(1, 2), keepdim=True) + 1e-7)
    square = x @ x.mT
    # The largest singular value is at most the fourth root of the sum of fourth powers. 1.01 allows for rounding.
    bound = 1.01 * square.norm(dim=(1, 2), keepdim=True).sqrt() + 1e-7
    x, square = x / bound, square / bound**2
    for number, (a, b, c) in enumerate(POLYNOMIALS):
        if number:
            square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if matrices.size(1) > matrices.size(2) else x


def make_optimizers(model: nn.Module, settings: Train, world: distributed.World = ALONE) -> list[torch.optim.Optimizer]:
    """One optimizer, or two with muon, which divide the parameters among them. Only matrices have weight decay."""
    matrices: dict[nn.Parameter, int] = {}  # and the number of matrices that each one fuses
    embeddings: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.dim() != 2:
            vectors.append(parameter)
        elif "embedding" in name or "positions" in name or name.startswith("output"):
            embeddings.append(parameter)
        else:
            matrices[parameter] = FUSED.get(name.split(".")[-2], 1)
    muon = settings.optimizer == "muon"
    groups = [
        {"params": embeddings if muon else [*embeddings, *matrices], "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    adam = kind(groups, lr=0.0, betas=(settings.beta1, settings.beta2), eps=settings.epsilon, fused=True)
    return [adam, Muon(matrices, settings.weight_decay, world)] if muon else [adam]
