"""The experiments that need no training: they look at models with their first, random weights."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from nmt_cli.learn.lab import Lab
from nmt_cli.learn.results import Curves, Maps, Measurement
from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.build import build_model
from nmt_cli.model.device import as_accelerator
from nmt_cli.recipe import schema
from nmt_cli.text.vocab import BOS

DIM, WORDS = 64, 200  # width of the models, and size of their vocabulary
FIRST_WORD = 4  # the ids before are special tokens


def transformer(seed: int, positions: Literal["sinusoidal", "none"] = "sinusoidal", layers: int = 2) -> Seq2Seq:
    torch.manual_seed(seed)
    config = schema.Transformer(
        dim=DIM, heads=4, ff=4 * DIM, encoder_layers=layers, decoder_layers=layers, positions=positions, tie="none"
    )
    return build_model(config, WORDS, WORDS).eval()


def recurrent(seed: int, cell: Literal["rnn", "lstm"]) -> Seq2Seq:
    torch.manual_seed(seed)
    config = schema.Rnn(cell=cell, dim=DIM, directions="forward", attention="none", tie="none")
    return build_model(config, WORDS, WORDS).eval()


def sentence(length: int, seed: int) -> Tensor:
    """(1,length): different words, so that the gradient of a word's embedding is the gradient of its position."""
    order = torch.randperm(WORDS - FIRST_WORD, generator=torch.Generator().manual_seed(seed))
    return order[None, :length] + FIRST_WORD


# --- Gradients by distance ----------------------------------------------------------------------------------------

DISTANCES, SENTENCES = 40, 10


def gradient_by_distance(model: Seq2Seq, seed: int) -> list[float]:
    """How strongly the last output of the encoder depends on the word at each distance from the end: the norm of the
    gradient of a random direction of that output, as a share of the norm at distance 0, mean over sentences."""
    norms = torch.zeros(DISTANCES + 1)
    for number in range(SENTENCES):
        src = sentence(DISTANCES + 1, 1000 * seed + number)
        memory = model.encode(src)
        last = memory["last"] if "last" in memory else memory["keys_values0"][:, -1]
        direction = torch.randn(last.shape, generator=torch.Generator().manual_seed(number))
        (gradient,) = torch.autograd.grad((last * direction).sum(), model.get_parameter("source_embedding.weight"))
        norms += gradient[src[0]].norm(dim=1).flip(0)
    return (norms / norms[0]).tolist()


def vanishing_gradients(lab: Lab, seed: int) -> Measurement:
    models = {"plain RNN": recurrent(seed, "rnn"), "LSTM": recurrent(seed, "lstm"), "Transformer": transformer(seed)}
    shares = {name: gradient_by_distance(model, seed) for name, model in models.items()}
    figures = {f"{name}, distance 20": share[20] for name, share in shares.items()}
    picture = Curves(
        "gradient at the last word, as a share of the gradient at distance 0",
        "words between",
        {name: list(enumerate(share)) for name, share in shares.items()},
        powers=True,
    )
    return Measurement(figures, picture)


# --- Positions ----------------------------------------------------------------------------------------------------


def difference_after_permutation(model: Seq2Seq, seed: int) -> tuple[float, list[float]]:
    """Permute the words of a source, encode it, and put the outputs back into the old order. The difference from the
    outputs without permutation, as a share of their size: the largest, and that of each position."""
    src = sentence(12, seed)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
    plain, moved = (model.encode(ids)["keys_values0"][0] for ids in (src, src[:, order]))
    back = torch.empty_like(moved)
    back[order] = moved
    by_position = (back - plain).norm(dim=1) / plain.norm(dim=1)
    return float(by_position.max()), by_position.tolist()


@torch.no_grad()
def permutation(lab: Lab, seed: int) -> Measurement:
    differences = {
        "without positions": difference_after_permutation(transformer(seed, "none"), seed),
        "with positions": difference_after_permutation(transformer(seed), seed),
    }
    figures = {name: worst for name, (worst, _) in differences.items()}
    curves = {name: list(enumerate(shares, 1)) for name, (_, shares) in differences.items()}
    return Measurement(figures, Curves("change of the encoder's output, relative to its size", "position", curves))


# --- The scale of the scores --------------------------------------------------------------------------------------

WIDTHS, KEYS, QUERIES = (1, 4, 16, 64, 256, 1024), 32, 200


