"""From a model and a sentence to its attention over words: what `nmt inspect` draws.

The attention weights are computed here and nowhere else: translation and training never ask for them.

Dimensions, as in model/base.py: L layers, H heads; here R words that attend and C words that are attended to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from sentencepiece import SentencePieceProcessor
from torch import Tensor

from nmt_cli.errors import NmtError
from nmt_cli.model.base import forbid_pad_and_bos
from nmt_cli.model.build import build_model
from nmt_cli.recipe.schema import Recipe
from nmt_cli.search.beam import Step, search
from nmt_cli.search.contract import SearchOptions, options_of
from nmt_cli.store.checkpoint import Trained, load_model
from nmt_cli.terminal.heatmap import Ink, grid, heatmap, raster
from nmt_cli.text.alignment import SPACE, Word, aligned, is_punctuation, over_words, pharaoh, words_of
from nmt_cli.text.lines import Normalization, is_blank, normalize, one_line
from nmt_cli.text.vocab import BOS, EOS

NAMES = {
    "cross": "cross-attention",
    "encoder": "self-attention of the encoder",
    "decoder": "self-attention of the decoder",
}

_WIDEST = 130  # columns of a drawing without words
_MOSTLY = 0.4  # the share from which one may say that a head looks there
_BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")  # how SentencePiece spells what it has no piece for


@dataclass(frozen=True)
class Attention:
    """One kind of attention over words. What special tokens get is left out with them: rows may add up to less."""

    kind: str
    rows: list[str]  # words that attend
    columns: list[str]  # words that are attended to
    weights: np.ndarray  # (L,H,R,C)
    entropy: np.ndarray  # (L,H): bits, mean over rows, special tokens included

    def chosen(self, layer: int | None, head: int | None) -> np.ndarray:
        """(R,C) of a layer and head, counted from 1; what is not chosen is averaged."""
        for name, number, count in (("layer", layer, len(self.weights)), ("head", head, self.weights.shape[1])):
            if number is not None and not 1 <= number <= count:
                known = f"{name}s 1 to {count}" if count > 1 else f"one {name}, number 1"
                raise NmtError(f"there is no {name} {number}", f"the {NAMES[self.kind]} of this model has {known}")
        layers = self.weights if layer is None else self.weights[layer - 1 : layer]
        return (layers if head is None else layers[:, head - 1 : head]).mean((0, 1))

    def looks(self) -> dict[str, np.ndarray]:
        """What heads look at: shares of their attention, (L,H) each, by position and on punctuation."""
        marks = [is_punctuation(word) for word in self.columns]
        return {
            "previous": _mean(np.diagonal(self.weights, -1, 2, 3)),  # over the rows that have a column there
            "same": _mean(np.diagonal(self.weights, 0, 2, 3)),
            "next": _mean(np.diagonal(self.weights, 1, 2, 3)),
            "punctuation": _mean(self.weights[..., marks].sum(-1)),
        }

    @property
    def elsewhere(self) -> float:
        """The share that goes to what is left out."""
        return float(1 - self.weights.sum(-1).mean()) if self.rows else 0.0


def _mean(shares: np.ndarray) -> np.ndarray:
    """(L,H,n) -> (L,H); 0 of nothing."""
    return shares.sum(-1) / max(1, shares.shape[-1])


@dataclass(frozen=True)
class Inspection:
    source: str
    target: str
    given: bool  # the target was, and is not the model's own
    logprob: float  # of the target, its end included
    attention: dict[str, Attention]  # by kind; what the model does not have is not there
    spaced: Attention | None  # cross-attention over words as spaces divide them

    def of(self, kind: str) -> Attention:
        if not self.attention:
            raise NmtError("this model has no attention to show", "--beam shows how it searches")
        if kind not in self.attention:
            there = ", ".join(self.attention)
            raise NmtError(f"this model has no {NAMES[kind]}", f"it has --kind {there}")
        return self.attention[kind]


def source_ids(trained: Trained, text: str) -> list[int]:
    """With the end mark."""
    return _ids(trained.vocab.encode_source([text])[0], text, trained, "sentence")


def _ids(ids: list[int], text: str, trained: Trained, what: str) -> list[int]:
    if is_blank(text) or not ids:
        raise NmtError(f"the {what} is empty", 'for example: nmt inspect MODEL "I like the green cat."')
    longest = trained.recipe.model.max_positions
    if 0 < longest < len(ids) + 1:
        raise NmtError(
            f"the {what} has {len(ids):,} pieces and its end mark, but the model is made for {longest:,}",
            "inspect a part of it",
        )
    return [*ids, EOS]


@torch.inference_mode()
def inspect(
    trained: Trained,
    text: str,
    target: str | None = None,
    beam: int | None = None,
    pieces: bool = False,
    special: bool = False,
) -> Inspection:
    """The attention of a sentence and of its translation, or of a given target."""
    model, vocab = trained.model, trained.vocab
    src = source_ids(trained, text)
    source_pieces = _surface(vocab.source, text, vocab.normalization)
    if target is None:
        best = search([model], torch.tensor([src]), options_of(trained.recipe, beam))[0][0]
        tgt = [*best.ids, EOS]
        target_pieces = [vocab.target.id_to_piece(token) for token in best.ids]
        shown = vocab.decode_target([list(best.ids)])[0]
    else:
        tgt = _ids(vocab.encode_target([target])[0], target, trained, "target")
        target_pieces = _surface(vocab.target, target, vocab.normalization)
        shown = target

    memory = model.encode(torch.tensor([src]), attention=True)
    logits, weights = model.decode(torch.tensor([[BOS, *tgt[:-1]]]), memory, attention=True)
    logprob = forbid_pad_and_bos(logits[0].float()).log_softmax(1).gather(1, torch.tensor(tgt)[:, None]).sum()

    # To the source the decoder attends for what it is about to write, which ends with </s>; to itself, from what it
    # has read to what it has read, which begins with <s>.
    source, written = (_units(side, pieces) for side in (source_pieces, target_pieces))
    read = [Word(word.text, word.start + 1, word.stop + 1) for word in written]
    if special:
        source.append(Word("</s>", len(src) - 1, len(src)))
        written.append(Word("</s>", len(tgt) - 1, len(tgt)))
        read.insert(0, Word("<s>", 0, 1))
    tensors = {**(weights or {}), "encoder": memory.get("attention")}
    axes = {"cross": (written, source), "encoder": (source, source), "decoder": (read, read)}
    found = {kind: _attention(kind, tensors[kind], *axes[kind]) for kind in axes if tensors.get(kind) is not None}
    spaced = None
    if "cross" in found:
        words = (_units(side, pieces, punctuation=False) for side in (target_pieces, source_pieces))
        spaced = _attention("cross", tensors["cross"], *words)
    return Inspection(one_line(text), one_line(shown), target is not None, float(logprob), found, spaced)


def _surface(side: SentencePieceProcessor, text: str, form: Normalization) -> list[str]:
    """The pieces of a text; what is unknown stands as it was written."""
    return side.encode(normalize(text, form), out_type=str)


def _units(pieces: Sequence[str], raw: bool, punctuation: bool = True) -> list[Word]:
    """What a row or column is: a word, or a piece."""
    if raw:
        return [Word(piece, index, index + 1) for index, piece in enumerate(pieces)]
    words = words_of(pieces, punctuation) if pieces else []
    return [Word(_BYTES.sub(_spelt, word.text) or SPACE, word.start, word.stop) for word in words]


def _spelt(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("<0x", "").replace(">", "")).decode("utf-8", "replace")


def _attention(kind: str, tensor: Tensor | None, rows: list[Word], columns: list[Word]) -> Attention:
    """tensor (1,L,H,T,S) over pieces."""
    assert tensor is not None
    raw = tensor[0].double().cpu().numpy()
    weights = np.zeros((*raw.shape[:2], len(rows), len(columns)))
    if rows and columns:
        for place in np.ndindex(raw.shape[:2]):
            weights[place] = over_words(raw[place], rows, columns)
    entropy = -(raw * np.log2(np.maximum(raw, 1e-12))).sum(-1).mean(-1)
    return Attention(kind, [word.text for word in rows], [word.text for word in columns], weights, entropy)


def beam_steps(trained: Trained, text: str, beam: int | None) -> tuple[list[Step], SearchOptions]:
    """All that the beam search of a sentence looked at and kept."""
    options = options_of(trained.recipe, beam)
    steps: list[Step] = []
    search([trained.model], torch.tensor([source_ids(trained, text)]), options, watch=steps.append)
    return steps, options


def position_table(recipe: Recipe, path: Path, length: int) -> np.ndarray:
    """(length,D): the position encoding, by formula or as the model at `path` has learnt it."""
    learned = getattr(recipe.model, "positions", "") == "learned"
    if learned and not path.is_dir():
        raise NmtError("the positions of this recipe are learnt, so only a trained model has them", "name a run")
    model = load_model(path).model if learned else build_model(recipe.model, EOS + 1, EOS + 1)
    with torch.inference_mode():
        table = model.positions(min(length, recipe.model.max_positions))
    if table is None:
        raise NmtError(f"a model of the family {recipe.model.family} has no position encoding", "a transformer has one")
    return table.detach().double().numpy()


# ---------------------------------------------------------------------------------------------------------------------
# For people


def show(
    inspection: Inspection, kind: str, layer: int | None, head: int | None, heads: bool, width: int, ink: Ink
) -> RenderableType:
    """The sentences, the map or the grid of all heads, and what the heads look at."""
    attention = inspection.of(kind)
    weights = attention.chosen(layer, head)
    layers, per_layer = attention.weights.shape[:2]
    if heads and layer is None:
        layer = layers
    if not attention.rows:
        title, drawing = "", Text("the translation is empty: nothing attends to anything")
    elif heads and layer is not None:
        titles = [f"{number}: {bits:.2f} bits" for number, bits in enumerate(attention.entropy[layer - 1], 1)]
        maps = list(zip(titles, attention.weights[layer - 1], strict=True))
        title = f"{NAMES[kind]}, the heads of layer {layer} of {layers} and their entropy"
        drawing = grid(maps, attention.rows, attention.columns, width, ink)
    else:
        title = f"{NAMES[kind]}, {_part(layer, layers, 'layer')}, {_part(head, per_layer, 'head')}"
        drawing = heatmap(weights, attention.rows, attention.columns, width, ink)
    sentences = Table.grid(padding=(0, 2))
    sentences.add_column(style="dim")
    sentences.add_row("source", Text(inspection.source))
    sentences.add_row("target" if inspection.given else "translation", Text(inspection.target or "(empty)"))
    sentences.add_row("log p", f"{inspection.logprob:.2f}")
    parts: list[RenderableType] = [sentences, "", Text(title, style="bold"), drawing]
    if attention.elsewhere > 0.005:
        parts.append(Text(f"{attention.elsewhere:.0%} goes to special tokens, which --special shows", style="dim"))
    return Group(*parts, "", _looks(attention, layer, width))


def show_positions(table: np.ndarray, width: int, ink: Ink) -> RenderableType:
    """Sines and cosines take turns; apart, on the left and on the right, they are seen to be waves."""
    parted = np.concatenate([table[:, ::2], table[:, 1::2]], 1)
    dims = table.shape[1]
    title = f"position encoding: positions 1 to {len(table)} down, odd dimensions left, even ones right"
    return Group(Text(title, style="bold"), raster(parted, min(width, _WIDEST), ink, "1, 3, ...", f"..., {dims}"))


def _part(chosen: int | None, count: int, name: str) -> str:
    if count == 1:
        return f"its only {name}"
    return f"mean of {count} {name}s" if chosen is None else f"{name} {chosen} of {count}"


def _looks(attention: Attention, layer: int | None, width: int) -> Table:
    """By layer, or by head of one layer; on narrow terminals without the word at the end."""
    wide = width >= 60
    table = Table(box=None, pad_edge=False, padding=(0, 2 if wide else 1, 0, 0), title="What heads look at")
    table.title_justify, table.title_style = "left", "bold"
    looks = attention.looks()
    for column in ("layer" if layer is None else "head", "prev.", "same", "next", "punct.", "bits"):
        table.add_column(column, justify="right", header_style="dim")
    if wide:
        table.add_column("mostly", header_style="dim")
    for row in range(attention.weights.shape[0 if layer is None else 1]):
        figures = {
            name: float(values[row].mean() if layer is None else values[layer - 1, row])
            for name, values in {**looks, "entropy": attention.entropy}.items()
        }
        bits = figures.pop("entropy")
        shares = [f"{share:.0%}" for share in figures.values()]
        most = max(figures, key=lambda name: figures[name])
        mostly = [most if figures[most] >= _MOSTLY else ""] if wide else []
        table.add_row(str(row + 1), *shares, f"{bits:.2f}", *mostly)
    return table


# ---------------------------------------------------------------------------------------------------------------------
# For programs and browsers


def alignment(inspection: Inspection, layer: int | None = None, head: int | None = None) -> str:
    """Pharaoh's format, of words as spaces divide them, counted from 0."""
    inspection.of("cross")
    assert inspection.spaced is not None
    weights = inspection.spaced.chosen(layer, head)
    return pharaoh(aligned(weights)) if weights.size else ""


