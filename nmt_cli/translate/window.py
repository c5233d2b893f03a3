"""Translate or score a window of lines: all lines in step, in batches of like length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from nmt_cli.search.contract import Hypothesis, Request
from nmt_cli.search.workers import Workers
from nmt_cli.text.vocab import Vocab
from nmt_cli.translate.line import LineTranslator, together
from nmt_cli.translate.options import Settings
from nmt_cli.translate.results import Translation
from nmt_cli.translate.rows import Row

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class WindowTranslator:
    def __init__(self, workers: Workers, vocab: Vocab, settings: Settings) -> None:
        self.workers, self.settings = workers, settings
        self.lines = LineTranslator(vocab, settings)

    def translate(self, rows: Sequence[Row]) -> list[Translation]:
        """The translations of all rows, in order."""
        program = together([self.lines.line(row) for row in rows])
        answers: list[list[Hypothesis]] | None = None
        while True:
            try:
                requests = program.send(answers) if answers is not None else next(program)
            except StopIteration as stop:
                return stop.value
            answers = self._search(requests)

    def _search(self, requests: list[Request]) -> list[list[Hypothesis]]:
        # Engines compute attention for a whole batch or not at all.
        keys = [(request.attention, len(request.source) + 1) for request in requests]
        return run_batches(
            requests,
            keys,
            self.settings.batch_tokens,
            lambda batches: self.workers.translate(batches, self.settings.search),
        )


def run_batches(
    items: Sequence[Item],
    keys: Sequence[tuple[bool, int]],
    budget: int,
    run: Callable[[list[list[Item]]], Iterable[Sequence[Answer]]],
) -> list[Answer]:
    """Run all items in batches, and return the answers in the order of the items. Keys: (kind, length) of each item."""
    batches = batched(keys, budget)
    answers: dict[int, Answer] = {}
    for batch, found in zip(batches, run([[items[n] for n in batch] for batch in batches]), strict=True):
        answers.update(zip(batch, found, strict=True))
    return [answers[n] for n in range(len(items))]


def batched(keys: Sequence[tuple[bool, int]], budget: int) -> list[list[int]]:
    """Indices of items in batches: one kind in a batch, like lengths, and rows x longest within the budget.

    The longest items come first, so that no worker ends with a long batch alone.
    """
    batches: list[list[int]] = []
    for n in sorted(range(len(keys)), key=lambda n: (keys[n][0], -keys[n][1])):
        if batches:
            kind, longest = keys[batches[-1][0]]
            if kind == keys[n][0] and (len(batches[-1]) + 1) * longest <= budget:
                batches[-1].append(n)
                continue
        batches.append([n])
    return batches
