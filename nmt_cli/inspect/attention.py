"""Compute the attention of a model over the words of one sentence pair, for `nmt inspect` and nmt_cli.attention.

Dimensions: L layers, H heads, R rows (words that attend), C columns (words that are attended to).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sentencepiece import SentencePieceProcessor

from nmt_cli.errors import NmtError
from nmt_cli.model.base import forbid_pad_and_bos
from nmt_cli.search.beam import search
from nmt_cli.search.contract import options_of
from nmt_cli.store.checkpoint import Trained, load_model
from nmt_cli.text.alignment import SPACE, Word, aligned, is_punctuation, over_words, words_of
from nmt_cli.text.lines import is_blank, normalize, one_line
from nmt_cli.text.vocab import BOS, EOS

KINDS = {"cross": "cross-attention", "encoder": "encoder self-attention", "decoder": "decoder self-attention"}

_BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")  # SentencePiece spells a character without a piece as bytes


@dataclass(frozen=True)
class Attention:
    """The attention weights of one sentence pair, by kind: "cross", "encoder", "decoder".

    A kind that the model lacks is missing from every dict. Without `special`, attention to special tokens is left out,
    so a row of weights may add up to less than 1.
    """

    source: str
    target: str
    target_given: bool  # False: the target is the model's own translation
    logprob: float  # of the target, end mark included
    weights: dict[str, np.ndarray]  # (L,H,R,C)
    rows: dict[str, list[str]]  # words that attend
    columns: dict[str, list[str]]  # words that are attended to
    entropy: dict[str, np.ndarray]  # (L,H): bits, mean over the pieces that attend, special tokens included
    special_share: dict[str, float]  # the mean share of attention to special tokens that were left out
    # Alignments count words as spaces divide them: a comma belongs to the word before the comma. The codes of languages
    # that an imported model reads and writes first are no words.
    source_words: list[str]
    target_words: list[str]
    word_weights: np.ndarray | None  # (L,H,R,C): cross-attention over these words

    def check_kind(self, kind: str) -> None:
        if not self.weights:
            raise NmtError("this model has no attention to show", "--show beam draws its search")
        if kind not in self.weights:
            raise NmtError(f"this model has no {KINDS[kind]}", f"use --kind {' or --kind '.join(self.weights)}")

    def mean(self, kind: str, layer: int | None = None, head: int | None = None) -> np.ndarray:
        """(R,C): the weights of a layer and head, counted from 1; None takes the mean of all."""
        self.check_kind(kind)
        return _mean_map(self.weights[kind], kind, layer, head)

    def alignment(self, layer: int | None = None, head: int | None = None) -> list[tuple[int, int]]:
        """(source word, target word), counted from 0: the source word that each target word attends to most."""
        self.check_kind("cross")
        assert self.word_weights is not None
        weights = _mean_map(self.word_weights, "cross", layer, head)
        return aligned(weights) if weights.size else []

    def shares(self, kind: str) -> dict[str, np.ndarray]:
        """The mean share of attention, (L,H) each, that goes to neighboring positions and to punctuation."""
        weights = self.weights[kind]
        punctuation = [is_punctuation(word) for word in self.columns[kind]]
        shares = {  # (L,H,n); a diagonal has only the rows whose neighbor exists
            "previous": np.diagonal(weights, -1, 2, 3),
            "same": np.diagonal(weights, 0, 2, 3),
            "next": np.diagonal(weights, 1, 2, 3),
            "punctuation": weights[..., punctuation].sum(-1),
        }
        return {name: values.sum(-1) / max(1, values.shape[-1]) for name, values in shares.items()}


def _mean_map(weights: np.ndarray, kind: str, layer: int | None, head: int | None) -> np.ndarray:
    for name, number, count in (("layer", layer, len(weights)), ("head", head, weights.shape[1])):
        if number is not None and not 1 <= number <= count:
            known = f"{name}s 1 to {count}" if count > 1 else f"one {name}, number 1"
            raise NmtError(f"there is no {name} {number}", f"the {KINDS[kind]} of this model has {known}")
    layers = weights if layer is None else weights[layer - 1 : layer]
    return (layers if head is None else layers[:, head - 1 : head]).mean((0, 1))


@torch.inference_mode()
def attention(
    model: str | Path | Trained,
    text: str,
    target: str | None = None,
    *,
    beam_size: int | None = None,
    pieces: bool = False,
    special: bool = False,
) -> Attention:
    """The attention of a model while it translates `text`. A path names a run or a model folder.

    With `target`, the model reads this translation instead of its own. `pieces` gives attention over pieces instead of
    words, `special` adds <s> and </s>.
    """
    trained = model if isinstance(model, Trained) else load_model(Path(model))
    vocab = trained.vocab
    src = source_ids(trained, text)
    source_pieces = _pieces(vocab.source, vocab.source_prefix, normalize(text, vocab.normalization))
    if target is None:
        options, prefixes = options_of(trained.recipe, beam_size), [vocab.target_prefix]
        best = search([trained.model], torch.tensor([src]), options, prefixes)[0][0]
        tgt = [*best.ids, EOS]
        target_pieces = [vocab.target.id_to_piece(token) for token in best.ids]
        shown = vocab.decode_target([list(best.ids)])[0]
    else:
        tgt = _checked_ids(vocab.encode_target([target])[0], target, trained, "target")
        target_pieces = _pieces(vocab.target, vocab.target_prefix, normalize(target, vocab.normalization))
        shown = target

    memory = trained.model.encode(torch.tensor([src]), attention=True)
    logits, decoder_weights = trained.model.decode(torch.tensor([[BOS, *tgt[:-1]]]), memory, attention=True)
    logprob = forbid_pad_and_bos(logits[0].float()).log_softmax(1).gather(1, torch.tensor(tgt)[:, None]).sum()
    tensors = {**(decoder_weights or {}), "encoder": memory.get("attention")}
    by_piece = {kind: tensor[0].double().cpu().numpy() for kind in KINDS if (tensor := tensors.get(kind)) is not None}

    # A row of cross-attention belongs to the piece that the decoder writes next; the last row writes </s>. A row of
    # decoder self-attention belongs to the piece that the decoder has just read; the first row has read <s>.
    source, written = (_units(side, pieces) for side in (source_pieces, target_pieces))
    read = [Word(word.text, word.start + 1, word.stop + 1) for word in written]
    if special:
        source.append(Word("</s>", len(src) - 1, len(src)))
        written.append(Word("</s>", len(tgt) - 1, len(tgt)))
        read.insert(0, Word("<s>", 0, 1))
    axes = {"cross": (written, source), "encoder": (source, source), "decoder": (read, read)}
    codes = [len(vocab.target_prefix), len(vocab.source_prefix)]
    sides = [side[code:] for side, code in zip((target_pieces, source_pieces), codes, strict=True)]
    words = [_units(side, pieces, punctuation=False) for side in sides]
    weights = {kind: _over_words(raw, *axes[kind]) for kind, raw in by_piece.items()}
    cross = by_piece.get("cross")
    return Attention(
        source=one_line(text),
        target=one_line(shown),
        target_given=target is not None,
        logprob=float(logprob),
        weights=weights,
        rows={kind: [word.text for word in axes[kind][0]] for kind in by_piece},
        columns={kind: [word.text for word in axes[kind][1]] for kind in by_piece},
        entropy={kind: -(raw * np.log2(raw.clip(1e-12))).sum(-1).mean(-1) for kind, raw in by_piece.items()},
        special_share={kind: _hidden_share(raw, weights[kind], axes[kind][0]) for kind, raw in by_piece.items()},
        source_words=[word.text for word in words[1]],
        target_words=[word.text for word in words[0]],
        word_weights=None if cross is None else _over_words(cross[..., codes[0] :, codes[1] :], *words),
    )


def _pieces(side: SentencePieceProcessor, prefix: tuple[int, ...], text: str) -> list[str]:
    return [*map(side.id_to_piece, prefix), *side.encode(text, out_type=str)]


def source_ids(trained: Trained, text: str) -> list[int]:
    """The ids of a source sentence, end mark included."""
    return _checked_ids(trained.vocab.encode_source([text])[0], text, trained, "sentence")


def _checked_ids(ids: list[int], text: str, trained: Trained, name: str) -> list[int]:
    if is_blank(text) or not ids:
        raise NmtError(f"the {name} is empty", 'for example: nmt inspect MODEL "I like the green cat."')
    longest = trained.recipe.model.max_positions
    if 0 < longest < len(ids) + 1:
        problem = f"{len(ids) + 1:,} pieces with its end mark, but the model reads at most {longest:,}"
        raise NmtError(f"the {name} has {problem}", f"shorten the {name}")
    return [*ids, EOS]


def _units(pieces: Sequence[str], by_piece: bool, punctuation: bool = True) -> list[Word]:
    """The units of an axis: words, or single pieces."""
    if by_piece:
        return [Word(piece, index, index + 1) for index, piece in enumerate(pieces)]

    def text_of_bytes(match: re.Match[str]) -> str:
        return bytes.fromhex(match[0].replace("<0x", "").replace(">", "")).decode("utf-8", "replace")

    words = words_of(pieces, punctuation)
    return [Word(_BYTES.sub(text_of_bytes, word.text) or SPACE, word.start, word.stop) for word in words]


def _over_words(by_piece: np.ndarray, rows: Sequence[Word], columns: Sequence[Word]) -> np.ndarray:
    """(L,H,T,S) over pieces -> (L,H,R,C) over words."""
    weights = np.zeros((*by_piece.shape[:2], len(rows), len(columns)))
    if rows and columns:
        for layer, head in np.ndindex(by_piece.shape[:2]):
            weights[layer, head] = over_words(by_piece[layer, head], rows, columns)
    return weights


def _hidden_share(by_piece: np.ndarray, weights: np.ndarray, rows: Sequence[Word]) -> float:
    """The mean share of attention that goes to pieces outside the columns of `weights`."""
    # The rows of `by_piece` need not add up to 1: a decoder-only model has one softmax for source and target.
    everything = _over_words(by_piece, rows, [Word("", 0, by_piece.shape[-1])])
    return float(everything.sum(-1).mean() - weights.sum(-1).mean()) if rows else 0.0
