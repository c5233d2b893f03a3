"""The objective: against NumPy, against PyTorch's cross-entropy, against autograd of the plain formula."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nmt_cli.model.build import build_model
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import BOS, EOS, PAD
from nmt_cli.training import loss as loss_module
from nmt_cli.training.loss import TrainingLoss, chunked_loss, consistency_terms, kept, smoothed_terms

D, V = 6, 11


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Three rows of logits at a time, so that a few tokens already make several chunks; and one thread."""
    monkeypatch.setattr(loss_module, "CHUNK", 3 * V)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def case(*shape: int, passes: int = 0, seed: int = 0, dtype: torch.dtype = torch.float64):
    """features (passes,*shape,D), weight (V,D), targets (*shape) with some padding."""
    generator = torch.Generator().manual_seed(seed)
    size = (passes, *shape, D) if passes else (*shape, D)
    features = torch.randn(size, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(V, D, generator=generator, dtype=dtype).requires_grad_()
    return features, weight, torch.randint(0, 5, shape, generator=generator)


def smoothed_loss(features, weight, targets, eps):
    return chunked_loss(features[None], weight, targets, partial(smoothed_terms, eps=eps))


def consistency_loss(features, weight, targets, eps, kind, alpha):
    return chunked_loss(features, weight, targets, partial(consistency_terms, eps=eps, kind=kind, weight=alpha))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def plain_consistency(features, weight, targets, eps, kind, alpha):
    """The papers' formulas, as directly as they can be written; sums over tokens that are not padding."""
    real = targets != PAD
    p, q = (F.log_softmax(pass_[real] @ weight.T, -1) for pass_ in features)

    def cross_entropy(log_p):
        return F.cross_entropy(log_p, targets[real], label_smoothing=eps, reduction="sum")

    def kl(log_p, log_q):
        return (log_p.exp() * (log_p - log_q)).sum()

    if kind == "simcut":
        return cross_entropy(p) + alpha * kl(p, q)
    return (cross_entropy(p) + cross_entropy(q) + alpha * (kl(p, q) + kl(q, p)) / 2) / 2


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.5])
def test_the_smoothed_loss_is_the_formula_of_label_smoothing(eps):
    features, weight, targets = case(3, 4)
    loss, nll = smoothed_loss(features, weight, targets, eps)
    log_p = log_softmax(features.detach().numpy() @ weight.detach().numpy().T)
    expected_loss = expected_nll = 0.0
    for i, j in zip(*np.nonzero(targets.numpy() != PAD), strict=True):
        token = -log_p[i, j, targets[i, j]]
        expected_nll += token
        expected_loss += (1 - eps) * token + eps * -log_p[i, j].mean()
    assert loss.item() == pytest.approx(expected_loss)
    assert nll.item() == pytest.approx(expected_nll)
    assert loss.requires_grad
    assert not nll.requires_grad


@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(1,), (3,), (4,), (20,), (5, 7)])
def test_the_smoothed_loss_and_its_gradient_equal_those_of_torch(shape, eps):
    features, weight, targets = case(*shape, seed=1)
    ours, nll = smoothed_loss(features, weight, targets, eps)
    logits, flat = (features @ weight.T).flatten(0, -2), targets.flatten()
    theirs = F.cross_entropy(logits, flat, ignore_index=PAD, label_smoothing=eps, reduction="sum")
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(nll, F.cross_entropy(logits, flat, ignore_index=PAD, reduction="sum"))
    scale = 1.7  # the chain rule, and what a GradScaler does
    for mine, other in zip(
        torch.autograd.grad(scale * ours, (features, weight)),
        torch.autograd.grad(scale * theirs, (features, weight)),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)


def test_the_gradient_of_the_smoothed_loss_is_that_of_finite_differences():
    features, weight, targets = case(5, seed=2)
    assert torch.autograd.gradcheck(lambda f, w: smoothed_loss(f, w, targets, 0.1)[0], (features, weight))


@pytest.mark.parametrize("kind", ["rdrop", "simcut"])
def test_the_consistency_loss_and_its_gradient_equal_those_of_torch(kind):
    features, weight, targets = case(4, 3, passes=2, seed=3)
    ours, nll = consistency_loss(features, weight, targets, 0.1, kind, 3.0)
    theirs = plain_consistency(features, weight, targets, 0.1, kind, 3.0)
    torch.testing.assert_close(ours, theirs)
    for mine, other in zip(
        torch.autograd.grad(ours, (features, weight)), torch.autograd.grad(theirs, (features, weight)), strict=True
    ):
        torch.testing.assert_close(mine, other)
    nlls = [smoothed_loss(one, weight, targets, 0.1)[1] for one in features]
    torch.testing.assert_close(nll, nlls[0] if kind == "simcut" else (nlls[0] + nlls[1]) / 2)


