"""The training objective: label-smoothed cross-entropy over the tokens that are not padding, consistency terms, the
loss on the source of a decoder-only model, and the expected reward of samples (reward.py).

All losses are sums over tokens, so that micro-batches and processes can be added before the division. The logits (N,V)
would be by far the largest tensor of a training step. On a CPU, `_Chunked` computes a few rows at a time, and their
gradient while they are still in the cache. Accelerators and torch.compile get `plain_loss`, which waits for no value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.device import on_cpu
from nmt_cli.model.linear import add_weight_gradient, linear, padded, product, step_of
from nmt_cli.recipe.schema import Train
from nmt_cli.text.vocab import BOS, EOS, PAD
from nmt_cli.training.reward import reward_loss

CHUNK = 2**22  # logits per chunk: 16 MB of float32, or 524 rows of 8,000 pieces

# logits (P,n,V) of P passes over n tokens, targets (n,) -> loss, nll. The gradient of the loss overwrites the logits.
Terms = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def smoothed_terms(logits: Tensor, targets: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(1 - eps) * nll + eps * mean over the whole vocabulary of -log p; one pass, P = 1.

    The gradient is softmax(logits) - (1 - eps) * onehot - eps / V. Separate operations on rows in the cache are faster
    on a CPU than log_softmax.
    """
    pieces, index = logits.size(-1), targets.expand(logits.shape[:-1])[..., None]
    top = logits.amax(-1, keepdim=True)
    sum_of_targets, sum_of_all = logits.gather(-1, index).sum(), logits.sum()
    logits.sub_(top).exp_()
    norm = logits.sum(-1, keepdim=True)
    log_norm = (top + norm.log()).sum()
    nll = log_norm - sum_of_targets
    loss = (1 - eps) * nll + eps * (log_norm - sum_of_all / pieces)
    logits.mul_(norm.reciprocal()).sub_(eps / pieces)
    logits.scatter_add_(-1, index, norm.new_full((), eps - 1).expand(index.shape))
    return loss, nll


def consistency_weights(kind: str, weight: float) -> tuple[list[float], float, float]:
    """The weights of CE(a) and CE(b), of KL(a || b), and of KL(b || a); see consistency_terms."""
    return ([1.0, 0.0], weight, 0.0) if kind == "simcut" else ([0.5, 0.5], weight / 4, weight / 4)


def consistency_terms(logits: Tensor, targets: Tensor, eps: float, kind: str, weight: float) -> tuple[Tensor, Tensor]:
    """Two noisy passes over the same tokens (P = 2), pulled towards each other. The gradient flows through both.

    simcut (Gao et al. 2022): CE(a) + weight * KL(a || b). Some input tokens of pass b are zeroed.
    rdrop (Liang et al. 2021): CE(a) + CE(b) + weight * (KL(a || b) + KL(b || a)) / 2. This is halved, so that the loss
    of a token keeps its size. Adam is invariant to the factor.
    """
    ce, forward, backward = consistency_weights(kind, weight)
    shares, pieces = logits.new_tensor(ce)[:, None, None], logits.size(-1)
    index = targets.expand(2, -1)[..., None]
    log_p = logits.log_softmax(-1)
    nll = -(shares * log_p.gather(-1, index)).sum()
    smoothed = (1 - eps) * nll - eps / pieces * (shares * log_p.sum(-1, keepdim=True)).sum()
    gap = log_p[0] - log_p[1]
    a, b = log_p.exp_()
    part_a, part_b = a * gap, gap.mul_(b).neg_()
    kl_ab, kl_ba = part_a.sum(-1, keepdim=True), part_b.sum(-1, keepdim=True)
    loss = smoothed + forward * kl_ab.sum() + backward * kl_ba.sum()
    # KL(a || b) has the gradient a * (log a - log b - KL) by the logits of a, and b - a by those of b.
    torch.addcmul(part_a.mul_(forward), a, ce[0] + backward - forward * kl_ab, out=logits[0]).sub_(b, alpha=backward)
    torch.addcmul(part_b.mul_(backward), b, ce[1] + forward - backward * kl_ba, out=logits[1]).sub_(a, alpha=forward)
    logits.sub_(shares * (eps / pieces)).scatter_add_(-1, index, (shares * (eps - 1)).expand(index.shape))
    return loss, nll


