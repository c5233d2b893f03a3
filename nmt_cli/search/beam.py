"""Search: from source ids to the n best targets, over the contract of model/base.py alone. `nmt translate` leads here,
and the validation of `nmt train`.

Dimensions, as in model/base.py: S source length, V vocabulary; here B sentences still being translated, K hypotheses
of each (the beam), R = B*K rows that the models see, T tokens written so far.

What is searched: every sequence that ends with EOS and has at most L tokens, EOS included, where
L = max_ratio * source pieces + max_extra, whatever else is in the batch. A hypothesis still open at position L gets
EOS there, at the probability the model gives it. Nothing outside this set is ever returned, and a beam as wide as the
set returns its exact n best. The score is sum(log p) / length^alpha, EOS counted in both, as in CTranslate2.

log p is the model's own, among words: PAD and BOS have none. Tokens that may not come next are passed over, and the
others do not grow for it. Only the repetition penalty changes the probabilities themselves.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nmt_cli.model.base import Seq2Seq, Tensors, forbid_pad_and_bos, select
from nmt_cli.search.contract import Hypothesis, SearchOptions, length_limit, length_normalized
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK

NEVER = float("-inf")


@dataclass
class _Sentence:
    """What the host knows of a sentence being translated."""

    limit: int  # L
    prefix: Sequence[int]
    draws: list[list[float]]  # (L,K) numbers from 0 to 1, if sampling
    ended: list[Hypothesis] = field(default_factory=list)

    def forced(self, position: int) -> int | None:
        """The only token that may stand here, if there is one."""
        if position < len(self.prefix):
            return self.prefix[position]
        return EOS if position + 1 >= self.limit else None

    def done(self, best_open: float, options: SearchOptions) -> bool:
        """Can the open hypotheses, the best with this log p, be forgotten?

        Certainly if none can be among the n best any more: log p only falls, so none scores more than its log p now is
        worth at the maximum length. With a finite patience already when so many have ended, as in CTranslate2.
        """
        if not best_open > NEVER:  # nothing is open, or NaN comes from a model that has diverged
            return True
        if options.sample or len(self.ended) < options.n_best:
            return False
        if options.beam == 1:
            return True
        if not math.isinf(options.patience) and len(self.ended) >= options.enough(options.patience):
            return True
        worst = sorted(hypothesis.score for hypothesis in self.ended)[-options.n_best]
        return length_normalized(best_open, self.limit, options.alpha) <= worst

    def n_best(self, options: SearchOptions) -> list[Hypothesis]:
        best = sorted(self.ended, key=lambda hypothesis: -hypothesis.score)[: options.n_best]
        return best or [Hypothesis((), NEVER, NEVER, (), False)]  # of a model that has diverged


@dataclass(frozen=True)
class _Candidates:
    """Continuations by one token, C of each sentence, (B,C) each."""

    row: Tensor  # the row continued
    token: Tensor
    last: Tensor  # log p of the token
    total: Tensor  # log p of the whole


@dataclass(frozen=True)
class Step:
    """What one step of the search found and chose, for a sentence: `nmt inspect --beam` draws it.

    The first four go by candidate, best first; an impossible one has total = -inf.
    """

    rows: list[int]  # which of the hypotheses kept by the step before it continues
    tokens: list[int]
    logprobs: list[float]  # log p of the token
    totals: list[float]  # log p of the whole
    # Candidates that stay open; in this order they are the rows of the next step. If there are too few, those that end
    # or are impossible fill the places.
    kept: list[int]
    ended: list[int]  # candidates that ended and were set aside


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

    A translation starts with its prefix, whose log p counts as 0, while its length counts: as in CTranslate2. `numbers`
    (by default 0, 1, ...) are those of the sentences in the whole input: what is sampled for a sentence depends on its
    number and the seed, not on the batch it comes in. `watch` is told of every step, if there is only one sentence.
    """
    if any(model.training for model in models):
        raise ValueError("search wants model.eval(): dropout would change the probabilities at random")
    if watch is not None and len(src) != 1:
        raise ValueError("one sentence at a time can be watched")
    if not len(src):
        return []
    sentences = _sentences(src, options, prefixes, numbers)
    alive = list(sentences)  # alive[b] has rows b*K to b*K+K-1 of everything below
    width = options.n_best if options.sample else 1  # a beam starts from one row and fans out
    rows = torch.arange(len(alive), device=src.device)[:, None].expand(-1, width)  # (B,K): which row each comes from
    memories = [model.encode(src) for model in models]  # one row for all hypotheses of a sentence
    states = [model.move(model.start(memory), rows) for model, memory in zip(models, memories, strict=True)]
    written: Tensors = {"ids": src.new_full((rows.numel(), 1), BOS)}  # what each row has written; moves like a state
    totals = torch.zeros(len(alive), width, device=src.device)  # log p of each row
    forbidden = torch.tensor(options.forbidden, dtype=torch.long, device=src.device)
    keeps_places = options.sample or options.beam == 1  # row r is continued by row r
    position = 0
    while alive:
        # 1. The models read the last token of each row and say what comes next: log p (R,V).
        logp, attention = _step(models, written["ids"], memories, states, options)
        # 2. What may not come next is ruled out.
        forced = [sentence.forced(position) for sentence in alive]
        _rule_out(logp, written["ids"][:, 1:], forbidden, forced, options)
        # 3. The candidates: the best continuations of each sentence, or one drawn for each row.
        if options.sample:
            found = _draw(logp, totals, [sentence.draws[position] for sentence in alive], options)
        else:
            found = _best(logp, totals, 2 * options.beam)
        grown = _grow(written, found, attention)
        # 4. Those that end are set aside if they are among the best K; the best K of the others stay open.
        ends = found.token == EOS
        chosen, totals = _survivors(found.total.masked_fill(ends, NEVER), options.width)
        best_open, ended = _report(totals, ends[:, : options.width] & (found.total[:, : options.width] > NEVER))
        _set_aside(ended, grown, found.total, alive, options.alpha)
        if watch is not None:
            watch(_seen(found, chosen, ended))
        # 5. Sentences that nothing can improve leave the batch.
        stay = [b for b, sentence in enumerate(alive) if not sentence.done(best_open[b], options)]
        left = len(stay) < len(alive)
        if left:
            alive = [alive[b] for b in stay]
            kept = torch.tensor(stay, device=src.device, dtype=torch.long)
            chosen, totals = chosen[kept], totals[kept]
            memories = [select(memory, kept) for memory in memories]
        # 6. What belongs to a row moves to where its continuation stands.
        written = select(grown, chosen.flatten())
        if left or not keeps_places:
            rows = found.row.flatten()[chosen]
            states = [model.move(state, rows) for model, state in zip(models, states, strict=True)]
        position += 1
    return [sentence.n_best(options) for sentence in sentences]


