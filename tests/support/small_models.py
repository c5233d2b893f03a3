"""Models on the vocabulary of the small language, trained for seconds."""

from __future__ import annotations

from dataclasses import replace

import torch

from nmt_cli.data.batches import make_batch
from nmt_cli.model.build import build_model
from nmt_cli.recipe.schema import Train, Transformer
from nmt_cli.store.checkpoint import Trained
from nmt_cli.training.loss import TrainingLoss
from support.small_language import TEST


def briefly_trained(trained: Trained, steps: int = 50, **changes) -> Trained:
    """A tiny model on the toy's vocabulary. After 50 steps it ends most sentences before the limit.

    After few steps no bias is 0 and no norm is 1 any more: zeros and ones would hide mistakes.
    """
    settings = {"dim": 32, "heads": 4, "ff": 48, "encoder_layers": 2, "decoder_layers": 2, "max_positions": 64}
    config = Transformer(**{**settings, **changes, "dropout": 0.0})
    torch.manual_seed(1)
    model = build_model(config, *trained.vocab.sizes)
    loss, optimizer = TrainingLoss(model, Train()), torch.optim.Adam(model.parameters(), 6e-3, fused=True)
    sides = [trained.vocab.encode_source([pair[side] for pair in TEST[:96]]) for side in (0, 1)]
    for step in range(steps):
        rows = slice(24 * (step % 4), 24 * (step % 4) + 24)
        batch = make_batch(sides[0][rows], sides[1][rows])
        value, _, count = loss(*(torch.from_numpy(array) for array in (batch.src, batch.tgt_in, batch.tgt_out)))
        (value / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    return Trained(model.eval(), trained.vocab, replace(trained.recipe, model=config), {})
