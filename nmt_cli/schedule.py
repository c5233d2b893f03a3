"""The learning rate as a pure function of the step: `nmt train RECIPE --dry-run` plots it."""

from __future__ import annotations

import math

from nmt_cli.recipe import Train


def learning_rate(step: int, settings: Train, dim: int) -> float:
    """The rate of update number `step`, counted from 1. `dim` is the model's width, for the paper's formula."""
    # 1. Attention is all you need, section 5.3. With lr set, scale is whatever makes that the peak.
    if settings.schedule == "inverse_sqrt":
        scale = settings.lr * math.sqrt(dim * settings.warmup) if settings.lr else settings.scale
        return scale * dim**-0.5 * min(step**-0.5, step * settings.warmup**-1.5)
    # 2. Every other schedule climbs straight to lr.
    if step < settings.warmup:
        return settings.lr * step / settings.warmup
    # 3. After the warm-up: the share of the way to the last step.
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    match settings.schedule:
        case "cosine":
            return settings.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        case "linear":
            return settings.lr * max(0.0, 1 - done)
        case "wsd":  # warm-up, stable, decay: constant, then straight to 0 over the last part
            left = max(0, settings.steps - step) / max(1.0, settings.cooldown * settings.steps)
            return settings.lr * min(1.0, left)
    return settings.lr