@pytest.mark.parametrize("kind", ["rdrop", "simcut"])
def test_equal_passes_add_no_consistency_loss(kind):
    """Without noise both passes are equal. Loss and gradient then equal the loss and gradient of one pass."""
    features, weight, targets = case(6, seed=4)
    twice = torch.stack([features, features])
    ours, _ = consistency_loss(twice, weight, targets, 0.1, kind, 5.0)
    plain, _ = smoothed_loss(features, weight, targets, 0.1)
    torch.testing.assert_close(ours, plain)
    for mine, other in zip(
        torch.autograd.grad(ours, (features, weight)), torch.autograd.grad(plain, (features, weight)), strict=True
    ):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_large_logits_are_finite(size):
    features, weight, targets = case(12, seed=5, dtype=torch.float32)
    features = (features.detach() * size).requires_grad_()
    loss, nll = smoothed_loss(features, weight, targets, 0.1)
    expected = F.cross_entropy(features @ weight.T, targets, ignore_index=PAD, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-3)
    assert torch.isfinite(
        torch.stack([loss, nll, *(g.sum() for g in torch.autograd.grad(loss, (features, weight)))])
    ).all()


def test_the_loss_of_a_batch_of_padding_is_zero():
    features, weight, targets = case(4)
    loss, nll = smoothed_loss(features, weight, torch.full_like(targets, PAD), 0.1)
    assert loss.item() == nll.item() == 0
    assert all((grad == 0).all() for grad in torch.autograd.grad(loss, (features, weight)))


def test_the_graph_can_be_used_twice():
    features, weight, targets = case(7, seed=6)
    loss, _ = smoothed_loss(features, weight, targets, 0.1)
    first = torch.autograd.grad(2 * loss, weight, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(2 * loss, weight)[0], first)


def test_no_gradient_is_computed_without_need(monkeypatch):
    features, weight, targets = case(7, seed=7)
    with torch.no_grad():
        loss, _ = smoothed_loss(features, weight, targets, 0.1)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, smoothed_loss(features, weight, targets, 0.1)[0].detach())
    frozen = weight.detach()
    loss, _ = smoothed_loss(features, frozen, targets, 0.1)
    torch.testing.assert_close(
        torch.autograd.grad(loss, features)[0],
        torch.autograd.grad(smoothed_loss(features, weight, targets, 0.1)[0], features)[0],
    )


# ---------------------------------------------------------------------------------------------------------------------
# With a model

VOCAB = 30


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    src, tgt = (torch.randint(4, VOCAB, (6, width), generator=generator) for width in (7, 9))
    for row, length in enumerate([7, 3, 5, 7, 6, 2]):
        src[row, length - 1], src[row, length:] = EOS, PAD
        tgt[row, length + 1], tgt[row, length + 2 :] = EOS, PAD
    begin = torch.full((6, 1), BOS)
    return src, torch.cat([begin, tgt[:, :-1].masked_fill(tgt[:, :-1] == EOS, PAD)], 1), tgt


def training_loss(dropout: float = 0.0, model: recipe.Model | None = None, **options) -> TrainingLoss:
    torch.manual_seed(1)
    config = model or recipe.Transformer("transformer", 16, 4, 32, 1, 1, dropout=dropout)
    return TrainingLoss(build_model(config, VOCAB, VOCAB), recipe.Train(**options)).train()


def gradients(module: torch.nn.Module) -> list[torch.Tensor]:
    made = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    return made


