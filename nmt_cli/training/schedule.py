"""The learning rate as a pure function of step and budget: `nmt train RECIPE --dry-run` plots it."""

from __future__ import annotations

import math

from nmt_cli.recipe.schema import Train


def learning_rate(step: int, spent: float, settings: Train, dim: int) -> float:
    """The rate of update number `step`, counted from 1, when a share `spent` of the budget is used up.

    The budget is whatever will stop the training: steps, epochs, tokens or minutes. `dim` is the model's width, for the
    paper's formula, which knows no end.
    """
    # 1. Attention is all you need, section 5.3. With lr set, scale is whatever makes that the peak.
    if settings.schedule == "inverse_sqrt":
        scale = settings.lr * math.sqrt(dim * settings.warmup) if settings.lr else settings.scale
        return scale * dim**-0.5 * min(step**-0.5, step * settings.warmup**-1.5)
    # 2. Every other schedule climbs straight to lr, and descends with the budget.
    peak, left = settings.lr * min(1.0, step / max(1, settings.warmup)), max(0.0, 1.0 - spent)
    match settings.schedule:
        case "cosine":
            return peak * 0.5 * (1 - math.cos(math.pi * left))
        case "linear":
            return peak * left
        case "wsd":  # warm-up, stable, decay: constant, then straight to 0 over the last part
            return peak * (min(1.0, left / settings.cooldown) if settings.cooldown else 1.0)
    return peak
