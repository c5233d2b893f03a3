"""How good a model is on the validation lines while it trains: its loss on them, and BLEU and chrF by real search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch

from nmt_cli.data.batches import make_batch, pad
from nmt_cli.data.shards import Shard
from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.device import Compute, out_of_memory
from nmt_cli.recipe.schema import Recipe
from nmt_cli.scoring.metrics import Scores, corpus_scores
from nmt_cli.search.beam import search
from nmt_cli.search.contract import options_of
from nmt_cli.text.lines import read_lines
from nmt_cli.text.vocab import Vocab
from nmt_cli.training import distributed
from nmt_cli.training.distributed import World
from nmt_cli.training.loss import TrainingLoss

T = TypeVar("T")
BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Validation:
    """The lines to validate on, longest first, so that batches are of like lengths and the worst comes early."""

    vocab: Vocab
    sources: list[list[int]]
    targets: list[list[int]]
    references: list[str]
    left_out: int = 0  # lines that are too long for the model

    @staticmethod
    def load(recipe: Recipe, vocab: Vocab, split: str = "valid") -> Validation | None:
        folder = recipe.prepared_folder
        if not (folder / f"{split}.source.ids").is_file():
            return None
        sides = [
            Shard(folder, f"{split}.{side}", size) for side, size in zip(("source", "target"), vocab.sizes, strict=True)
        ]
        references = list(read_lines(folder / f"{split}.target.txt"))
        lines = min(len(references), recipe.train.valid_lines or len(references))
        # An empty source has an empty translation without being asked; it says nothing of the model.
        order = sorted((n for n in range(lines) if len(sides[0][n])), key=lambda n: -len(sides[0][n]))
        limit = recipe.model.learned_positions
        fitting = [n for n in order if not limit or max(len(side[n]) for side in sides) < limit]
        left_out, order = len(order) - len(fitting), fitting
        if not order:
            return None
        return Validation(
            vocab=vocab,
            sources=[sides[0][n].tolist() for n in order],
            targets=[sides[1][n].tolist() for n in order],
            references=[references[n] for n in order],
            left_out=left_out,
        )

    def measure(self, model: Seq2Seq, recipe: Recipe, compute: Compute, world: World) -> tuple[float, Scores] | None:
        """Mean nll of a token, and scores, for the leader; every process does its share of the work."""
        lines = slice(world.rank, None, world.size)
        own = Validation(self.vocab, self.sources[lines], self.targets[lines], self.references[lines])
        nll, tokens = own.loss(model, recipe, compute)
        shares = distributed.gather((nll, tokens, own.translations(model, recipe, compute)), world)
        if not world.leader:
            return None
        hypotheses = [""] * len(self.sources)
        for rank, (_, _, found) in enumerate(shares):
            hypotheses[rank :: world.size] = found
        mean = sum(nll for nll, _, _ in shares) / sum(tokens for _, tokens, _ in shares)
        return mean, corpus_scores(hypotheses, self.references, self.vocab.target_lang)

    def loss(self, model: Seq2Seq, recipe: Recipe, compute: Compute) -> tuple[float, int]:
        """Sum of nll, and how many tokens it is of."""
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

    def translations(self, model: Seq2Seq, recipe: Recipe, compute: Compute) -> list[str]:
        options = options_of(recipe, recipe.train.valid_beam)

        def translated(rows: slice) -> list[str]:
            src = torch.from_numpy(pad(self.sources[rows])).to(compute.device)
            with compute.autocast():
                found = search([model], src, options)
            return self.vocab.decode_target([list(best[0].ids) for best in found])

        parts = (part for rows in self.slices(options.beam) for part in in_parts(translated, rows))
        return [hypothesis for part in parts for hypothesis in part]

    def slices(self, beam: int) -> list[slice]:
        """Batches of consecutive lines; the first line of each is its longest."""
        cuts = [0]
        while cuts[-1] < len(self.sources):
            longest = len(self.sources[cuts[-1]]) + 1
            cuts.append(min(cuts[-1] + max(1, BATCH_TOKENS // (longest * beam)), len(self.sources)))
        return [slice(first, last) for first, last in pairwise(cuts)]


def in_parts(work: Callable[[slice], T], rows: slice) -> Iterator[T]:
    """work(rows); if memory runs out, half of them at a time."""
    try:
        yield work(rows)
        return
    except RuntimeError as error:
        if not out_of_memory(error) or rows.stop - rows.start < 2:
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = (rows.start + rows.stop) // 2
    yield from in_parts(work, slice(rows.start, middle))
    yield from in_parts(work, slice(middle, rows.stop))