def test_training_loss_counts_and_sums():
    module = training_loss(label_smoothing=0.2)
    src, tgt_in, tgt_out = batch()
    loss, nll, count = module(src, tgt_in, tgt_out)
    assert count == (tgt_out != PAD).sum()
    logits = module.model(src, tgt_in).flatten(0, 1)
    expected = F.cross_entropy(logits, tgt_out.flatten(), ignore_index=PAD, label_smoothing=0.2, reduction="sum")
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, F.cross_entropy(logits, tgt_out.flatten(), ignore_index=PAD, reduction="sum"))
    loss.backward()
    ours = gradients(module)
    expected.backward()
    for mine, other in zip(ours, gradients(module), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_gradients_of_tied_matrices(tie):
    """Dense, whatever is tied, and the sum over all uses of a matrix; padding counts as an output only."""
    torch.manual_seed(2)
    module = TrainingLoss(
        build_model(recipe.Transformer("transformer", 16, 4, 32, 1, 1, tie=tie), VOCAB, VOCAB), recipe.Train()
    )
    module.eval()
    src, tgt_in, tgt_out = batch()
    module(src, tgt_in, tgt_out)[0].backward()
    ours = gradients(module)
    assert all(grad.layout is torch.strided for grad in ours)
    model = module.model

    def looked_up(ids, table, positions, keep=None, start=0, norm=None):
        rows = F.one_hot(ids, VOCAB).float() * (ids != PAD)[..., None]
        return rows @ table.weight * 4.0 + positions(start, start + ids.size(1), table.weight)

    model.embed = looked_up
    logits = model(src, tgt_in).flatten(0, 1)
    F.cross_entropy(logits, tgt_out.flatten(), ignore_index=PAD, label_smoothing=0.1, reduction="sum").backward()
    for mine, other in zip(ours, gradients(module), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


OTHERS = [
    recipe.Rnn(dim=16, attention="none", dropout=0),
    recipe.Rnn(dim=16, attention="mlp", span="predictive", input_feeding=True, dropout=0),
    recipe.Conv("conv", 16, 3, 2, 2, dropout=0),
    recipe.ByteNet("bytenet", 16, 3, 2, 2, dropout=0),
    recipe.DecoderOnly("decoder", 16, 4, 32, 2, dropout=0),
]


@pytest.mark.parametrize(
    ("consistency", "config"),
    [("none", None), ("rdrop", None), ("simcut", None), *(("simcut", config) for config in OTHERS)],
)
def test_the_losses_of_micro_batches_add_up(consistency, config):
    """One batch of six rows, or three of two with less padding: the same sums, the same gradient."""
    module = training_loss(model=config, consistency=consistency, cutoff=0.0)
    src, tgt_in, tgt_out = batch()
    loss, nll, count = module(src, tgt_in, tgt_out)
    loss.backward()
    whole = gradients(module)
    sums = torch.zeros(3)
    for rows in torch.arange(6).split(2):
        s, t = src[rows], tgt_out[rows]
        s, width = s[:, : (s != PAD).sum(1).max()], (t != PAD).sum(1).max()
        parts = module(s, tgt_in[rows, :width], t[:, :width])
        parts[0].backward()
        sums += torch.stack([part.detach().float() for part in parts])
    torch.testing.assert_close(sums, torch.stack([loss.detach(), nll, count.float()]))
    for mine, other in zip(gradients(module), whole, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("consistency", ["rdrop", "simcut"])
def test_consistency_needs_noise_and_training(consistency):
    plain, quiet = training_loss(), training_loss(consistency=consistency, cutoff=0.0)
    torch.testing.assert_close(quiet(*batch())[0], plain(*batch())[0])
    noisy = training_loss(0.3, consistency=consistency, cutoff=0.3, consistency_weight=0.0)
    without = noisy(*batch())[0]
    noisy.config = dataclasses.replace(noisy.config, consistency_weight=100.0)
    assert noisy(*batch())[0] > 1.2 * without
    torch.testing.assert_close(noisy.eval()(*batch()), plain.eval()(*batch()))


def test_the_first_pass_of_simcut_keeps_all_tokens():
    """The cutoff is the only noise. The cross-entropy uses the clean pass, and the KL term uses both passes."""
    module = training_loss(consistency="simcut", cutoff=0.5, consistency_weight=0.0)
    torch.testing.assert_close(module(*batch())[:2], training_loss()(*batch())[:2])
    module.config = dataclasses.replace(module.config, consistency_weight=3.0)
    assert module(*batch())[0] > training_loss()(*batch())[0]


def test_simcut_always_keeps_bos_and_eos():
    ids = torch.randint(0, 12, (100, 100), generator=torch.Generator().manual_seed(0))
    mask = kept(ids, 0.25)
    assert mask[(ids == BOS) | (ids == EOS)].all()
    assert mask[ids > EOS].float().mean().item() == pytest.approx(0.75, abs=0.02)
    assert kept(ids, 0.0).all()
