"""Search: from source ids to the n best targets. `nmt translate` and the validation of `nmt train` lead here.

Dimensions, as in model/base.py: S source length, V vocabulary. Here also: B sentences still being translated, K
hypotheses of each sentence, R = B*K rows that the models see, C candidates of each sentence, T tokens written so far.

The search space is every sequence that ends with EOS and has at most L tokens (`length_limit`), EOS included. A
hypothesis that is still open at position L gets EOS there, with the probability that the model gives EOS.

log p is the model's own distribution without PAD and BOS. Ruling out a token does not raise the log p of the others.
There are two exceptions: the probability of UNK, if UNK is forbidden, goes to the other tokens, and the repetition
penalty changes the distribution itself. Both are as in CTranslate2.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from nmt_cli.model.base import Seq2Seq, Tensors, forbid_pad_and_bos, select
from nmt_cli.search.contract import Hypothesis, SearchOptions, coverage_penalty, length_limit, length_normalized
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK

IMPOSSIBLE = float("-inf")  # log p of a token that may not be written
COLUMN = 64  # the length of a column in fast_topk


@dataclass
class _Sentence:
    """The state of one sentence's search that stays on the host."""

    source: int  # pieces of the source, without EOS
    limit: int  # L
    prefix: Sequence[int]
    draws: list[list[float]]  # (L,K) numbers above 0 and up to 1, for sampling; empty otherwise
    ended: list[Hypothesis] = field(default_factory=list)

    def forced(self, position: int) -> int | None:
        """The only token that may be written at this position, or None if there is a choice."""
        if position < len(self.prefix):
            return self.prefix[position]
        return EOS if position + 1 >= self.limit else None

    def done(self, best_open: float, options: SearchOptions) -> bool:
        """Whether the search may drop the open hypotheses. `best_open` is the highest log p among them."""
        if not best_open > IMPOSSIBLE:  # no hypothesis is open, or the model has diverged and best_open is NaN
            return True
        if options.sample or len(self.ended) < options.n_best:
            return False
        if options.beam == 1:
            return True
        if not math.isinf(options.patience) and len(self.ended) >= options.ended_to_stop(options.patience):
            return True
        score_to_beat = sorted(hypothesis.score for hypothesis in self.ended)[-options.n_best]
        # Each further token lowers log p, so no score can be higher than the present log p at the maximum length. A
        # coverage penalty is 0 or less.
        return length_normalized(best_open, self.limit, options) <= score_to_beat

    def n_best(self, options: SearchOptions) -> list[Hypothesis]:
        best = sorted(self.ended, key=lambda hypothesis: -hypothesis.score)[: options.n_best]
        # A model that has diverged ends no hypothesis. Its translation is empty.
        return best or [Hypothesis((), IMPOSSIBLE, IMPOSSIBLE, (), False)]


class _Candidates(NamedTuple):
    """Hypotheses extended by one new token, (B,C)."""

    rows: Tensor  # the row that the candidate extends
    tokens: Tensor
    logprobs: Tensor  # log p of the new token
    totals: Tensor  # log p of the whole candidate


@dataclass(frozen=True)
class Step:
    """One step of the search for one sentence, with its candidates, best first. `nmt inspect --show beam` draws it."""

    rows: list[int]
    tokens: list[int]
    logprobs: list[float]
    totals: list[float]  # -inf if the candidate is impossible
    # The candidates that stay open, in the order of the next step's rows. If fewer than K can stay open, ended or
    # impossible candidates fill the list.
    kept: list[int]
    ended: list[int]  # the candidates that became finished hypotheses