class _Chunked(torch.autograd.Function):
    """features (P,N,D), weight (V,D), targets (N,) -> sums of loss and nll over the targets that are not PAD."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, targets: Tensor, terms: Terms, train: bool
    ) -> tuple[Tensor, Tensor]:
        device = features.device.type
        low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        # float16 would round the small probabilities of a large vocabulary to 0, so their products stay in float32.
        grad_dtype = torch.float32 if low is torch.float16 else low
        # Two tensors: mark_non_differentiable would mark both names of one.
        loss, nll = (torch.zeros((), device=features.device) for _ in range(2))
        grad_features = torch.zeros_like(features) if train else None
        grad_weight = weight.new_zeros(weight.shape[::-1]).t() if train else None
        rows = (targets != PAD).nonzero().squeeze(1)
        size = max(1, (CHUNK if device == "cpu" else 16 * CHUNK) // len(weight))  # a GPU needs larger chunks to be busy
        size -= size % step_of(size)
        with torch.autocast(device, enabled=False):
            low_weight, weight = weight.to(low), weight.to(grad_dtype)
            for chunk in rows.split(size):
                # The logits of rows of zeros are zero, and so is their gradient, which `terms` does not see.
                x = padded(features.index_select(1, chunk).to(low))
                logits = linear(x, low_weight)
                if low.itemsize < 4:
                    logits = logits.float()
                chunk_loss, chunk_nll = terms(logits[:, : len(chunk)], targets[chunk])
                loss, nll = loss + chunk_loss, nll + chunk_nll
                if grad_features is None or grad_weight is None:
                    continue
                grad, x = logits.to(grad_dtype).flatten(0, 1), x.flatten(0, 1).to(grad_dtype)
                grad_x = product(grad, weight).unflatten(0, (len(features), -1))[:, : len(chunk)]
                grad_features.index_copy_(1, chunk, grad_x.to(features.dtype))
                add_weight_gradient(grad_weight, grad, x)
        ctx.save_for_backward(grad_features, grad_weight)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_features, grad_weight = ctx.saved_tensors
        return grad_features * scale, grad_weight * scale, None, None, None


def with_bias(features: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """features (...,D), weight (V,D), bias (V,) -> (...,D+1) and (V,D+1), whose product includes the bias."""
    if bias is None:
        return features, weight
    ones = features.new_ones(*features.shape[:-1], 1)
    return torch.cat([features, ones], -1), torch.cat([weight, bias[:, None]], 1)


def chunked_loss(features: Tensor, weight: Tensor, targets: Tensor, terms: Terms) -> tuple[Tensor, Tensor]:
    """features (P,...,D), targets (...) -> sums of loss and nll. Only the loss has a gradient."""
    train = torch.is_grad_enabled() and (features.requires_grad or weight.requires_grad)
    return _Chunked.apply(features.flatten(1, -2), weight, targets.flatten(), terms, train)


def plain_terms(features: Tensor, weight: Tensor, targets: Tensor, config: Train) -> tuple[Tensor, Tensor]:
    """features (P,n,D), targets (n,) -> the sums of smoothed_terms, or of consistency_terms if P = 2, by autograd."""
    log_p = F.linear(features, weight).float().log_softmax(-1)
    nll = -log_p.gather(-1, targets.expand(len(features), -1)[..., None])[..., 0]  # (P,n)
    smoothed = (1 - config.label_smoothing) * nll - config.label_smoothing * log_p.mean(-1)
    shares, forward, backward = consistency_weights(config.consistency, config.consistency_weight)
    if len(features) == 1:
        nll, loss = nll[0], smoothed[0]
    else:
        (a, b), gap = log_p.exp(), log_p[0] - log_p[1]
        nll, loss = (shares[0] * each[0] + shares[1] * each[1] for each in (nll, smoothed))
        loss = loss + forward * (a * gap).sum(-1) - backward * (b * gap).sum(-1)
    real = targets != PAD
    return (loss * real).sum(), (nll.detach() * real).sum()


def plain_loss(features: Tensor, weight: Tensor, targets: Tensor, config: Train) -> tuple[Tensor, Tensor]:
    """As chunked_loss. The logits of large batches are computed in parts, and once more in the backward pass.

    The number of parts depends on the recipe alone, so that torch.compile makes one graph for all batches.
    """
    features, targets = features.flatten(1, -2), targets.flatten()
    parts = -(-len(features) * config.batch_tokens * len(weight) // (16 * CHUNK))
    if parts == 1:
        return plain_terms(features, weight, targets, config)
    sums = [
        checkpoint(plain_terms, x, weight, ids, config, use_reentrant=False, preserve_rng_state=False)
        for x, ids in zip(features.chunk(parts, 1), targets.chunk(parts), strict=True)
    ]
    losses, nlls = zip(*sums, strict=True)
    return torch.stack(losses).sum(), torch.stack(nlls).sum()


def kept(ids: Tensor, cutoff: float) -> Tensor:
    """SimCut's noise: True for tokens that keep their embedding. BOS and EOS always keep theirs."""
    return (torch.rand(ids.shape, device=ids.device) >= cutoff) | (ids == BOS) | (ids == EOS)


