"""The quality of a model during training: its loss on the validation lines, and BLEU and chrF of its translations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from nmt_cli.data.batches import make_batch, pad
from nmt_cli.data.shards import open_shards
from nmt_cli.errors import NmtError
from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.device import Compute, in_parts
from nmt_cli.recipe.schema import Recipe, Train
from nmt_cli.scoring.metrics import Scores, corpus_scores
from nmt_cli.search.beam import search
from nmt_cli.search.contract import options_of
from nmt_cli.store.log import Valid
from nmt_cli.text.lines import read_lines
from nmt_cli.text.vocab import Vocab
from nmt_cli.training import distributed
from nmt_cli.training.loss import TrainingLoss


@dataclass(frozen=True)
class Validation:
    """The validation lines, longest first: a batch has lines of similar length, and the largest batch comes first."""

    vocab: Vocab
    numbers: list[int]  # of the lines in the file, from 0
    sources: list[list[int]]
    targets: list[list[int]]
    references: list[str]
    left_out: int = 0  # lines that have more pieces than the model has positions

    @staticmethod
    def load(recipe: Recipe, vocab: Vocab, split: str = "valid") -> Validation | None:
        """The validation lines of prepared data. None if no line is usable."""
        folder = recipe.prepared_folder
        if not (folder / f"{split}.source.ids").is_file():
            return None
        sides = open_shards(folder, split, vocab.sizes)
        references = list(read_lines(folder / f"{split}.target.txt"))
        if len(references) != len(sides[0]):
            message = f"{folder}: {split}.target.txt and {split}.target.ids have different lengths: a file is damaged"
            raise NmtError(message, "prepare the data again with --force")
        lines = min(len(references), recipe.train.valid_lines or len(references))
        # An empty source is translated as an empty line without the model, so it does not measure the model.
        order = sorted((n for n in range(lines) if len(sides[0][n])), key=lambda n: -len(sides[0][n]))
        limit = recipe.model.learned_positions
        fitting = [n for n in order if not limit or max(len(side[n]) for side in sides) < limit]
        if not fitting:
            return None
        sources, targets = ([ids.tolist() for ids in side.rows(fitting)] for side in sides)
        texts = [references[n] for n in fitting]
        return Validation(vocab, fitting, sources, targets, texts, len(order) - len(fitting))

    def measure(
        self, model: Seq2Seq, recipe: Recipe, compute: Compute, world: distributed.World
    ) -> tuple[float, Scores] | None:
        """The mean nll of a target token and the scores of the translations, in the leader; None in the others."""
        lines = slice(world.rank, None, world.size)
        parts_of = (self.numbers[lines], self.sources[lines], self.targets[lines], self.references[lines])
        part = Validation(self.vocab, *parts_of)
        nll, tokens = part.loss(model, recipe, compute)
        parts = distributed.gather((nll, tokens, part.translations([model], recipe, compute)), world)
        if not world.leader:
            return None
        hypotheses = [""] * len(self.sources)
        for rank, (_, _, translations) in enumerate(parts):
            hypotheses[rank :: world.size] = translations
        mean = sum(nll for nll, _, _ in parts) / sum(tokens for _, tokens, _ in parts)
        return mean, corpus_scores(hypotheses, self.references, self.vocab.target_lang)

    def loss(self, model: Seq2Seq, recipe: Recipe, compute: Compute) -> tuple[float, int]:
        """The sum of the nll over all target tokens, and the number of tokens."""
        objective = TrainingLoss(model, recipe.train).eval()
        total, count = 0.0, 0

        def nll_of(rows: slice) -> tuple[float, int]:
            batch = make_batch(self.sources[rows], self.targets[rows])
            arrays = (batch.src, batch.tgt_in, batch.tgt_out)
            with compute.autocast(), torch.no_grad():
                _, nll, tokens = objective(*(torch.from_numpy(array).to(compute.device) for array in arrays))
            return float(nll), int(tokens)

        for rows in self.slices(1):
            for nll, tokens in in_parts(nll_of, rows):
                total, count = total + nll, count + tokens
        return total, count

    def translations(self, models: Sequence[Seq2Seq], recipe: Recipe, compute: Compute) -> list[str]:
        """The translations of one model, or of an ensemble."""
        options = options_of(recipe, recipe.train.valid_beam)

        def translated(rows: slice) -> list[str]:
            src = torch.from_numpy(pad(self.sources[rows])).to(compute.device)
            with compute.autocast():
                hypotheses = search(models, src, options, [self.vocab.target_prefix] * len(src))
            return self.vocab.decode_target([list(nbest[0].ids) for nbest in hypotheses])

        parts = (part for rows in self.slices(options.beam) for part in in_parts(translated, rows))
        return [hypothesis for part in parts for hypothesis in part]

    def slices(self, beam: int) -> list[slice]:
        """Batches of consecutive lines. The first line of each is its longest."""
        cuts = [0]
        while cuts[-1] < len(self.sources):
            longest = len(self.sources[cuts[-1]]) + 1
            cuts.append(min(cuts[-1] + max(1, 4096 // (longest * beam)), len(self.sources)))
        return [slice(first, last) for first, last in pairwise(cuts)]


def is_better(entry: Valid, best_value: float | None) -> bool:
    """Is a validation better than the best value so far? A model that has diverged never is."""
    finite = math.isfinite(entry.value) and math.isfinite(entry.loss or 0.0)
    return finite and (best_value is None or entry.value > best_value)


def measure_name(settings: Train) -> str:
    """The metric, lines and beam of a validation. Only values with the same measure can be compared."""
    beam = f", beam {settings.valid_beam}" if settings.metric != "loss" else ""  # a loss needs no search
    return f"{settings.metric} of {f'{settings.valid_lines:,}' if settings.valid_lines else 'all'} lines{beam}"


@contextmanager
def evaluating(model: nn.Module, weights: dict[str, Tensor] | None) -> Iterator[None]:
    """The model in evaluation mode, with other weights in place of its own if any are given."""
    model.eval()
    _swap(model.state_dict(), weights or {})
    try:
        yield
    finally:
        _swap(model.state_dict(), weights or {})
        model.train()


def _swap(current: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Exchange the content of two sets of weights, in place and one tensor at a time."""
    for name, tensor in other.items():
        copy = tensor.clone()
        tensor.copy_(current[name])
        current[name].copy_(copy)