@torch.inference_mode()
def search(
    models: Sequence[Seq2Seq],
    src: Tensor,
    options: SearchOptions,
    prefixes: Sequence[Sequence[int]] | None = None,
    numbers: Sequence[int] | None = None,
    watch: Callable[[Step], None] | None = None,
) -> list[list[Hypothesis]]:
    """The n best translations of each row of src (B,S), best first. Several models average their probabilities.

    A translation starts with its prefix. The prefix's log p counts as 0 and its length counts, as in CTranslate2.
    `numbers` are the sentences' numbers in the whole input: samples depend on them and the seed, not on the batch.
    `watch` is called with every Step; the batch must then have one sentence.
    """
    if any(model.training for model in models):
        raise ValueError("search needs model.eval(): dropout would change the probabilities at random")
    if watch is not None and len(src) != 1:
        raise ValueError("watch needs a batch of one sentence")
    if not len(src):
        return []
    sentences = _sentences(src, options, prefixes, numbers)
    active = list(sentences)  # sentence active[b] has rows b*K to b*K+K-1 of every tensor below
    width = options.n_best if options.sample else 1  # a beam starts from one row
    parents = torch.arange(len(active), device=src.device)[:, None].expand(-1, width)  # (B,K): each row's previous row
    memories = [model.encode(src) for model in models]  # the hypotheses of a sentence share one row of memory
    states = [model.move(model.start(memory), parents) for model, memory in zip(models, memories, strict=True)]
    written: Tensors = {"ids": src.new_full((parents.numel(), 1), BOS)}  # the tokens of each row so far
    totals = torch.zeros(len(active), width, device=src.device)  # log p of each row
    forbidden = torch.tensor(options.forbidden, dtype=torch.long, device=src.device)
    rows_stay = options.sample or options.beam == 1  # row r is always extended by row r
    position = 0
    while active:
        # 1. The models read the last token of each row and return log p (R,V) of the next token.
        logp, attention = _step(models, written["ids"], memories, states, options)
        # 2. Tokens that may not come next get a log p of -inf.
        forced = [sentence.forced(position) for sentence in active]
        _rule_out(logp, written["ids"][:, 1:], forbidden, forced, options)
        # 3. Candidates: the best continuations of each sentence, or one sampled continuation of each row.
        if options.sample:
            candidates = _sampled(logp, totals, [sentence.draws[position] for sentence in active], options)
        else:
            # Each of the K hypotheses has one continuation that ends, so at least K of the 2K best stay open.
            candidates = _best(logp, totals, 2 * options.beam)
        extended = _extend(written, candidates, attention)
        # 4. Candidates that end are finished hypotheses if they are among the best K. The best K others stay open.
        ends = candidates.tokens == EOS
        kept, totals = _keep(candidates.totals.masked_fill(ends, IMPOSSIBLE), options.width)
        ended = ends[:, : options.width] & (candidates.totals[:, : options.width] > IMPOSSIBLE)
        best_open, ended_places = _to_host(totals, ended)
        _collect(ended_places, extended, candidates.totals, active, options)
        if watch is not None:
            # The batch has one sentence, so the place of a candidate is its number.
            columns = [column[0].tolist() for column in (*candidates, kept)]
            watch(Step(*[*columns, [c for _, c in ended_places]]))
        # 5. Sentences that are done leave the batch.
        remaining = [b for b, sentence in enumerate(active) if not sentence.done(best_open[b], options)]
        batch_shrinks = len(remaining) < len(active)
        if batch_shrinks:
            active = [active[b] for b in remaining]
            index = torch.tensor(remaining, device=src.device, dtype=torch.long)
            kept, totals = kept[index], totals[index]
            memories = [select(memory, index) for memory in memories]
        # 6. The tokens and the states of each row move to the row of its continuation.
        written = select(extended, kept.flatten())
        if batch_shrinks or not rows_stay:
            parents = candidates.rows.flatten()[kept]
            states = [model.move(state, parents) for model, state in zip(models, states, strict=True)]
        position += 1
    return [sentence.n_best(options) for sentence in sentences]


def _sentences(
    src: Tensor, options: SearchOptions, prefixes: Sequence[Sequence[int]] | None, numbers: Sequence[int] | None
) -> list[_Sentence]:
    lengths = ((src != PAD) & (src != EOS)).sum(1).tolist()
    prefixes = [()] * len(lengths) if prefixes is None else prefixes
    numbers = range(len(lengths)) if numbers is None else numbers
    sentences = []
    for length, prefix, number in zip(lengths, prefixes, numbers, strict=True):
        if {PAD, BOS, EOS} & set(prefix):
            raise ValueError(f"a prefix must not contain PAD, BOS or EOS: {list(prefix)}")
        limit = length_limit(length, len(prefix), options)
        draws = []
        if options.sample:
            # Each sample has its own generator, so its numbers do not depend on the batch, the device or other samples.
            generators = [random.Random(f"{options.seed} {number} {sample}") for sample in range(options.n_best)]
            draws = [[1 - generator.random() for generator in generators] for _ in range(limit)]
        sentences.append(_Sentence(length, limit, prefix, draws))
    return sentences