# ---------------------------------------------------------------------------------------------------------------------
# Before the first step


def _sentences(
    src: Tensor, options: SearchOptions, prefixes: Sequence[Sequence[int]] | None, numbers: Sequence[int] | None
) -> list[_Sentence]:
    pieces = ((src != PAD) & (src != EOS)).sum(1).tolist()
    prefixes = [()] * len(pieces) if prefixes is None else prefixes
    numbers = range(len(pieces)) if numbers is None else numbers
    sentences = []
    for length, prefix, number in zip(pieces, prefixes, numbers, strict=True):
        if {PAD, BOS, EOS} & set(prefix):
            raise ValueError(f"a prefix is made of ordinary pieces, not of {list(prefix)}")
        limit = length_limit(length, len(prefix), options)
        draws = uniform(limit, options.n_best, options.seed, number) if options.sample else []
        sentences.append(_Sentence(limit, prefix, draws))
    return sentences


def uniform(length: int, samples: int, seed: int, number: int) -> list[list[float]]:
    """(L,K) numbers, 0 < u <= 1. Each sample has a generator of its own, which no batch and no other sample disturbs.

    Python's, not torch's: it is the same on every device, and hashes a string, so that neighbours share nothing.
    """
    sources = [random.Random(f"{seed} {number} {sample}") for sample in range(samples)]
    return [[1 - source.random() for source in sources] for _ in range(length)]


# ---------------------------------------------------------------------------------------------------------------------
# What comes next


