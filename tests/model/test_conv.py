"""ConvS2S against a second implementation with F.conv1d."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.models import CONVS, SRC, TGT, assert_close, parametrized, randomized, unpadded
from torch import nn

from nmt_cli.model.build import build_model
from nmt_cli.recipe import schema as recipe


def conv1d(linear: nn.Linear, x: torch.Tensor, left: int, right: int) -> torch.Tensor:
    """A gated convolution by PyTorch's conv1d: x (T,D) -> (T,D)."""
    dim = x.size(1)
    weight = linear.weight.view(2 * dim, -1, dim).transpose(1, 2)  # (2D,D,kernel)
    y = F.conv1d(F.pad(x.T, (left, right)), weight, linear.bias)
    return (y[:dim] * torch.sigmoid(y[dim:])).T


@parametrized(CONVS)
def test_conv_equals_conv1d(config):
    model = randomized(config)
    sqrt_half, kernel = math.sqrt(0.5), config.kernel
    with torch.no_grad():
        logits, weights = model.decode(TGT, model.encode(SRC), attention=True)
        for n, (src, tgt) in enumerate(zip(unpadded(SRC), unpadded(TGT), strict=True)):
            embedded = model.source_table.weight[src] + model.source_positions.weight[: len(src)]
            z = embedded
            for layer in model.encoder:
                z = (conv1d(layer.linear, z, kernel // 2, kernel // 2) + z) * sqrt_half
            values = (z + embedded) * sqrt_half
            x = target_embedded = model.target_embedding.weight[tgt] + model.target_positions.weight[: len(tgt)]
            for n_layer, layer in enumerate(model.decoder):
                h = conv1d(layer.convolution.linear, x, kernel - 1, 0)
                d = (h @ layer.query.weight.T + layer.query.bias + target_embedded) * sqrt_half
                cross = torch.softmax(d @ z.T, -1)
                assert_close(weights["cross"][n, n_layer, 0, : len(tgt), : len(src)], cross)
                context = (cross @ values) * (len(src) * math.sqrt(1 / len(src)))
                x = ((h + context) * sqrt_half + x) * sqrt_half
            assert_close(logits[n, : len(tgt)], x @ model.output_weight.T, 2e-5)


def test_initial_weights_preserve_the_variance():
    """By section 3.5 of the paper, layers preserve the variance: the encoder's output has about that of its input."""
    torch.manual_seed(2)
    model = build_model(recipe.Conv(dim=128, encoder_layers=6, dropout=0.2), 500, 500)
    assert model.target_embedding.weight.std().item() == pytest.approx(0.1, rel=0.02)
    assert model.decoder[0].query.weight.std().item() == pytest.approx(128**-0.5, rel=0.05)
    assert model.encoder[0].linear.weight.std().item() == pytest.approx(math.sqrt(4 * 0.8 / (3 * 128)), rel=0.05)
    with torch.no_grad():
        src = torch.randint(4, 500, (8, 20))
        embedded = model.embed(src, model.source_table, model.source_positions)
        assert 0.3 < model.encode(src)["keys"].std() / embedded.std() < 3
