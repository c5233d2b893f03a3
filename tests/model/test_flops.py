"""The count of FLOPs against PyTorch's own count."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nmt_cli.model.base import training_flops
from nmt_cli.model.build import build_model
from nmt_cli.recipe import schema as recipe


@pytest.mark.parametrize(
    "config",
    [
        recipe.Transformer("transformer", 64, 4, 256, 2, 2),
        recipe.Transformer("transformer", 64, 4, 256, 2, 2, experts=4),
        recipe.Conv("conv", 64, 3, 2, 2),
        recipe.ByteNet("bytenet", 64, 3, 2, 2),
        recipe.DecoderOnly("decoder", 64, 4, 256, 3),
        recipe.Rnn(dim=64, attention="none", context="every"),
        recipe.Rnn(dim=64, attention="general", decoder_layers=2),
        recipe.Rnn(dim=64, attention="mlp", input_feeding=True),
        recipe.Rnn(cell="gru", dim=64, attention="additive", projections=True, heads=4),
        recipe.Rnn("rnn", "lstm", 64, 3, 3, "both_first", "residual", order="bottom", context_to_all=True),
        recipe.Rnn("rnn", "lstm", 64, 2, 3, "interleaved", "fast_forward", attention="general", order="bottom"),
    ],
    ids=lambda config: f"{config.family}-{getattr(config, 'attention', '')}",
)
def test_training_costs_three_times_the_forward_pass_that_torch_counts(config, monkeypatch):
    """Our count leaves out the products of queries, keys and values, which are few here."""
    torch.manual_seed(1)
    model = build_model(config, 300, 300).eval()
    src, tgt = torch.randint(4, 300, (16, 5)), torch.randint(4, 300, (16, 7))
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # its recurrence is not counted
    with FlopCounterMode(display=False) as counter:
        model(src, tgt)
    assert training_flops(model, src.numel(), tgt.numel()) == pytest.approx(3 * counter.get_total_flops(), rel=0.08)
