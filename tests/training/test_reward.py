"""Expected-reward training: GLEU by brute force, and the gradient by enumeration of every sequence."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.models import OTHER_FAMILIES, SRC, TGT, randomized, small_transformer
from support.search_oracle import Recurrent

from nmt_cli.errors import NmtError
from nmt_cli.recipe.load import load_recipe
from nmt_cli.recipe.schema import Train
from nmt_cli.search.contract import Hypothesis
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK
from nmt_cli.training import reward
from nmt_cli.training.loss import TrainingLoss


def slow_gleu(hypothesis, reference) -> float:
    """The paper's words: each n-gram of the output is crossed out in the reference, if it is still there."""
    ours, theirs = (
        [ids[i : i + n] for n in (1, 2, 3, 4) for i in range(len(ids)) if i + n <= len(ids)]
        for ids in (hypothesis, reference)
    )
    left, matches = list(theirs), 0
    for ngram in ours:
        if ngram in left:
            left.remove(ngram)
            matches += 1
    return min(matches / len(ours), matches / len(theirs)) if ours and theirs else float(ours == theirs)


def test_gleu_equals_brute_force():
    sequences = [ids for length in range(5) for ids in itertools.product((4, 5), repeat=length)]
    for hypothesis, reference in itertools.product(sequences, repeat=2):
        assert reward.gleu(hypothesis, reference) == pytest.approx(slow_gleu(hypothesis, reference))
    assert reward.gleu([7, 8, 9, 7, 8], [7, 8, 9]) == 6 / 14  # precision 6/14, recall 6/6


def test_expected_gradient_equals_the_gradient_of_the_expected_reward(monkeypatch):
    """The mean of the estimate over all pairs of samples, each as probable as the model makes it, is exact."""
    torch.manual_seed(2)
    model = Recurrent(vocab=5, dim=4).train()
    src, reference = torch.tensor([[4, UNK, EOS]]), torch.tensor([[4, 4, EOS]])
    sequences = [ids for length in range(3) for ids in itertools.product((UNK, 4), repeat=length)]

    def probability(ids):
        logits = model.decode(torch.tensor([[BOS, *ids]]), model.encode(src))[0][0]
        logits[:, [PAD, BOS]] = -torch.inf
        logp = logits.log_softmax(1)
        total = sum(logp[t, token] for t, token in enumerate(ids))
        return (total + (logp[len(ids), EOS] if len(ids) < 2 else 0)).exp()  # EOS at the limit of 3 is certain

    chances = [probability(ids) for ids in sequences]
    assert sum(chances).item() == pytest.approx(1, abs=1e-5)
    parameters = list(model.parameters())
    expected = sum(chance * slow_gleu(ids, (4, 4)) for chance, ids in zip(chances, sequences, strict=True))
    exact = torch.autograd.grad(-expected, parameters, retain_graph=True)
    mean = [torch.zeros_like(parameter) for parameter in parameters]
    for one, two in itertools.product(range(len(sequences)), repeat=2):
        drawn = [Hypothesis(sequences[n], 0.0, 0.0, (), finished=len(sequences[n]) < 2) for n in (one, two)]
        monkeypatch.setattr(reward, "search", lambda models, src, options, drawn=drawn: [drawn])
        loss = reward.reward_loss(model, model.encode(src), src, reference, 2)
        weight = (chances[one] * chances[two]).item()
        for total, part in zip(mean, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            total += weight * part if part is not None else 0
    for ours, theirs in zip(mean, exact, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["transformer", *OTHER_FAMILIES])
def test_every_family_is_rewarded_and_repeats_its_samples(family):
    """The loss is likelihood_weight times the usual loss plus the loss of the samples, and the seed decides both."""
    model = randomized({"transformer": small_transformer(), **OTHER_FAMILIES}[family]).train()
    tgt_out = torch.cat([TGT[:, 1:], torch.full((len(TGT), 1), PAD)], 1)
    objective = {share: TrainingLoss(model, Train(reward="gleu", likelihood_weight=share)) for share in (0.0, 0.5)}
    plain, values = TrainingLoss(model, Train()), []
    for loss in (objective[0.0], objective[0.5], objective[0.5], plain):
        for module in model.modules():
            module.dropout_rate = 0.0
        torch.manual_seed(4)
        values.append(loss(SRC, TGT, tgt_out)[0])
    rewarded, mixed, again, usual = values
    assert mixed.item() == again.item() == pytest.approx(rewarded.item() + 0.5 * usual.item(), rel=1e-4)
    rewarded.backward()
    assert model.training and sum(float(p.grad.abs().sum()) for p in model.parameters() if p.grad is not None) > 0


def test_wrong_settings_are_named():
    problems = {
        ("train.reward", "gleu", "train.consistency", "rdrop"): "train.reward: cannot be combined with consistency",
        ("train.source_loss", 1.0): 'train.source_loss: needs model.family = "decoder", not "transformer"',
        ("train.source_loss", 1.0, "model.family", "decoder", "vocab.joint", False, "model.tie", "target"): (
            "train.source_loss: needs vocab.joint = true"
        ),
        ("train.reward", "gleu", "train.reward_samples", 1): "train.reward_samples: must be at least 2",
        ("translate.coverage_penalty", 0.2, "model.family", "rnn", "model.attention", "none"): (
            "translate.coverage_penalty: needs a model with attention"
        ),
    }
    for settings, problem in problems.items():
        with pytest.raises(NmtError, match=problem):
            load_recipe(None, dict(zip(settings[::2], settings[1::2], strict=True)))
