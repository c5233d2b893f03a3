"""The claims, in the order of a lecture. Each rule was written before its experiment was first run.

A rule sees the figures of all seeds. Where nothing else is said, it must hold for each of them.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from statistics import fmean

from nmt_cli.errors import NmtError
from nmt_cli.learn import mechanisms, models
from nmt_cli.learn.results import Claim, Figures


def each(rule: Callable[[Figures], bool]) -> Callable[[Sequence[Figures]], bool]:
    """The rule must hold for every seed."""
    return lambda seeds: all(rule(figures) for figures in seeds)


def gradients_vanish(figures: Figures) -> bool:
    rnn, lstm, transformer = (figures[f"{name}, distance 20"] for name in ("plain RNN", "LSTM", "Transformer"))
    return rnn < 0.01 and rnn < lstm / 10 and transformer > 0.01 and lstm < transformer


def long_lines_suffer(figures: Figures) -> bool:
    kept = [figures[f"{name}: BLEU of long lines"] / max(0.01, figures[f"{name}: BLEU of short lines"])
            for name in ("one vector", "attention")]  # fmt: skip
    return kept[0] < kept[1]


def alignment_is_found(figures: Figures) -> bool:
    return figures["attention of an LSTM: AER"] <= figures["diagonal: AER"] - 10


def order_is_lost(figures: Figures) -> bool:
    return figures["without positions"] < 1e-5 and figures["with positions"] > 0.1


def softmax_saturates(figures: Figures) -> bool:
    scaled = figures["scaled, width 1024"] / figures["scaled, width 4"]
    return figures["plain, width 1024"] > 0.9 and 0.8 < scaled < 1.25


def future_has_no_effect(figures: Figures) -> bool:
    masked, open_ = (figures[f"{name}: largest effect of a later word"]
                     for name in ("decoder, masked", "encoder, not masked"))  # fmt: skip
    return masked == 0 and open_ > 0


def heads_differ(figures: Figures) -> bool:
    return figures["trained"] > 0.2 and figures["trained"] > 2 * figures["untrained"]


def positions_end_alike(seeds: Sequence[Figures]) -> bool:
    means = [fmean(figures[f"{name}: BLEU"] for figures in seeds) for name in ("sinusoidal", "learned")]
    return abs(means[0] - means[1]) <= 3


def post_norm_fails(figures: Figures) -> bool:
    pre, post = figures["pre-norm: last loss"], figures["post-norm: last loss"]
    learned = pre < figures["pre-norm: first loss"] - 1
    return learned and (not math.isfinite(post) or post > pre + 1)


def smoothing_lowers_confidence(figures: Figures) -> bool:
    return figures["smoothing 0.1: confidence"] < figures["no smoothing: confidence"]


def beam_wins(seeds: Sequence[Figures]) -> bool:
    always = all(figures["lines with a lower log p"] == 0 for figures in seeds)
    better = sum(figures["beam 5: BLEU"] >= figures["greedy: BLEU"] for figures in seeds)
    return always and 2 * better > len(seeds)


def attention_is_quadratic(figures: Figures) -> bool:
    square = abs(figures["attention, between words, exponent"] - 2) < 0.05
    return square and all(
        abs(figures[f"{name}, exponent"] - 1) < 0.05 for name in ("the rest of the layer", "recurrence")
    )


CLAIMS = (
    Claim(
        "gradients",
        "Gradients vanish with distance in a plain RNN, less in an LSTM, and not in a Transformer.",
        "At a distance of 20 words the gradient of the RNN is below 1 % of that at distance 0 and below a tenth of "
        "the LSTM's share; the Transformer's share is above 1 % and above the LSTM's.",
        "A recurrent network sees a distant word through every state in between, and each step multiplies the "
        "gradient by a factor that is mostly below 1. After twenty steps little is left to learn from. The gates of "
        "an LSTM open a path along which the factor is closer to 1. In a Transformer every word is one step away "
        "from every other word. The experiment takes models with their first weights, and asks how strongly the "
        "last output of the encoder depends on the word k places before it.",
        mechanisms.vanishing_gradients,
        each(gradients_vanish),
    ),
    Claim(
        "bottleneck",
        "One vector is a bottleneck: without attention, quality falls faster as sentences get longer.",
        "The share of the BLEU of short lines that long lines keep is smaller without attention than with attention.",
        "An encoder without attention hands the decoder one vector, whatever the length of the sentence. A long "
        "sentence has more to say than fits into it. With attention the decoder reads all states of the encoder "
        "again at every step. The experiment trains the same LSTM twice, without and with attention, on the same "
        "pairs, and compares BLEU on the shortest and the longest third of the test lines.",
        models.bottleneck,
        each(long_lines_suffer),
    ),
    Claim(
        "alignment",
        "Attention learns which words translate each other. The training data do not say so.",
        "The alignment error rate of the attention is at least 10 points below that of the diagonal.",
        "Nothing in the training says that cat is chat. The model only learns to predict the next word, and looking "
        "at the right source word helps. The grammar of the demo corpus knows the true alignment, so we can count. "
        "Each French word is aligned with the English word that gets most of its attention. The diagonal, which "
        "aligns words at the same relative place, is what a model would get for free.",
        models.alignment,
        each(alignment_is_found),
    ),
    Claim(
        "order",
        "Without positions the encoder of a Transformer does not know the order of the words.",
        "If words change places, the outputs without positions change places with them (difference below 0.00001 of "
        "their size), and those with positions differ by more than 0.1.",
        "Attention is a weighted sum, and a sum does not care about the order of its terms. So the encoder without "
        "positions reads a bag of words: permute the words, and the outputs are permuted in the same way (it is "
        "permutation equivariant). Position vectors break this symmetry.",
        mechanisms.permutation,
        each(order_is_lost),
    ),
    Claim(
        "scale",
        "Dividing scores by the square root of the width keeps the softmax from saturating.",
        "At width 1024 the largest of 32 weights is above 0.9 on average without the division; with it, the largest "
        "weight at width 1024 is within a factor of 1.25 of that at width 4.",
        "A dot product of two random vectors of width d has variance d. The wider the vectors, the further apart "
        "the scores, until the softmax gives one key everything. Its gradient is then almost zero, and nothing is "
        "learned. Divided by sqrt(d), the scores have variance 1 at every width.",
        mechanisms.scaled_scores,
        each(softmax_saturates),
    ),
    Claim(
        "mask",
        "The mask keeps the future out: no output of the decoder depends on a later word.",
        "The gradient of every decoder output by every later word is exactly zero; in the encoder, which has no "
        "mask, it is not.",
        "In training the decoder gets the whole reference at once. It must not read the word that it is about to "
        "predict. The mask sets the scores of later positions to minus infinity, so that their weights are zero. (A "
        "mask that multiplies the scores by zero would not do: a score of zero still gets a weight.) The map shows "
        "which input word has an effect on which output.",
        mechanisms.future_is_hidden,
        each(future_has_no_effect),
    ),
    Claim(
        "heads",
        "The heads of a layer look at different things.",
        "Two heads of a layer differ in more than 20 % of their attention, and in more than twice as much as before "
        "training.",
        "A single head has one distribution over the words for each position. Several heads can look for several "
        "things: the word to translate, its neighbor, the end of the sentence. Heads with random weights differ "
        "too, because each has matrices of its own, so the rule asks whether training drives them apart. The "
        "distance of two heads is the share of attention that one would have to move to look like the other.",
        models.heads,
        each(heads_differ),
    ),
    Claim(
        "positions",
        "Learned and sinusoidal positions end alike.",
        "The mean BLEU over the seeds differs by at most 3 points.",
        "The sinusoids of the paper are a formula. A table of learned vectors can hold any positions, these included, "
        "but has to learn them. The paper found nearly the same quality. The experiment trains both for the same "
        "number of updates. The formula has its positions from the first update on, so a short training favors it.",
        models.positions,
        positions_end_alike,
    ),
    Claim(
        "norms",
        "Without warm-up a deep post-norm Transformer fails to learn where a pre-norm Transformer learns.",
        "The loss of pre-norm falls by more than 1 nat, and that of post-norm ends more than 1 nat above it, or is "
        "not a number.",
        "Post-norm, as in the paper, puts each sum through a LayerNorm, so the gradient of the first layers passes "
        "every norm. At the start it is badly scaled, and a full learning rate breaks the model: that is why the "
        "paper needs a warm-up. Pre-norm leaves a path of plain sums from the first layer to the last. The "
        "experiment trains both, six layers deep, at the full rate from the first update on.",
        models.norms,
        each(post_norm_fails),
    ),
    Claim(
        "smoothing",
        "Label smoothing lowers confidence; whether it helps BLEU is measured.",
        "The mean of the largest probability is lower with label smoothing 0.1. (BLEU is reported, and is no part "
        "of the rule.)",
        "With label smoothing the target is no longer 1 for the right word, but 0.9, and a little for every other "
        "word. A model that is certain is then punished, so its probabilities are lower. The paper found that this "
        "hurts perplexity and helps BLEU. The demo corpus has one right translation for each sentence, so there is "
        "less to gain here.",
        models.label_smoothing,
        each(smoothing_lowers_confidence),
    ),
    Claim(
        "beam",
        "Beam search finds translations that are always at least as probable as greedy search, and mostly better in "
        "BLEU.",
        "No line of any seed has a lower log p with beam 5 than with greedy search, and BLEU is at least as high in "
        "most seeds.",
        "Greedy search takes the best word at every step and cannot take it back. Beam search keeps five "
        "beginnings. It usually finds a more probable translation, but not always: the five can lose the beginning "
        "that greedy search follows. A more probable translation is not always a better one.",
        models.beam_search,
        beam_wins,
    ),
    Claim(
        "cost",
        "The cost of attention grows with the square of the length, that of recurrence with the length.",
        "The exponent of growth is 2 (within 0.05) for the products between words, and 1 for the other products of "
        "the layer and for the recurrence.",
        "Attention compares every word with every word: n times n products. Recurrence makes n steps. For short "
        "sentences the difference is small, because the linear layers, n times d times d, cost more than the "
        "comparisons, n times n times d. The experiment counts operations instead of seconds, so the machine does "
        "not matter. It does not count what speaks for attention: all its words can be computed at the same time, "
        "and the steps of a recurrence cannot.",
        mechanisms.cost,
        each(attention_is_quadratic),
    ),
)


def find_claim(name: str) -> Claim:
    names = [claim.name for claim in CLAIMS]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "nmt learn lists the claims"
        raise NmtError(f"there is no claim {name!r}", hint)
    return CLAIMS[names.index(name)]
