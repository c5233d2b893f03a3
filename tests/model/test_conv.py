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
    """The same convolution by PyTorch: x (T,D) -> (T,D), gated."""
    dim = x.size(1)
    weight = linear.weight.view(2 * dim, -1, dim).transpose(1, 2)  # (2D,D,kernel)
    y = F.conv1d(F.pad(x.T, (left, right)), weight, linear.bias)
    return (y[:dim] * torch.sigmoid(y[dim:])).T


@parametrized(CONVS)
def test_conv_equals_conv1d(config):
    model = randomized(config)
    half, kernel = math.sqrt(0.5), config.kernel
    with torch.no_grad():
        logits, weights = model.decode(TGT, model.encode(SRC), attention=True)
        for n, (src, tgt) in enumerate(zip(unpadded(SRC), unpadded(TGT), strict=True)):
            embedded = model.source_table.weight[src] + model.source_positions.weight[: len(src)]
            z = embedded
            for layer in model.encoder:
                z = (conv1d(layer.linear, z, kernel // 2, kernel // 2) + z) * half
            values = (z + embedded) * half
            x = own = model.target_embedding.weight[tgt] + model.target_positions.weight[: len(tgt)]
            for n_layer, layer in enumerate(model.decoder):
                h = conv1d(layer.convolution.linear, x, kernel - 1, 0)
                d = (h @ layer.query.weight.T + layer.query.bias + own) * half
                shares = torch.softmax(d @ z.T, -1)
                assert_close(weights["cross"][n, n_layer, 0, : len(tgt), : len(src)], shares)
                context = (shares @ values) * (len(src) * math.sqrt(1 / len(src)))
                x = ((h + context) * half + x) * half
            assert_close(logits[n, : len(tgt)], x @ model.output_weight.T, 2e-5)


def test_initial_weights_preserve_the_variance():
    """Section 3.6 of the paper promises that layers keep it: no layer is to be ten times its neighbour."""
    torch.manual_seed(2)
    model = build_model(recipe.Conv(dim=128, encoder_layers=6, dropout=0.2), 500, 500)
    assert model.target_embedding.weight.std().item() == pytest.approx(0.1, rel=0.02)
    assert model.decoder[0].query.weight.std().item() == pytest.approx(128**-0.5, rel=0.05)
    assert model.encoder[0].linear.weight.std().item() == pytest.approx(math.sqrt(4 * 0.8 / (3 * 128)), rel=0.05)
    with torch.no_grad():
        src = torch.randint(4, 500, (8, 20))
        embedded = model.embed(src, model.source_table, model.source_positions)
        assert 0.3 < model.encode(src)["keys"].std() / embedded.std() < 3
