"""Products by oneDNN and by torch's own library: the same results and gradients, and the rule that chooses."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nmt_cli.model import linear as products
from nmt_cli.model.linear import add_weight_gradient, linear, prefers_onednn, product
from nmt_cli.recipe.load import find_recipe, load_recipe
from nmt_cli.training import loss as loss_module
from nmt_cli.training.loss import chunked_loss, consistency_terms, smoothed_terms
from nmt_cli.training.trial import Trial

CPU = torch.device("cpu")
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@pytest.fixture(params=["onednn", "torch"])
def library(request, monkeypatch):
    if request.param == "onednn" and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(products, "prefers_onednn", lambda: request.param == "onednn")
    return request.param


@pytest.mark.parametrize(
    ("x", "weight", "has_bias"),
    [
        (torch.randn(5, 20, 8), torch.randn(9, 8), True),
        (torch.randn(64, 8), torch.randn(9, 8), False),
        (torch.randn(8), torch.randn(9, 8), True),
        (torch.randn(70, 8), torch.randn(1, 8), True),
        (torch.randn(70, 1), torch.randn(9, 1), True),
        (torch.randn(0, 8), torch.randn(9, 8), True),
        (torch.randn(600, 40), torch.randn(3, 40), True),
        (torch.randn(70, 5, 8).transpose(0, 1), torch.randn(9, 8), True),
        (torch.randn(8, 66).t(), torch.randn(8, 9).t(), True),
        (torch.randn(1, 8).expand(66, 8), torch.randn(9, 16)[:, 8:], False),
        (torch.randn(66, 16)[:, ::2], torch.randn(18, 8)[9:], False),
    ],
)
@pytest.mark.parametrize("is_expanded", [False, True])
def test_linear_equals_the_formula_with_its_gradients(library, x, weight, has_bias, is_expanded):
    """y = x W' + b. For the gradient G of y: dx = G W, dW = G' x, db = the sum of the rows of G."""
    inputs = [part.detach().requires_grad_() for part in (x, weight, *([torch.randn(len(weight))] if has_bias else []))]
    y = linear(*inputs)
    rows, matrix = (part.detach().double().numpy() for part in (x.reshape(-1, x.size(-1)), weight))
    wanted = rows @ matrix.T + (inputs[2].detach().double().numpy() if has_bias else 0)
    np.testing.assert_allclose(y.detach().numpy().reshape(wanted.shape), wanted, atol=1e-4)
    gradient = torch.ones(()).expand(y.shape) if is_expanded else torch.randn(y.shape)
    y.backward(gradient)
    g = gradient.double().numpy().reshape(wanted.shape)
    for part, expected in zip(inputs, (g @ matrix, g.T @ rows, g.sum(0)), strict=False):
        np.testing.assert_allclose(part.grad.numpy().reshape(expected.shape), expected, atol=1e-4)


def test_products_equal_the_formula(library):
    a, b = torch.randn(90, 20), torch.randn(20, 50)
    np.testing.assert_allclose(product(a, b), a.double().numpy() @ b.double().numpy(), atol=1e-4)
    for rows, out, width in ((80, 6, 9), (80, 9, 6), (8, 9, 6)):
        gradient, x = torch.randn(rows, out), torch.randn(rows, width)
        for total in (torch.ones(out, width), torch.ones(width, out).t()):
            add_weight_gradient(total, gradient, x)
            np.testing.assert_allclose(total, 1 + gradient.double().numpy().T @ x.double().numpy(), atol=1e-4)


def test_other_types_and_autocast_use_torch(monkeypatch):
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    x, weight = torch.randn(99, 8, dtype=torch.float64), torch.randn(9, 8, dtype=torch.float64)
    assert torch.equal(linear(x, weight), F.linear(x, weight))
    with torch.autocast("cpu", torch.float16):
        assert linear(x.float(), weight.float()).dtype == torch.float16


def test_relu_overwrites_the_result(library):
    """Without a copy: the result is no view of a larger tensor for autograd."""
    x, weight = torch.randn(70, 8), torch.randn(9, 8, requires_grad=True)
    y = linear(x, weight)
    assert y.relu_().data_ptr() == y.data_ptr() and not y._is_view()
    y.sum().backward()
    np.testing.assert_allclose(weight.grad, (x @ weight.t() > 0).float().t() @ x, atol=1e-4)


@needs_onednn
def test_few_shapes_reach_onednn(monkeypatch):
    """oneDNN compiles code for each. Batches of up to 2,048 rows have at most eight numbers between powers of two."""
    seen = set()
    true_product = products._product
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    monkeypatch.setattr(products, "_product", lambda a, b, bias=None: seen.add(a.shape) or true_product(a, b, bias))
    weight = torch.randn(9, 8, requires_grad=True)
    for rows in range(1, 2048):
        linear(torch.randn(rows, 8), weight)
    assert len(seen) <= 8 * 5 + 1 and min(seen)[0] == 64


@needs_onednn
@pytest.mark.parametrize(
    "terms",
    [partial(smoothed_terms, eps=0.1), partial(consistency_terms, eps=0.1, kind="rdrop", weight=1.0)],
    ids=["one pass", "two passes"],
)
def test_few_shapes_of_the_loss_reach_onednn(monkeypatch, terms):
    """Chunks have at most 300 targets. The loss and its gradients are those of torch's own products."""
    seen = set()
    true_product, passes = products._product, 1 if terms.func is smoothed_terms else 2
    monkeypatch.setattr(loss_module, "CHUNK", 9 * 300)
    monkeypatch.setattr(
        products, "_product", lambda a, b, bias=None: seen.add((a.shape, b.shape)) or true_product(a, b)
    )
    weight = torch.randn(9, 8, requires_grad=True)
    for rows in range(1, 700, 3):
        features, targets = torch.randn(passes, rows, 8, requires_grad=True), torch.randint(4, 9, (rows,))
        found = []
        for is_chosen in (True, False):
            monkeypatch.setattr(products, "prefers_onednn", lambda chosen=is_chosen: chosen)
            loss, _ = chunked_loss(features, weight, targets, terms)
            found.append((loss, *torch.autograd.grad(loss, (features, weight))))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    # The numbers of rows are at most 27: eight from 64 to 128, and so on, up to 300 or 600. Each has three products.
    assert 9 < len(seen) <= 3 * 27


