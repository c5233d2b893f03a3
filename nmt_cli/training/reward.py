"""Expected reward: the model is rewarded for the GLEU of its own samples (Wu et al. 2016, section 5).

For a source X with the reference Y* and samples Y_1 ... Y_m of the model, the gradient of
    -1/m sum over i of (r_i - b_i) log P(Y_i | X)        r_i = GLEU(Y_i, Y*), b_i = mean of the other rewards
is an unbiased estimate of the gradient of -E[GLEU] (REINFORCE). b_i does not depend on Y_i, so it changes the variance
only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nmt_cli.model.base import Seq2Seq, Tensors, forbid_pad_and_bos, select
from nmt_cli.search.beam import search
from nmt_cli.search.contract import sampling_options
from nmt_cli.text.vocab import BOS, EOS, PAD

CHUNK = 2**22  # logits that are computed at a time, as in loss.py


def gleu(hypothesis: Sequence[int], reference: Sequence[int]) -> float:
    """The smaller one of precision and recall of all n-grams of 1 to 4 pieces together (Wu et al. 2016, section 5)."""
    ours, theirs = (
        Counter(tuple(ids[i : i + n]) for n in range(1, 5) for i in range(len(ids) - n + 1))
        for ids in (hypothesis, reference)
    )
    most = max(ours.total(), theirs.total())
    return (ours & theirs).total() / most if most else 1.0


def reward_loss(model: Seq2Seq, memory: Tensors, src: Tensor, tgt_out: Tensor, samples: int) -> Tensor:
    """The sum over the sentences of the loss above. `memory` is the encoded src, through which gradients flow back.

    The samples are drawn without dropout. They are at most as long as the longest sentence of the batch. Their seed
    comes from torch's global generator, which training seeds before each micro-batch, so a resumed run draws the same
    samples.
    """
    seed = int(torch.randint(2**31, ()))
    model.eval()
    found = search([model], src, sampling_options(samples, max(src.size(1), tgt_out.size(1)), seed))
    model.train()
    # 1. Rewards, and the advantage over the mean of the other samples of the sentence.
    references = [[i for i in row if i not in (PAD, EOS)] for row in tgt_out.tolist()]
    rewards = torch.tensor(
        [
            [gleu(sample.ids, reference) for sample in n_best]
            for n_best, reference in zip(found, references, strict=True)
        ]
    )  # (B,m)
    others = (rewards.sum(1, keepdim=True) - rewards) / (samples - 1)
    weights = ((rewards - others) / samples).flatten().to(src.device)
    # 2. log P of the samples. The length limit writes the EOS of an unfinished sample, so the model gets no gradient.
    drawn = [sample for n_best in found for sample in n_best]
    width = max(len(sample.ids) for sample in drawn) + 1
    tgt_in, targets = (torch.full((len(drawn), width), PAD) for _ in range(2))
    for n, sample in enumerate(drawn):
        ids = torch.tensor(sample.ids, dtype=torch.long)
        tgt_in[n, 0], tgt_in[n, 1 : len(ids) + 1], targets[n, : len(ids)] = BOS, ids, ids
        if sample.finished:
            targets[n, len(ids)] = EOS
    rows = torch.arange(len(src), device=src.device).repeat_interleave(samples)
    features, _ = model.features(tgt_in.to(src.device), select(memory, rows))
    real = (targets != PAD).to(src.device)
    features, chosen, per_token = (
        features[real],
        targets.to(src.device)[real],
        weights[:, None].expand(real.shape)[real],
    )
    # 3. Some tokens at a time. The backward pass computes their logits again, so that they need not be kept.
    size = max(1, CHUNK // len(model.output_weight))

    def weighted_nll(features: Tensor, chosen: Tensor, per_token: Tensor) -> Tensor:
        logits = forbid_pad_and_bos(model.project(features).float())  # as in the search
        return -(logits.log_softmax(-1).gather(-1, chosen[:, None])[:, 0] * per_token).sum()

    parts = zip(features.split(size), chosen.split(size), per_token.split(size), strict=True)
    losses = [checkpoint(weighted_nll, *part, use_reentrant=False) for part in parts]
    return torch.stack(losses).sum() if losses else features.sum()