def as_table(inspection: Inspection) -> dict[str, Any]:
    """Everything, as JSON has it: by kind, layer and head, the shares that `looks` names, and every weight."""
    spaced = inspection.spaced
    return {
        "source": inspection.source,
        "target": inspection.target,
        "given": inspection.given,
        "logprob": round(inspection.logprob, 4),
        "alignment": spaced and {"source": spaced.columns, "target": spaced.rows, "pharaoh": alignment(inspection)},
        "attention": {kind: _kind_table(attention) for kind, attention in inspection.attention.items()},
    }


def _kind_table(attention: Attention) -> dict[str, Any]:
    looks = {**attention.looks(), "entropy": attention.entropy}
    return {
        "rows": attention.rows,
        "columns": attention.columns,
        "shape": list(attention.weights.shape),
        "heads": [
            {"layer": layer + 1, "head": head + 1}
            | {name: round(float(values[layer, head]), 4) for name, values in looks.items()}
            for layer, head in np.ndindex(attention.weights.shape[:2])
        ],
        "mean": attention.chosen(None, None).round(4).tolist(),
        "weights": attention.weights.round(4).tolist(),
    }


def html_page(inspection: Inspection) -> str:
    """One page that needs nothing else. No `<` of the sentence's is left in it, so none can end the script."""
    inspection.of(next(iter(inspection.attention), "cross"))  # there must be something to show
    template = Path(__file__).with_name("attention.html").read_text(encoding="utf-8")
    data = json.dumps(as_table(inspection), ensure_ascii=False).replace("<", "\\u003c")
    return template.replace("__DATA__", data)