@needs_onednn
@pytest.mark.parametrize("recipe", ["demo", "demo-rnn-attention", "demo-conv", "demo-decoder"])
def test_both_libraries_give_the_same_gradients_of_a_model(monkeypatch, recipe):
    recipe = load_recipe(find_recipe(recipe))
    trial = Trial(recipe.model, recipe.train, (200, 200), (9, 9), CPU)
    trial.loss.eval()  # without dropout

    def gradients(library: bool) -> list[Tensor]:
        monkeypatch.setattr(products, "prefers_onednn", lambda: library)
        trial.model.zero_grad()
        trial.loss(*trial.tensors)[0].backward()
        return [parameter.grad.clone() for parameter in trial.model.parameters() if parameter.grad is not None]

    for one, two in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4 * float(two.abs().max()))


@pytest.mark.parametrize(
    ("capability", "processor", "expected"),
    [
        ("AVX512", "vendor_id\t: AuthenticAMD\n", True),
        ("AVX512", "vendor_id\t: GenuineIntel\n", False),
        ("AVX2", "vendor_id\t: AuthenticAMD\n", False),
        ("AVX512", None, False),
    ],
)
def test_onednn_multiplies_where_mkl_does_not_use_avx512(monkeypatch, tmp_path, capability, processor, expected):
    file = tmp_path / "cpuinfo"
    if processor is not None:
        file.write_text(processor)
    monkeypatch.setattr(products, "_CPUINFO", file)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert prefers_onednn.__wrapped__() == expected