class TrainingLoss(nn.Module):
    """A model with its objective. torch.compile compiles both together."""

    def __init__(self, model: Seq2Seq, config: Train) -> None:
        super().__init__()
        self.model, self.config = model, config
        self.rewards = config.reward != "none"  # the trainer changes it when train.reward_after has passed
        # torch.compile cannot compile a search. torch.compiler.disable imports the compiler, which takes seconds, so it
        # is called only if the recipe compiles.
        self.reward_loss = torch.compiler.disable(reward_loss) if config.compile else reward_loss
        model.recompute = config.checkpoint_activations

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """src (B,S), tgt_in and tgt_out (B,T) -> sums of loss and nll, and the number of tokens in tgt_out."""
        config, count = self.config, (tgt_out != PAD).sum()
        if not self.training or config.consistency == "none":
            read = self.model.read_source(src) if self.training and config.source_loss else None
            memory = self.model.encode(src) if read is None else read[1]
            features, _ = self.model.features(tgt_in, memory)
            loss, nll = self.loss_of(features[None], tgt_out)
            if read is not None:  # each source token predicts the next one
                loss = loss + config.source_loss * self.loss_of(read[0][None, :, :-1], src[:, 1:])[0]
            loss = self.with_auxiliary(loss, src, tgt_in, count)
            if self.training and self.rewards:
                rewarded = self.reward_loss(self.model, memory, src, tgt_out, config.reward_samples)
                loss = config.likelihood_weight * loss + rewarded
            return loss, nll, count
        # Both passes are one batch. Dropout is drawn per element, so the two halves have different noise.
        src, tgt_in = src.repeat(2, 1), tgt_in.repeat(2, 1)
        keep_src = keep_tgt = None
        if config.consistency == "simcut":
            keep_src, keep_tgt = kept(src, config.cutoff), kept(tgt_in, config.cutoff)
            keep_src[: len(tgt_out)] = keep_tgt[: len(tgt_out)] = True
        features, _ = self.model.features(tgt_in, self.model.encode(src, keep=keep_src), keep=keep_tgt)
        loss, nll = self.loss_of(features.unflatten(0, (2, -1)), tgt_out)
        return self.with_auxiliary(loss, src, tgt_in, count), nll, count

    def with_auxiliary(self, loss: Tensor, src: Tensor, tgt_in: Tensor, count: Tensor) -> Tensor:
        """In training, the auxiliary loss of the model counts once for each token, like the mean loss of the tokens."""
        extra = self.model.auxiliary_loss(src, tgt_in) if self.training else None
        return loss if extra is None else loss + count * extra

    def loss_of(self, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """features (P,B,T,D) of P passes, targets (B,T) -> sums of loss and nll."""
        config = self.config
        features, weight = with_bias(features, self.model.output_weight, self.model.output_bias)
        if not on_cpu(features):
            return plain_loss(features, weight, targets, config)
        eps, kind, strength = config.label_smoothing, config.consistency, config.consistency_weight
        if len(features) == 1:
            return chunked_loss(features, weight, targets, partial(smoothed_terms, eps=eps))
        return chunked_loss(features, weight, targets, partial(consistency_terms, eps=eps, kind=kind, weight=strength))