def _step(
    models: Sequence[Seq2Seq], ids: Tensor, memories: list[Tensors], states: list[Tensors], options: SearchOptions
) -> tuple[Tensor, Tensor | None]:
    """Log p (R,V) by all models together, cross-attention (R,S) if asked for; the states move on in place."""
    logps, crosses = [], []
    for i, model in enumerate(models):
        logits, weights, states[i] = model.step(ids[:, -1], memories[i], states[i], options.attention)
        logits = penalize(forbid_pad_and_bos(logits.float()), ids[:, 1:], options.repetition_penalty)
        if UNK in options.forbidden:  # the others share its probability, as CTranslate2 has it
            logits[:, UNK] = NEVER
        logps.append(logits.log_softmax(1))
        if weights and "cross" in weights:
            crosses.append(weights["cross"][:, -1].float().mean(1))  # the layer that CTranslate2 shows too
    attention = torch.stack(crosses).mean(0) if crosses else None
    if len(models) == 1:
        return logps[0], attention
    return torch.stack(logps).logsumexp(0) - math.log(len(models)), attention


def penalize(logits: Tensor, ids: Tensor, penalty: float) -> Tensor:
    """Tokens written before: positive logits are divided by the penalty, negative ones multiplied."""
    if penalty == 1 or not ids.size(1):
        return logits
    seen = logits.gather(1, ids)
    return logits.scatter(1, ids, torch.where(seen < 0, seen * penalty, seen / penalty))


def _rule_out(logp: Tensor, ids: Tensor, forbidden: Tensor, forced: list[int | None], options: SearchOptions) -> None:
    """Set to -inf what may not follow ids (R,T), in place. Where forced[b] is a token, it alone may, whatever it is."""
    width = len(logp) // len(forced)
    forced_at = [(b * width + k, token) for b, token in enumerate(forced) if token is not None for k in range(width)]
    if forced_at:
        row, token = torch.tensor(forced_at, device=logp.device).unbind(1)
        # A prefix is given, not found: it costs nothing. The end at the limit costs what it costs.
        forced_logp = torch.where(token == EOS, logp[row, token], 0.0)
    logp.index_fill_(1, forbidden, NEVER)
    if options.no_repeat_ngram:
        logp.scatter_(1, repeats(ids, options.no_repeat_ngram), NEVER)
    if ids.size(1) < options.min_length:
        end = logp[:, EOS].clone()
        logp[:, EOS] = NEVER
        logp[:, EOS] = torch.where(logp.amax(1) == NEVER, end, NEVER)  # the only way on is allowed
    if forced_at:
        logp[row] = NEVER
        logp[row, token] = forced_logp


def repeats(ids: Tensor, n: int) -> Tensor:
    """ids (R,T) -> (R,T-n+1): tokens that would complete an n-gram of the row for a second time; PAD for none."""
    length = ids.size(1)
    if length < n:
        return ids[:, :0]
    ngrams = ids.unfold(1, n, 1)  # (R,T-n+1,n)
    begun = (ngrams[:, :, :-1] == ids[:, None, length - n + 1 :]).all(2)
    return torch.where(begun, ngrams[:, :, -1], PAD)


def _best(logp: Tensor, totals: Tensor, count: int) -> _Candidates:
    """The best continuations of each sentence, best first; logp (R,V) is overwritten.

    Twice as many as the beam is wide, because each hypothesis has one continuation by EOS: at most K of 2K end, so at
    least K go on.
    """
    vocab = logp.size(1)
    among = logp.add_(totals.view(-1, 1)).view(len(totals), -1)  # (B,K*V)
    total, at = top_of(among, min(count, among.size(1)))
    slot = at // vocab
    first_row = torch.arange(len(totals), device=at.device)[:, None] * totals.size(1)
    return _Candidates(first_row + slot, at % vocab, total - totals.gather(1, slot), total)


COLUMN = 64


