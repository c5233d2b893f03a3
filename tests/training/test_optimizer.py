"""The optimizers: weight decay by its formulas, Muon by the singular value decomposition."""

from __future__ import annotations

import pytest
import torch

from nmt_cli.model.build import build_model
from nmt_cli.recipe.schema import Train, Transformer
from nmt_cli.training.distributed import World
from nmt_cli.training.optimizer import make_optimizers, orthogonal


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_weight_decay_is_on_matrices_only(optimizer):
    """By the formulas: adamw shrinks the weights by rate x decay; adam adds decay x weights to the gradient, and its
    first step is the sign of that."""
    model = build_model(Transformer(dim=8, heads=2, ff=16, encoder_layers=1, decoder_layers=1), 20, 20)
    (made,) = make_optimizers(model, Train(optimizer=optimizer, weight_decay=0.1, epsilon=1e-9))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for group in made.param_groups:
        group["lr"] = 0.01
    made.step()
    for name, parameter in model.named_parameters():
        gradient = 0.1 * before[name]
        step = {"adam": 0.01 * gradient / (gradient.abs() + 1e-9), "adamw": 0.01 * gradient}[optimizer]
        expected = before[name] - step if parameter.dim() == 2 else before[name]
        torch.testing.assert_close(parameter.detach(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", [(8, 8), (24, 8), (8, 20), (128, 128)])
def test_muon_steps_along_every_direction_alike(shape):
    """By the singular value decomposition: U V' of the gradient, each singular value between 0.7 and 1.3."""
    generator = torch.Generator().manual_seed(1)
    left, _, right = torch.linalg.svd(torch.randn(3, *shape, generator=generator), full_matrices=False)
    for scale in (1e-9, 1.0, 1e6):
        values = torch.logspace(-1.6, 0, min(shape))
        result = orthogonal(scale * (left * values) @ right)
        values = torch.linalg.diagonal(left.mT @ result @ right.mT)
        assert values.min() > 0.7 and values.max() < 1.3
        torch.testing.assert_close(left * values[:, None] @ right, result, atol=1e-4, rtol=0)
    assert not orthogonal(torch.zeros(1, *shape)).any()


def test_muon_has_the_matrices_and_adam_the_rest():
    model = build_model(Transformer(dim=8, heads=2, ff=16, encoder_layers=1, decoder_layers=1), 20, 20)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    adam, muon = make_optimizers(model, Train(optimizer="muon", weight_decay=0.1))
    names = {parameter: name for name, parameter in model.named_parameters()}
    held = [{names[p] for group in o.param_groups for p in group["params"]} for o in (adam, muon)]
    assert held[0] | held[1] == set(before) and not held[0] & held[1]
    assert {name for name in before if before[name].dim() == 2 and "embedding" not in name} == held[1]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for optimizer in (adam, muon):
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        optimizer.step()
    weight = "encoder.0.attention.output.weight"
    # All ones has one singular vector, ones / 8, and Nesterov's momentum of ones is a multiple of ones.
    step = before[weight] * (1 - 0.01 * 0.1) - dict(model.named_parameters())[weight]
    torch.testing.assert_close(step, step[0, 0].expand(8, 8).contiguous(), atol=1e-6, rtol=0)
    assert 0.6 < step[0, 0] * 8 / (0.01 * 0.2 * 8**0.5) < 1.3


def test_muon_takes_fused_matrices_one_by_one():
    """Queries with a gradient a thousand times as large as the values' step no further than these."""
    model = build_model(Transformer(dim=8, heads=2, ff=16, encoder_layers=1, decoder_layers=1), 20, 20)
    _, muon = make_optimizers(model, Train(optimizer="muon", weight_decay=0.0))
    weight = model.get_parameter("decoder.0.attention.qkv.weight")
    before = weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    weight.grad[:8] *= 1000
    muon.param_groups[0]["lr"] = 0.01
    muon.step()
    for part in ((weight - before) / (0.01 * 0.2 * 8**0.5)).chunk(3):
        values = torch.linalg.svdvals(part)
        assert values.min() > 0.6 and values.max() < 1.3


def test_muon_shares_the_work_among_processes(monkeypatch):
    """Each finds some directions; their sum is what one alone finds."""
    sent: dict[World, list] = {}
    for world in (World(), World(0, 3), World(1, 3), World(2, 3)):

        def add_up(tensors, world):
            sent[world] = [tensor.clone() for tensor in tensors]

        monkeypatch.setattr("nmt_cli.training.distributed.add_up", add_up)
        torch.manual_seed(1)
        model = build_model(Transformer(dim=8, heads=2, ff=16, encoder_layers=1, decoder_layers=1), 20, 20)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape)
        make_optimizers(model, Train(optimizer="muon"), world)[1].step()
    alone, *others = sent.values()
    for whole, *parts in zip(alone, *others, strict=True):
        torch.testing.assert_close(whole, sum(parts))
        assert all(0 < len(part.flatten(1).any(1).nonzero()) < len(whole) for part in parts[: len(whole)])
