"""ByteNet against numpy loops that are written from the formulas of the paper."""

import math

import numpy as np
import torch
from support.models import BYTENETS, SRC, TGT, VOCAB, assert_close, parametrized, randomized, unpadded
from torch import Tensor, nn

from nmt_cli.model.build import build_model
from nmt_cli.recipe import schema as recipe


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def linear(layer: nn.Linear, x: np.ndarray) -> np.ndarray:
    return x @ array(layer.weight).T + array(layer.bias)


def norm(layer: nn.LayerNorm, x: np.ndarray) -> np.ndarray:
    standard = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return standard * array(layer.weight) + array(layer.bias)


def block(layer, x: np.ndarray, kernel: int, dilation: int, causal: bool) -> np.ndarray:
    """Section 3.6, one position after the other."""
    relu = lambda y: np.maximum(y, 0)  # noqa: E731
    narrow = relu(norm(layer.norm, linear(layer.down, relu(norm(layer.before, x)))))
    half = narrow.shape[1]
    weight = array(layer.convolution.weight).reshape(half, kernel, half)
    result = np.tile(array(layer.convolution.bias), (len(x), 1))
    for t in range(len(x)):
        for i in range(kernel):
            place = t + (i - (kernel - 1 if causal else kernel // 2)) * dilation
            if 0 <= place < len(x):
                result[t] += weight[:, i] @ narrow[place]
    return x + linear(layer.up, relu(norm(layer.after, result)))


@parametrized(BYTENETS)
def test_bytenet_equals_the_formulas(config):
    model = randomized(config)
    dilations = [1, 2, 4, 8, 16][: config.cycle] * 9
    scale = math.sqrt(config.dim)
    with torch.no_grad():
        logits = model(SRC, TGT)
    for n, (src, tgt) in enumerate(zip(unpadded(SRC), unpadded(TGT), strict=True)):
        length = math.ceil(len(src) * config.unfold_ratio) + config.unfold_extra
        x = np.zeros((length, config.dim))
        x[: len(src)] = array(model.source_table.weight)[src] * scale
        for layer, dilation in zip(model.encoder, dilations, strict=False):
            x = block(layer, x, config.kernel, dilation, causal=False)
        columns = np.zeros((length + len(tgt), config.dim))
        columns[:length] = linear(model.encoder_output, norm(model.encoder_norm, x))
        x = array(model.target_embedding.weight)[tgt] * scale + columns[: len(tgt)]
        for layer, dilation in zip(model.decoder, dilations, strict=False):
            x = block(layer, x, config.kernel, dilation, causal=True)
        expected = norm(model.decoder_norm, x) @ array(model.output_weight).T
        assert_close(logits[n, : len(tgt)], torch.from_numpy(expected).float(), 2e-5)


def test_steps_after_the_last_column_see_zeros():
    """A target may be longer than the encoder, in one pass and step by step."""
    model = randomized(recipe.ByteNet(dim=16, encoder_layers=1, decoder_layers=1, unfold_ratio=1.0))
    memory = model.encode(SRC[:1, :2])
    assert memory["columns"].size(1) == 2
    target = torch.randint(4, VOCAB, (1, 9))
    with torch.no_grad():
        logits, state = model.decode(target, memory)[0], model.start(memory)
        for t in range(9):
            step, _, state = model.step(target[:, t], memory, state)
            assert_close(step, logits[:, t], 2e-5)


def test_dilations_repeat_and_widen_the_view():
    """The output at position t depends on as many words as the dilations allow, and on no other."""
    config = recipe.ByteNet(dim=8, encoder_layers=1, decoder_layers=4, cycle=3, dropout=0.0)
    model = build_model(config, VOCAB, VOCAB)
    assert [layer.dilation for layer in model.decoder] == [1, 2, 4, 1]
    view = 1 + 2 * (1 + 2 + 4 + 1)
    embedded = torch.randn(1, 40, 8, requires_grad=True)
    memory = model.encode(SRC[:1])
    output, _ = model.run_decoder(embedded, memory, model.start(memory), 0)
    output[0, 30].sum().backward()
    seen = embedded.grad[0].abs().sum(1).nonzero().flatten()
    assert (int(seen.min()), int(seen.max())) == (30 - view + 1, 30)