def _step(
    models: Sequence[Seq2Seq], ids: Tensor, memories: list[Tensors], states: list[Tensors], options: SearchOptions
) -> tuple[Tensor, Tensor | None]:
    """log p (R,V) of all models together, and cross-attention (R,S) or None. `states` is updated in place."""
    logps, crosses, penalty = [], [], options.repetition_penalty
    needs_attention = options.attention or options.coverage_penalty > 0
    for i, model in enumerate(models):
        logits, weights, states[i] = model.step(ids[:, -1], memories[i], states[i], needs_attention)
        logits = forbid_pad_and_bos(logits.float())
        # The penalty divides the positive logits of tokens already written and multiplies the negative ones.
        if penalty != 1:
            seen = logits.gather(1, ids[:, 1:])
            logits = logits.scatter(1, ids[:, 1:], torch.where(seen < 0, seen * penalty, seen / penalty))
        if UNK in options.forbidden:
            logits[:, UNK] = IMPOSSIBLE  # before the softmax, as in CTranslate2: the other tokens share its probability
        logps.append(logits.log_softmax(1))
        if weights and "cross" in weights:
            crosses.append(weights["cross"][:, -1].float().mean(1))  # CTranslate2 returns the last layer too
    attention = torch.stack(crosses).mean(0) if crosses else None
    if len(models) == 1:
        return logps[0], attention
    return torch.stack(logps).logsumexp(0) - math.log(len(models)), attention


def _rule_out(logp: Tensor, ids: Tensor, forbidden: Tensor, forced: list[int | None], options: SearchOptions) -> None:
    """Set logp to -inf, in place, for every token that may not follow ids (R,T). A token forced[b] always may."""
    width = len(logp) // len(forced)
    forced_at = [(b * width + k, token) for b, token in enumerate(forced) if token is not None for k in range(width)]
    if forced_at:
        row, token = torch.tensor(forced_at, device=logp.device).unbind(1)
        # A token of a prefix counts as log p = 0. EOS at the length limit keeps the model's log p.
        forced_logp = torch.where(token == EOS, logp[row, token], 0.0)
    logp.index_fill_(1, forbidden, IMPOSSIBLE)
    if options.no_repeat_ngram:
        logp.scatter_(1, repeats(ids, options.no_repeat_ngram), IMPOSSIBLE)
    if ids.size(1) < options.min_length:
        end = logp[:, EOS].clone()
        logp[:, EOS] = IMPOSSIBLE
        # A row in which every other token is ruled out may end before min_length.
        logp[:, EOS] = torch.where(logp.amax(1) == IMPOSSIBLE, end, IMPOSSIBLE)
    if forced_at:
        logp[row] = IMPOSSIBLE
        logp[row, token] = forced_logp


def repeats(ids: Tensor, n: int) -> Tensor:
    """ids (R,T) -> (R,T-n+1): the tokens that would complete an n-gram of the row again. PAD marks an empty entry."""
    length = ids.size(1)
    if length < n:
        return ids[:, :0]
    ngrams = ids.unfold(1, n, 1)  # (R,T-n+1,n)
    starts_match = (ngrams[:, :, :-1] == ids[:, None, length - n + 1 :]).all(2)
    return torch.where(starts_match, ngrams[:, :, -1], PAD)


def _best(logp: Tensor, totals: Tensor, count: int) -> _Candidates:
    """The `count` best continuations of each sentence, best first. logp (R,V) is overwritten."""
    vocab = logp.size(1)
    continuations = logp.add_(totals.view(-1, 1)).view(len(totals), -1)  # (B,K*V)
    best, places = fast_topk(continuations, min(count, continuations.size(1)))
    hypothesis = places // vocab
    first_row = torch.arange(len(totals), device=places.device)[:, None] * totals.size(1)
    return _Candidates(first_row + hypothesis, places % vocab, best - totals.gather(1, hypothesis), best)