def top_of(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """x.topk(k, 1), at a fraction of its price on a CPU.

    Each row of x (R,N) is laid out in columns of COLUMN. Its k largest are in the k columns with the largest maxima,
    and the maxima of all columns are found at the speed of memory. What fills no row of columns is looked at as it is.
    """
    columns = x.size(1) // COLUMN
    if x.device.type != "cpu" or columns < 4 * k:
        return x.topk(k, 1)
    body, rest = x.split([COLUMN * columns, x.size(1) - COLUMN * columns], 1)
    table = body.unflatten(1, (COLUMN, columns))
    best = table.amax(1).topk(k, 1).indices  # (R,k)
    among = table.gather(2, best[:, None].expand(-1, COLUMN, -1)).flatten(1)  # (R,COLUMN*k)
    top, at = torch.cat([among, rest], 1).topk(k, 1)
    in_table = at // k * columns + best.gather(1, at % k)
    return top, torch.where(at < among.size(1), in_table, at - among.size(1) + COLUMN * columns)


def _draw(logp: Tensor, totals: Tensor, draws: list[list[float]], options: SearchOptions) -> _Candidates:
    """One continuation of each row, by the numbers in draws (B,K)."""
    probs, tokens = truncated(logp / options.temperature, options.top_k, options.top_p)
    reached = probs.cumsum(1)
    # 0 < draw <= 1, so the first token whose sum reaches draw * the whole sum has a probability above 0.
    aim = torch.tensor(draws, device=logp.device).view(-1, 1) * reached[:, -1:]
    at = torch.searchsorted(reached, aim).clamp(max=probs.size(1) - 1)  # beyond the end only with NaN
    token = tokens.gather(1, at)
    last = logp.gather(1, token).view(totals.shape)
    row = torch.arange(len(logp), device=logp.device).view(totals.shape)
    return _Candidates(row, token.view(totals.shape), last, totals + last)


def truncated(logits: Tensor, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Probabilities, up to a factor, of the tokens that may be drawn, and these tokens; (R,C) both."""
    if not top_k and top_p == 1:
        return logits.softmax(1), torch.arange(logits.size(1), device=logits.device).expand_as(logits)
    top, tokens = logits.topk(min(top_k or logits.size(1), logits.size(1)), 1)
    probs = top.softmax(1)
    return probs.masked_fill(probs.cumsum(1) - probs >= top_p, 0), tokens


# ---------------------------------------------------------------------------------------------------------------------
# After the choice


def _grow(written: Tensors, found: _Candidates, attention: Tensor | None) -> Tensors:
    """All candidates written out, (B*C,T+1)."""
    row = found.row.flatten()
    new = {"ids": found.token.flatten(), "logprobs": found.last.flatten()}
    if attention is not None:
        new["attention"] = attention.index_select(0, row)
    old = select(written, row)
    return {name: torch.cat([old[name], x[:, None]], 1) if name in old else x[:, None] for name, x in new.items()}


def _survivors(totals: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Places in (B*C,) of the K best of totals (B,C), and their log p; (B,K) both. All if there are no more than K."""
    places = torch.arange(totals.numel(), device=totals.device).view(totals.shape)
    if totals.size(1) <= width:
        return places, totals
    best, at = totals.topk(width, 1)
    return places.gather(1, at), best


def _report(totals: Tensor, ended: Tensor) -> tuple[list[float], list[tuple[int, int]]]:
    """The best log p of each sentence, and which candidates (b, c) end. A GPU is waited for here, once a step."""
    report = torch.cat([totals.amax(1, keepdim=True), ended.to(totals.dtype)], 1).tolist()
    ends = [(b, c) for b, (_, *row) in enumerate(report) for c, end in enumerate(row) if end]
    return [row[0] for row in report], ends


def _set_aside(
    ended: list[tuple[int, int]], grown: Tensors, totals: Tensor, alive: list[_Sentence], alpha: float
) -> None:
    """The candidates (b, c) of `ended` become hypotheses of alive[b]."""
    if not ended:
        return
    places = torch.tensor([b * totals.size(1) + c for b, c in ended], device=totals.device)
    found = select(grown, places)
    columns = found["ids"].tolist(), found["logprobs"].tolist(), totals.flatten()[places].tolist()
    attention = found["attention"].cpu().numpy() if "attention" in found else [None] * len(ended)
    for (b, _), ids, logprobs, total, weights in zip(ended, *columns, attention, strict=True):
        score = length_normalized(total, len(logprobs), alpha)
        finished = len(logprobs) < alive[b].limit
        alive[b].ended.append(Hypothesis(tuple(ids[1:-1]), score, total, tuple(logprobs), finished, weights))


def _seen(found: _Candidates, chosen: Tensor, ended: list[tuple[int, int]]) -> Step:
    """For the only sentence of the batch, whose candidates' places are their numbers."""
    row, token, last, total = (column[0].tolist() for column in (found.row, found.token, found.last, found.total))
    return Step(row, token, last, total, chosen[0].tolist(), [c for _, c in ended])
