"""Draw the attention of a sentence pair as text, as a page for a browser, as JSON; and draw position encodings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nmt_cli.errors import NmtError
from nmt_cli.inspect.attention import KINDS, Attention
from nmt_cli.model.build import build_model
from nmt_cli.recipe.schema import Recipe
from nmt_cli.store.checkpoint import load_model
from nmt_cli.terminal.heatmap import Ink, grid, heatmap, raster
from nmt_cli.terminal.tables import facts, new_table
from nmt_cli.text.alignment import pharaoh
from nmt_cli.text.vocab import EOS

_NARROW = 60  # a terminal with fewer columns has no room for the column "mostly"


def show_attention(
    attention: Attention, kind: str, layer: int | None, head: int | None, width: int, ink: Ink
) -> RenderableType:
    """The sentences, one map of weights, and a summary of the layers, or of the heads of one layer."""
    weights = attention.mean(kind, layer, head)
    layers, heads = attention.weights[kind].shape[:2]
    title = f"{KINDS[kind]}, {_choice(layer, layers, 'layer')}, {_choice(head, heads, 'head')}"
    drawing = heatmap(weights, attention.rows[kind], attention.columns[kind], width, ink)
    return _with_sentences(attention, kind, layer, title, drawing, width)


def show_heads(attention: Attention, kind: str, layer: int | None, width: int, ink: Ink) -> RenderableType:
    """The sentences, a small map for each head of one layer, by default the last, and a summary of these heads."""
    attention.mean(kind, layer)  # refuses a kind or layer that does not exist
    layers = len(attention.weights[kind])
    layer = layer or layers
    titles = [f"{number}: {bits:.2f} bits" for number, bits in enumerate(attention.entropy[kind][layer - 1], 1)]
    maps = list(zip(titles, attention.weights[kind][layer - 1], strict=True))
    title = f"{KINDS[kind]}, the heads of layer {layer} of {layers} and their entropy"
    drawing = grid(maps, attention.rows[kind], attention.columns[kind], width, ink)
    return _with_sentences(attention, kind, layer, title, drawing, width)


def _with_sentences(
    attention: Attention, kind: str, layer: int | None, title: str, drawing: Text, width: int
) -> RenderableType:
    written = ("target" if attention.target_given else "translation", attention.target or "(empty)")
    sentences = facts([("source", attention.source), written, ("log p", f"{attention.logprob:.2f}")])
    if not attention.rows[kind]:
        title, drawing = "", Text("the translation is empty: there is no attention to draw")
    parts: list[RenderableType] = [sentences, "", Text(title, style="bold"), drawing]
    special = attention.special_share[kind]
    if special > 0.005:
        parts.append(Text(f"{special:.0%} of the attention goes to special tokens; --special shows them", style="dim"))
    return Group(*parts, "", _summary(attention, kind, layer, width))


def _choice(chosen: int | None, count: int, name: str) -> str:
    if count == 1:
        return f"its only {name}"
    return f"mean of {count} {name}s" if chosen is None else f"{name} {chosen} of {count}"


def _summary(attention: Attention, kind: str, layer: int | None, width: int) -> Table:
    """The shares of attention of each layer, or of each head of one layer."""
    first = "head" if layer else "layer"
    table = new_table(first, "prev.", "same", "next", "punct.", "bits", title="Where the attention goes", left=())
    if width >= _NARROW:
        table.add_column("mostly", header_style="dim")
    else:
        table.padding = (0, 1, 0, 0)
    figures = {**attention.shares(kind), "bits": attention.entropy[kind]}
    columns = {name: figure[layer - 1] if layer else figure.mean(1) for name, figure in figures.items()}
    bits = columns.pop("bits")
    for row in range(len(bits)):
        shares = {name: column[row] for name, column in columns.items()}
        most = max(shares, key=lambda name: shares[name])
        mostly = [most if shares[most] >= 0.4 else ""] if width >= _NARROW else []
        table.add_row(str(row + 1), *(f"{share:.0%}" for share in shares.values()), f"{bits[row]:.2f}", *mostly)
    return table


def as_json(attention: Attention) -> dict[str, Any]:
    """Every figure: weights by kind, layer and head, the shares of each head, the alignment."""
    alignment: dict[str, Any] | None = None
    if attention.word_weights is not None:
        alignment = {"source": attention.source_words, "target": attention.target_words}
        alignment["pharaoh"] = pharaoh(attention.alignment())
    kinds = {}
    for kind, weights in attention.weights.items():
        figures = {**attention.shares(kind), "entropy": attention.entropy[kind]}
        kinds[kind] = {
            "rows": attention.rows[kind],
            "columns": attention.columns[kind],
            "shape": list(weights.shape),
            "heads": [
                {"layer": layer + 1, "head": head + 1}
                | {name: round(float(values[layer, head]), 4) for name, values in figures.items()}
                for layer, head in np.ndindex(weights.shape[:2])
            ],
            "mean": attention.mean(kind).round(4).tolist(),
            "weights": weights.round(4).tolist(),
        }
    return {
        "source": attention.source,
        "target": attention.target,
        "target_given": attention.target_given,
        "logprob": round(attention.logprob, 4),
        "alignment": alignment,
        "attention": kinds,
    }


def html_page(attention: Attention) -> str:
    """One page that needs no other file and no network."""
    attention.check_kind(next(iter(attention.weights), "cross"))  # refuses a model without attention
    template = Path(__file__).with_name("attention.html").read_text(encoding="utf-8")
    # "<" is escaped: a sentence that contains </script> cannot end the script element that holds the data.
    data = json.dumps(as_json(attention), ensure_ascii=False).replace("<", "\\u003c")
    return template.replace("__DATA__", data)


def show_positions(recipe: Recipe, trained: Path | None, width: int, ink: Ink) -> RenderableType:
    """The position encoding by its formula, or as the model in the folder `trained` has learned it, and the products of
    all pairs of positions: for sinusoids, a product depends only on the distance between the two positions."""
    if recipe.model.learned_positions and trained is None:
        problem = "this recipe learns its positions in training, so only a trained model has them"
        raise NmtError(problem, "name a run that has learned them: nmt inspect RUN --show positions")
    model = load_model(trained).model if trained else build_model(recipe.model, EOS + 1, EOS + 1)
    with torch.inference_mode():
        table = model.positions(min(40, recipe.model.max_positions))  # (positions,D); 40 fit on one screen
    if table is None:
        keys = f'model.family = "{recipe.model.family}"'
        keys += ' with model.positions = "none"' if hasattr(recipe.model, "positions") else ""
        raise NmtError(f"{keys} has no position encoding", "a transformer has one")
    # Sines and cosines alternate in the table. Drawn apart, sines left and cosines right, they look like waves.
    sines_then_cosines = torch.cat([table[:, ::2], table[:, 1::2]], 1).detach().double().numpy()
    title = f"position encoding: positions 1 to {len(table)} down, odd dimensions left, even dimensions right"
    ends = ("1, 3, ...", f"..., {table.shape[1]}")
    products = (table @ table.T).detach().double().numpy()
    return Group(
        Text(title, style="bold"),
        raster(sines_then_cosines, min(width, 130), ink, *ends),
        "",
        Text(f"products P_t . P_s: positions t from 1 to {len(table)} down, s to the right", style="bold"),
        raster(products, min(width, 130), ink, "1, 2, ...", f"..., {len(table)}"),
    )