def fast_topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """x.topk(k, 1), several times faster on a CPU.

    Each row of x (R,N) is arranged as a table. The k largest numbers lie in the k columns with the largest maxima,
    which are computed at the speed of memory, or in the rest of the row, which does not fill the table.
    """
    columns = x.size(1) // COLUMN
    if x.device.type != "cpu" or columns < 4 * k:
        return x.topk(k, 1)
    body, rest = x.split([COLUMN * columns, x.size(1) - COLUMN * columns], 1)
    table = body.unflatten(1, (COLUMN, columns))
    best_columns = table.amax(1).topk(k, 1).indices  # (R,k)
    numbers = table.gather(2, best_columns[:, None].expand(-1, COLUMN, -1)).flatten(1)  # (R,COLUMN*k)
    top, places = torch.cat([numbers, rest], 1).topk(k, 1)
    in_table = places // k * columns + best_columns.gather(1, places % k)
    return top, torch.where(places < numbers.size(1), in_table, places - numbers.size(1) + COLUMN * columns)


def _sampled(logp: Tensor, totals: Tensor, draws: list[list[float]], options: SearchOptions) -> _Candidates:
    """One continuation of each row, chosen by the random numbers draws (B,K)."""
    logits, vocab = logp / options.temperature, logp.size(1)
    if options.top_k or options.top_p < 1:
        top, tokens = logits.topk(min(options.top_k or vocab, vocab), 1)
        probs = top.softmax(1)
        probs = probs.masked_fill(probs.cumsum(1) - probs >= options.top_p, 0)
    else:
        probs, tokens = logits.softmax(1), torch.arange(vocab, device=logp.device).expand_as(logp)
    sums = probs.cumsum(1)
    # A draw is above 0, so the first token whose sum reaches draw * (the sum of all) has a probability above 0.
    thresholds = torch.tensor(draws, device=logp.device).view(-1, 1) * sums[:, -1:]
    chosen = torch.searchsorted(sums, thresholds).clamp(max=probs.size(1) - 1)  # only NaN goes beyond the end
    token = tokens.gather(1, chosen)
    logprobs = logp.gather(1, token).view(totals.shape)
    rows = torch.arange(len(logp), device=logp.device).view(totals.shape)
    return _Candidates(rows, token.view(totals.shape), logprobs, totals + logprobs)


def _extend(written: Tensors, candidates: _Candidates, attention: Tensor | None) -> Tensors:
    """The ids, log p and attention of every candidate from its first token on, (B*C,T+1,...)."""
    rows = candidates.rows.flatten()
    new = {"ids": candidates.tokens.flatten(), "logprobs": candidates.logprobs.flatten()}
    if attention is not None:
        new["attention"] = attention.index_select(0, rows)
    old = select(written, rows)
    return {name: torch.cat([old[name], x[:, None]], 1) if name in old else x[:, None] for name, x in new.items()}


def _keep(totals: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The K best of totals (B,C): their places in totals.flatten() and their log p, both (B,K)."""
    places = torch.arange(totals.numel(), device=totals.device).view(totals.shape)
    if totals.size(1) <= width:
        return places, totals
    best, chosen = totals.topk(width, 1)
    return places.gather(1, chosen), best


def _to_host(totals: Tensor, ended: Tensor) -> tuple[list[float], list[tuple[int, int]]]:
    """The best log p of each sentence, and the (b, c) of each candidate that ended. Each copy waits for the GPU."""
    copied = torch.cat([totals.amax(1, keepdim=True), ended.to(totals.dtype)], 1).tolist()
    places = [(b, c) for b, (_, *row) in enumerate(copied) for c, has_ended in enumerate(row) if has_ended]
    return [row[0] for row in copied], places


def _collect(
    ended: list[tuple[int, int]], extended: Tensors, totals: Tensor, active: list[_Sentence], options: SearchOptions
) -> None:
    """Add each candidate (b, c) of `ended` to the ended hypotheses of sentence active[b]."""
    if not ended:
        return
    places = torch.tensor([b * totals.size(1) + c for b, c in ended], device=totals.device)
    chosen = select(extended, places)
    columns = chosen["ids"].tolist(), chosen["logprobs"].tolist(), totals.flatten()[places].tolist()
    attention = chosen["attention"].cpu().numpy() if "attention" in chosen else [None] * len(ended)
    for (b, _), ids, logprobs, total, weights in zip(ended, *columns, attention, strict=True):
        score = length_normalized(total, len(logprobs), options)
        if weights is not None and options.coverage_penalty:
            score += coverage_penalty(weights, active[b].source, options.coverage_penalty)
        finished, shown = len(logprobs) < active[b].limit, weights if options.attention else None
        active[b].ended.append(Hypothesis(tuple(ids[1:-1]), score, total, tuple(logprobs), finished, shown))