def largest_weight(width: int, scale: float, seed: int) -> float:
    """The mean of the largest attention weight over random queries, with random keys; all entries have variance 1."""
    generator = torch.Generator().manual_seed(seed)
    queries, keys = (torch.randn(count, width, generator=generator) for count in (QUERIES, KEYS))
    return float((scale * queries @ keys.T).softmax(1).max(1).values.mean())


def scaled_scores(lab: Lab, seed: int) -> Measurement:
    plain = [(width, largest_weight(width, 1.0, seed)) for width in WIDTHS]
    scaled = [(width, largest_weight(width, 1 / math.sqrt(width), seed)) for width in WIDTHS]
    figures = {
        "plain, width 4": plain[1][1],
        "plain, width 1024": plain[-1][1],
        "scaled, width 4": scaled[1][1],
        "scaled, width 1024": scaled[-1][1],
    }
    # Each width is four times the one before, so the axis counts factors of four.
    curves = {
        "q . k": [(n, weight) for n, (_, weight) in enumerate(plain)],
        "q . k / sqrt(d)": [(n, weight) for n, (_, weight) in enumerate(scaled)],
    }
    return Measurement(figures, Curves("largest attention weight among 32 keys", "width d = 4 to the power of", curves))


# --- The mask -----------------------------------------------------------------------------------------------------


def dependence(outputs: Tensor, inputs: Tensor, embedding: Tensor) -> list[list[float]]:
    """(T,T): how strongly output t depends on the word at position s, by the gradient of a random direction of it."""
    direction = torch.randn(outputs.size(-1), generator=torch.Generator().manual_seed(0))
    rows = []
    for output in outputs[0] @ direction:
        (gradient,) = torch.autograd.grad(output, embedding, retain_graph=True)
        rows.append(gradient[inputs[0]].norm(dim=1).tolist())
    return rows


def future_is_hidden(lab: Lab, seed: int) -> Measurement:
    model, length = transformer(seed), 10
    words = sentence(length, seed)
    target = torch.cat([torch.tensor([[BOS]]), words[:, :-1]], 1)
    features, _ = model.features(target, model.encode(sentence(8, seed + 10)))
    maps = {
        "decoder, masked": dependence(features, target, model.get_parameter("target_embedding.weight")),
        "encoder, not masked": dependence(
            model.encode(words)["keys_values0"], words, model.get_parameter("source_embedding.weight")
        ),
    }
    later = torch.ones(length, length).triu(1).bool()
    figures = {
        f"{name}: largest effect of a later word": float(torch.tensor(map_)[later].max()) for name, map_ in maps.items()
    }
    names = [str(n + 1) for n in range(length)]
    return Measurement(figures, Maps("effect of each input word (column) on each output (row)", names, names, maps))


# --- Cost ---------------------------------------------------------------------------------------------------------

LENGTHS = (64, 128, 256, 512, 1024)


def operations(model: Seq2Seq, length: int, seed: int) -> dict[str, float]:
    """The floating-point operations of the encoder, by kind of matrix product."""
    src = torch.randint(FIRST_WORD, WORDS, (1, length), generator=torch.Generator().manual_seed(seed))
    # The counter does not know the operations of oneDNN, which accelerators do not use.
    with torch.no_grad(), as_accelerator(), FlopCounterMode(display=False) as counter:
        model.encode(src, attention=True)
    return {str(kind): float(count) for kind, count in counter.get_flop_counts()["Global"].items()}


def growth(counts: list[tuple[int, float]]) -> float:
    """The exponent p of the power of n that fits best: the slope of log(operations) over log(n)."""
    xs, ys = (torch.tensor(side, dtype=torch.float64).log() for side in zip(*counts, strict=True))
    return float(((xs - xs.mean()) * (ys - ys.mean())).sum() / (xs - xs.mean()).square().sum())


def cost(lab: Lab, seed: int) -> Measurement:
    attending, recurring = transformer(seed, layers=1), recurrent(seed, "rnn")
    by_length = {length: operations(attending, length, seed) for length in LENGTHS}
    counts = {
        "attention, between words": [(n, kinds["aten.bmm"]) for n, kinds in by_length.items()],
        "the rest of the layer": [(n, sum(kinds.values()) - kinds["aten.bmm"]) for n, kinds in by_length.items()],
        "recurrence": [(n, sum(operations(recurring, n, seed).values())) for n in LENGTHS],
    }
    figures = {f"{name}, exponent": growth(pairs) for name, pairs in counts.items()}
    curves = {name: [(n, count / 1e6) for n, count in pairs] for name, pairs in counts.items()}
    return Measurement(figures, Curves("million operations of one encoder layer, width 64", "words", curves))
