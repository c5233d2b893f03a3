"""The experiments with small trained models (lab.py): translations, attention and probabilities on the demo test."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import combinations
from statistics import fmean

import numpy as np
import torch

from nmt_cli.data.batches import make_batch, pad
from nmt_cli.demo import demo_alignment, demo_corpus
from nmt_cli.inspect.attention import attention
from nmt_cli.learn.lab import Lab
from nmt_cli.learn.results import Bars, Curves, Maps, Measurement
from nmt_cli.model.build import build_model
from nmt_cli.scoring.alignment import Links, alignment_score, parse_links
from nmt_cli.scoring.metrics import corpus_scores
from nmt_cli.search.beam import search
from nmt_cli.search.contract import Hypothesis, options_of
from nmt_cli.store.checkpoint import Trained
from nmt_cli.text.vocab import PAD

LINES = 200  # of the test
EXAMPLE = ("I like the green cat.", "J'aime le chat vert.")


@cache
def demo_test() -> list[tuple[str, str]]:
    return demo_corpus("test")


def test_pairs() -> list[tuple[str, str]]:
    """The English and French sentences that all models are measured on."""
    return demo_test()[:LINES]


def translations(trained: Trained, beam: int = 1, alpha: float = 1.0) -> list[Hypothesis]:
    """The best hypothesis of each test line. Lines of one batch have like lengths."""
    sources = [trained.vocab.encode_source([english])[0] for english, _ in test_pairs()]
    options = replace(options_of(trained.recipe, beam), alpha=alpha)
    order = sorted(range(len(sources)), key=lambda n: len(sources[n]))
    found: dict[int, Hypothesis] = {}
    for first in range(0, len(order), 50):
        rows = order[first : first + 50]
        results = search([trained.model], torch.from_numpy(pad([sources[n] for n in rows])), options)
        found.update((n, nbest[0]) for n, nbest in zip(rows, results, strict=True))
    return [found[n] for n in range(len(sources))]


def bleu(trained: Trained, hypotheses: list[Hypothesis], lines: list[int] | None = None) -> float:
    """BLEU of the test lines, or of some of them."""
    numbers = range(len(hypotheses)) if lines is None else lines
    texts = trained.vocab.decode_target([list(hypotheses[n].ids) for n in numbers])
    return corpus_scores(texts, [test_pairs()[n][1] for n in numbers], "fr").bleu


# --- One vector ---------------------------------------------------------------------------------------------------


def thirds_by_length() -> list[list[int]]:
    """The numbers of the test lines in three groups: short, middle and long English sentences."""
    order = sorted(range(LINES), key=lambda n: len(test_pairs()[n][0].split()))
    return [order[: LINES // 3], order[LINES // 3 : 2 * LINES // 3], order[2 * LINES // 3 :]]


def bottleneck(lab: Lab, seed: int) -> Measurement:
    figures: dict[str, float] = {}
    bars: list[tuple[str, float]] = []
    for name, model in (("one vector", "lstm"), ("attention", "lstm-attention")):
        trained = lab.trained(model, seed)
        found = translations(trained)
        scores = [bleu(trained, found, lines) for lines in thirds_by_length()]
        figures |= {f"{name}: BLEU of short lines": scores[0], f"{name}: BLEU of long lines": scores[2]}
        bars += [
            (f"{name}, {length}", score) for length, score in zip(("short", "middle", "long"), scores, strict=True)
        ]
    return Measurement(figures, Bars("BLEU by length of the sentence", bars))


# --- Alignment ----------------------------------------------------------------------------------------------------


def diagonal(source: str, target: str) -> Links:
    """Each target word with the source word at the same relative place."""
    sources, targets = len(source.split()), len(target.split())
    return frozenset((min(sources - 1, (2 * j + 1) * sources // (2 * targets)), j) for j in range(targets))


def alignment(lab: Lab, seed: int) -> Measurement:
    gold = [parse_links(line, "test.align", n, is_gold=True) for n, line in enumerate(demo_alignment()[:LINES], 1)]
    trained = lab.trained("lstm-attention", seed)
    found = {
        "diagonal": [diagonal(*pair) for pair in test_pairs()],
        "attention of an LSTM": [frozenset(attention(trained, *pair).alignment()) for pair in test_pairs()],
    }
    figures = {f"{name}: AER": 100 * alignment_score(name, links, gold).aer for name, links in found.items()}
    example = attention(trained, *EXAMPLE)
    weights = {"attention": example.mean("cross").tolist()}
    return Measurement(figures, Maps("where the model looks", example.rows["cross"], example.columns["cross"], weights))


# --- Heads --------------------------------------------------------------------------------------------------------


def distance_between_heads(trained: Trained) -> float:
    """The share of its attention that a head would have to move to look like another head of its layer: mean over pairs
    of heads, over words and over the test lines. Encoder and decoder attention to the source count alike."""
    distances = []
    for english, french in test_pairs()[:50]:
        shown = attention(trained, english, french, pieces=True, special=True)
        for kind in ("encoder", "cross"):
            for layer in shown.weights[kind]:
                distances += [float(np.abs(one - two).sum(-1).mean() / 2) for one, two in combinations(layer, 2)]
    return fmean(distances)


def heads(lab: Lab, seed: int) -> Measurement:
    trained = lab.trained("transformer", seed)
    torch.manual_seed(seed)
    untrained = replace(trained, model=build_model(trained.recipe.model, *trained.vocab.sizes).eval())
    figures = {"untrained": distance_between_heads(untrained), "trained": distance_between_heads(trained)}
    shown = attention(trained, *EXAMPLE)
    maps = {f"head {n}": weights.tolist() for n, weights in enumerate(shown.weights["cross"][-1], 1)}
    return Measurement(figures, Maps("decoder to source", shown.rows["cross"], shown.columns["cross"], maps))


# --- Positions, smoothing, norms ----------------------------------------------------------------------------------


def positions(lab: Lab, seed: int) -> Measurement:
    models = {"sinusoidal": "transformer", "learned": "learned-positions"}
    figures = {f"{name}: BLEU": _greedy_bleu(lab.trained(model, seed)) for name, model in models.items()}
    curves = {name: lab.losses(model, seed) for name, model in models.items()}
    return Measurement(figures, Curves("training loss", "updates", curves))


def confidence(trained: Trained) -> float:
    """The mean of the largest probability, over the words of the references."""
    pairs = test_pairs()
    sources = trained.vocab.encode_source([english for english, _ in pairs])
    batch = make_batch(sources, trained.vocab.encode_target([french for _, french in pairs]))
    src, tgt_in, tgt_out = (torch.from_numpy(array) for array in (batch.src, batch.tgt_in, batch.tgt_out))
    with torch.no_grad():
        largest = trained.model(src, tgt_in).softmax(2).max(2).values
    return float(largest[tgt_out != PAD].mean())


def label_smoothing(lab: Lab, seed: int) -> Measurement:
    figures: dict[str, float] = {}
    for name, model in (("no smoothing", "no-smoothing"), ("smoothing 0.1", "transformer")):
        trained = lab.trained(model, seed)
        figures |= {f"{name}: confidence": confidence(trained), f"{name}: BLEU": _greedy_bleu(trained)}
    bars = [(name, value) for name, value in figures.items() if "confidence" in name]
    return Measurement(figures, Bars("mean of the largest probability", bars))


def norms(lab: Lab, seed: int) -> Measurement:
    losses = {"pre-norm": lab.losses("pre-norm", seed), "post-norm": lab.losses("post-norm", seed)}
    figures: dict[str, float] = {}
    for name, points in losses.items():
        last = [loss for _, loss in points[-3:]]
        figures |= {f"{name}: first loss": points[0][1], f"{name}: last loss": fmean(last)}
    finite = {name: [(n, loss) for n, loss in points if math.isfinite(loss)] for name, points in losses.items()}
    return Measurement(figures, Curves("training loss without warm-up", "updates", finite))


def _greedy_bleu(trained: Trained) -> float:
    return bleu(trained, translations(trained))


# --- Search -------------------------------------------------------------------------------------------------------


def beam_search(lab: Lab, seed: int) -> Measurement:
    trained = lab.trained("transformer", seed)
    greedy, beam = (translations(trained, size, alpha=0.0) for size in (1, 5))
    gains = [wide.logprob - narrow.logprob for narrow, wide in zip(greedy, beam, strict=True)]
    figures = {
        "lines with a higher log p": sum(gain > 1e-3 for gain in gains) / LINES,
        "lines with a lower log p": sum(gain < -1e-3 for gain in gains) / LINES,
        "greedy: mean log p": fmean(hypothesis.logprob for hypothesis in greedy),
        "beam 5: mean log p": fmean(hypothesis.logprob for hypothesis in beam),
        "greedy: BLEU": bleu(trained, greedy),
        "beam 5: BLEU": bleu(trained, beam),
    }
    bars = [(name, figures[f"{name}: BLEU"]) for name in ("greedy", "beam 5")]
    return Measurement(figures, Bars("BLEU", bars))
