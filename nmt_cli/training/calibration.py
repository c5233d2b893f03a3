"""Fit the estimates of quality.json on validation lines, at the end of a training.

Each line is translated as `nmt translate` does. A good model translates nearly all of them well, so the estimate of
confidence also sees damaged copies of some lines: they show what the figures of a bad translation are. The estimate of
omissions also sees the translation and the reference with a part left out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from time import perf_counter

import torch

from nmt_cli.data.batches import pad
from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.device import Compute, in_parts
from nmt_cli.recipe.schema import Recipe
from nmt_cli.scoring.metrics import sentence_chrf
from nmt_cli.search.beam import search
from nmt_cli.search.contract import Hypothesis, options_of
from nmt_cli.search.quality import FEWEST_LINES, Features, Observed, Quality, coverage_of, features, fit
from nmt_cli.search.torch_engine import score
from nmt_cli.text.alignment import SPACE, words_of
from nmt_cli.text.vocab import Vocab
from nmt_cli.training import distributed
from nmt_cli.training.validation import Validation

LINES = 1000  # the most validation lines that are translated
_LEFT_OUT = (0.2, 0.5)  # the share of the words that a planted omission leaves out
_DAMAGED = 4  # every fourth line has a damaged copy
_REPLACED = (0.2, 1.4)  # the share of the words of a damaged copy that are replaced; 1 or more: all
_LETTERS = 0.7  # the share of the replaced words that are made of random letters; the others are words of other lines
_FEWEST_WORDS = 4  # nothing is left out of shorter lines


def calibrate(
    model: Seq2Seq, recipe: Recipe, vocab: Vocab, compute: Compute, world: distributed.World, seconds: float
) -> Quality | None:
    """The estimates, in the leader. None in the other processes, and if there are too few lines, too few good
    translations or too few bad ones (quality.fit).

    No new batch begins when the seconds are over, so a large model is calibrated on fewer lines.
    """
    valid = Validation.load(replace(recipe, train=replace(recipe.train, valid_lines=LINES)), vocab)
    if valid is None or len(valid.sources) < FEWEST_LINES:
        return None
    began, observed = perf_counter(), list[Observed]()
    batches = valid.slices(2 * recipe.translate.beam)  # small, because the clock is read between batches
    random.Random(1).shuffle(batches)  # the lines are sorted by length, and time may not suffice for all
    for rows in batches[world.rank :: world.size]:
        for lines in in_parts(lambda part: _observe(valid, part, model, recipe, compute), rows):
            observed += lines
        if perf_counter() - began > seconds:
            break
    observed = [line for part in distributed.gather(observed, world) for line in part]
    return fit(observed) if world.leader and len(observed) >= FEWEST_LINES else None


def _observe(valid: Validation, rows: slice, model: Seq2Seq, recipe: Recipe, compute: Compute) -> list[Observed]:
    sources, references = valid.sources[rows], valid.targets[rows]
    rng = random.Random(rows.start)
    copies = damaged(sources, valid.vocab, recipe.model.learned_positions, rng)
    with compute.autocast():
        translations = _translate(sources, valid.vocab, model, recipe, compute)
        of_copies = _translate(copies, valid.vocab, model, recipe, compute)
        written = [list(translation.ids) for translation in translations]
        shorter = [[leave_out(ids, valid.vocab, rng) for ids in side] for side in (written, references)]
        scored = [
            score([model], list(zip(sources, side, strict=True)), options_of(recipe), compute.device)
            for side in (references, *shorter)
        ]
    chrf = _chrf(valid, translations, rows)
    chrf_of_copies = _chrf(valid, of_copies, slice(rows.start, rows.stop, _DAMAGED))
    observed = []
    for n, source in enumerate(sources):
        translation, reference, *omissions = (_figures(len(source), side[n]) for side in (translations, *scored))
        is_shorter = [len(shorter[0][n]) < len(written[n]), len(shorter[1][n]) < len(references[n])]
        number, rest = divmod(n, _DAMAGED)
        copy = None if rest else (_figures(len(copies[number]), of_copies[number]), chrf_of_copies[number])
        observed.append(Observed(translation, chrf[n], reference, tuple(compress(omissions, is_shorter)), copy))
    return observed


def _translate(
    sources: list[list[int]], vocab: Vocab, model: Seq2Seq, recipe: Recipe, compute: Compute
) -> list[Hypothesis]:
    src = torch.from_numpy(pad(sources)).to(compute.device)
    prefixes = [vocab.target_prefix] * len(src)
    return [n_best[0] for n_best in search([model], src, replace(options_of(recipe), attention=True), prefixes)]


def _chrf(valid: Validation, translations: list[Hypothesis], rows: slice) -> list[float]:
    written = valid.vocab.decode_target([list(translation.ids) for translation in translations])
    return sentence_chrf(written, valid.references[rows])


def _figures(source: int, hypothesis: Hypothesis) -> Features:
    coverage = None
    if hypothesis.attention is not None:
        coverage = coverage_of(hypothesis.attention, source, len(hypothesis.ids))
    return features(source, len(hypothesis.ids), hypothesis.logprob, coverage)


def leave_out(ids: Sequence[int], vocab: Vocab, rng: random.Random) -> list[int]:
    """The ids without some words in a row. A short line stays as it is."""
    words = words_of(vocab.target.id_to_piece(list(ids))) if ids else []
    count = round(len(words) * rng.uniform(*_LEFT_OUT))
    if len(words) < _FEWEST_WORDS or not count:
        return list(ids)
    first = rng.randrange(len(words) - count)  # the last word stays, and with it the mark that ends the sentence
    return [*ids[: words[first].start], *ids[words[first + count].start :]]


def damaged(sources: list[list[int]], vocab: Vocab, positions: int, rng: random.Random) -> list[list[int]]:
    """A damaged copy of every fourth source, cut to the positions of the model (0: any number).

    Words are replaced by random letters or by words of the other sources. Text with few of its own words left is as
    good as text of another language: no translation of it is right. Such a copy may be short, as one typed word is.
    """
    begin = len(vocab.source_prefix)
    lines = [_words(text) for text in vocab.source.decode([source[begin:] for source in sources])]
    words = [word for line in lines for word in line]
    letters = "".join(words).replace(SPACE, "") or "?"
    copies = []
    for line in lines[::_DAMAGED]:
        share = rng.uniform(*_REPLACED)
        kept = line if share < 1 else line[: rng.randint(1, max(1, len(line)))]
        replaced = [_replacement(word, words, letters, rng) if rng.random() < share else word for word in kept]
        copies.append("".join(replaced).replace(SPACE, " ").strip())
    return [
        (ids or source)[: positions - 1 if positions else None]  # the end mark needs a position
        for ids, source in zip(vocab.encode_source(copies), sources[::_DAMAGED], strict=True)
    ]


def _replacement(word: str, words: list[str], letters: str, rng: random.Random) -> str:
    if rng.random() < _LETTERS:
        return "".join(letter if letter == SPACE else rng.choice(letters) for letter in word)
    return rng.choice(words)


def _words(text: str) -> list[str]:
    """The words, each with the space before it. In scripts without spaces each character is a word."""
    characters = text.replace(" ", SPACE)
    return [characters[word.start : word.stop] for word in words_of(characters)]
