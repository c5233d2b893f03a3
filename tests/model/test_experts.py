"""The mixture of experts against numpy formulas of the paper."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.models import SRC, TGT, VOCAB, assert_close, parametrized, randomized, small_transformer

from nmt_cli.model.base import training_flops
from nmt_cli.model.build import build_model
from nmt_cli.model.experts import Experts
from nmt_cli.recipe.schema import Rnn, Train, Transformer
from nmt_cli.text.vocab import PAD
from nmt_cli.training.loss import TrainingLoss

DIM, COUNT, TOP, BALANCE = 8, 5, 2, 0.3
IDS = torch.tensor([[5, 6, 7, 3], [5, 3, PAD, PAD], [4, 4, 3, PAD]])


@pytest.fixture
def experts():
    torch.manual_seed(4)
    config = Transformer(dim=DIM, experts=COUNT, experts_top=TOP, experts_balance=BALANCE)
    mixture = Experts(config, lambda: torch.nn.Linear(DIM, DIM))
    for parameter in (mixture.gate, mixture.noise):
        torch.nn.init.normal_(parameter, std=0.5)
    return mixture


def softmax_of_the_best(logits: np.ndarray) -> np.ndarray:
    gates = np.zeros(len(logits))
    best = sorted(range(len(logits)), key=lambda i: -logits[i])[:TOP]
    weights = np.exp([logits[i] - max(logits) for i in best])
    gates[best] = weights / weights.sum()
    return gates


def test_output_is_the_gated_sum_of_the_best_experts(experts):
    x = torch.randn(3, 4, DIM)
    with torch.no_grad():
        y = experts.eval()(x)
        assert torch.equal(y, experts(x))  # no noise
        for row, output in zip(x.flatten(0, 1), y.flatten(0, 1), strict=True):
            gates = softmax_of_the_best((experts.gate @ row).numpy())
            expected = sum(gate * expert(row).numpy() for gate, expert in zip(gates, experts.experts, strict=True))
            np.testing.assert_allclose(output.numpy(), expected, atol=1e-6)


def test_noise_importance_and_load_in_training(experts):
    x = torch.randn(3, 4, DIM)
    torch.manual_seed(7)
    gates = experts.train().gates(x).detach().numpy()
    torch.manual_seed(7)
    noise = torch.randn(3, 4, COUNT).double().numpy()
    weight, noise_weight = experts.gate.detach().double().numpy(), experts.noise.detach().double().numpy()
    importance, load = np.zeros(COUNT), np.zeros(COUNT)
    for b, t in np.ndindex(3, 4):
        clean = weight @ x[b, t].double().numpy()
        spread = np.log1p(np.exp(noise_weight @ x[b, t].double().numpy()))
        noisy = clean + noise[b, t] * spread
        expected = softmax_of_the_best(noisy)
        np.testing.assert_allclose(gates[b, t], expected, atol=1e-6)
        if IDS[b, t] == PAD:
            continue
        importance += expected
        for i in range(COUNT):
            kth_of_the_others = sorted(np.delete(noisy, i))[-TOP]
            load[i] += 0.5 * (1 + math.erf((clean[i] - kth_of_the_others) / spread[i] / math.sqrt(2)))
    expected = BALANCE * sum(x.var() / x.mean() ** 2 for x in (importance, load))
    assert experts.balance_loss(IDS).item() == pytest.approx(expected, rel=1e-5)
    assert not experts.routes


def test_load_estimates_how_often_an_expert_is_chosen(experts):
    """The mean of the estimate over many draws is the number of tokens that reached each expert."""
    x = torch.randn(1, 1, DIM).expand(1, 20_000, DIM)
    experts.train().gates(x)
    ((gates, load),) = experts.routes
    assert_close(load.mean((0, 1)), (gates > 0).float().mean((0, 1)), 0.02)


def test_balance_losses_spread_the_tokens(experts):
    """The loss alone, without a task, brings all experts into use."""
    torch.manual_seed(1)
    x, ids = torch.randn(8, 16, DIM) + 1, torch.full((8, 16), 5)
    optimizer = torch.optim.Adam(experts.parameters(), lr=0.1)
    experts.train().gate.data[0] += 3.0
    losses, most_used = [], []
    for _ in range(100):
        most_used.append(float((experts.gates(x) > 0).float().mean((0, 1)).max()))
        losses.append(experts.balance_loss(ids))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.1 * losses[0]
    # TOP / COUNT is 0.4. With 40 seeds, the loss fell to 0.03 of its start or less, and most_used[-1] was 0.42 to 0.59.
    assert most_used[0] > 0.9 and most_used[-1] < 0.7


MODELS = {
    "transformer": small_transformer(experts=4, dropout=0.0),
    "rnn": Rnn(dim=16, experts=4, experts_ff=24, encoder_layers=2, decoder_layers=2, dropout=0.0),
    "rnn step by step": Rnn(
        dim=16, experts=4, experts_ff=24, encoder_layers=2, decoder_layers=2, dropout=0.0, order="before"
    ),
}


def loss_of(config, balance: float) -> TrainingLoss:
    torch.manual_seed(3)
    model = build_model(replace(config, experts_balance=balance), VOCAB, VOCAB)
    return TrainingLoss(model, Train(label_smoothing=0.1))


@parametrized(MODELS)
def test_only_training_adds_the_auxiliary_loss(config):
    losses = {}
    for balance in (0.0, 0.5):
        module = loss_of(config, balance)
        for mode in (True, False):
            torch.manual_seed(5)
            loss, nll, count = module.train(mode)(SRC, TGT, TGT)
            losses[balance, mode] = (loss.item(), nll.item())
    assert losses[0.0, False] == losses[0.5, False]
    assert losses[0.0, True][1] == losses[0.5, True][1]  # the same noise and the same nll
    # At first, the gates do not depend on the token, so the two terms of each mixture are small.
    added = (losses[0.5, True][0] - losses[0.0, True][0]) / count.item()
    assert 0 < added < 0.5 * 2 * len(module.model.mixtures())


@parametrized(MODELS)
def test_a_failed_pass_leaves_no_routes(config):
    module = loss_of(config, 0.1).train()
    module.model.encode(SRC)
    module(SRC, TGT, TGT)[0].backward()
    for mixture in module.model.mixtures().values():
        assert not mixture.routes and mixture.gate.grad.abs().sum() > 0


@parametrized(MODELS)
def test_equal_experts_are_one_network(config):
    """The gates of a token sum to 1."""
    model = randomized(config)
    for mixture in model.mixtures().values():
        for expert in mixture.experts[1:]:
            expert.load_state_dict(mixture.experts[0].state_dict())
    with torch.no_grad():
        logits = model(SRC, TGT)
        for mixture in model.mixtures().values():
            mixture.forward = mixture.experts[0]
        assert_close(model(SRC, TGT), logits, 2e-5)


def test_only_the_chosen_experts_count_as_flops():
    sizes = {"encoder_layers": 1, "decoder_layers": 1}
    one, four, eight = (training_flops(randomized(small_transformer(experts=n, **sizes)), 10, 10) for n in (0, 4, 8))
    # With two of n experts, each token costs one feed-forward network more, plus two gates of n rows.
    network, gates = 2 * 16 * 24 + 16 + 24, 2 * 16
    assert four - one == pytest.approx(6 * 10 * 2 * (network + 4 * gates))
    assert eight - four == pytest.approx(6 * 10 * 2 * 4 * gates)
