"""The learning rate, a pure function of step and budget. `nmt train RECIPE --dry-run` plots it."""

from __future__ import annotations

import math

from nmt_cli.recipe.schema import Train


def learning_rate(step: int, budget_used: float, settings: Train, dim: int) -> float:
    """The rate of update number `step`, counted from 1. Only inverse_sqrt depends on `dim`, the width of the model.

    `budget_used` is the share that is used up of the limit that will end the training.
    """
    # 1. Attention is all you need, section 5.3. If lr is set, the scale is chosen so that the peak is lr.
    if settings.schedule == "inverse_sqrt":
        scale = settings.lr * math.sqrt(dim * settings.warmup) if settings.lr else settings.scale
        return scale * dim**-0.5 * min(step**-0.5, step * settings.warmup**-1.5)
    # 2. Every other schedule rises linearly to lr, and falls with the budget.
    peak, left = settings.lr * min(1.0, step / max(1, settings.warmup)), max(0.0, 1.0 - budget_used)
    match settings.schedule:
        case "cosine":
            return peak * 0.5 * (1 - math.cos(math.pi * left))
        case "linear":
            return peak * left
        case "wsd":  # warm-up, stable, decay: constant, then linear to 0 over the last part of the budget
            return peak * (min(1.0, left / settings.cooldown) if settings.cooldown else 1.0)
    return peak
