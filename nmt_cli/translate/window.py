"""Translate or score a window of lines: all lines in step, in batches of like length."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from nmt_cli.search.contract import Hypothesis, Request
from nmt_cli.search.workers import Workers
from nmt_cli.text.lines import one_line
from nmt_cli.text.vocab import Vocab
from nmt_cli.translate.line import LineTranslator, together
from nmt_cli.translate.options import Settings
from nmt_cli.translate.results import Output, Translation
from nmt_cli.translate.rows import Row

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class WindowTranslator:
    def __init__(self, workers: Workers, vocab: Vocab, settings: Settings) -> None:
        self.workers, self.vocab, self.settings = workers, vocab, settings
        self.lines = LineTranslator(vocab, settings)

    def translate(self, rows: Sequence[Row]) -> list[Translation]:
        """The translations of all rows, in order."""
        program = together([self.lines.line(row) for row in rows])
        try:
            requests = next(program)
            while True:
                requests = program.send(self._search(requests))
        except StopIteration as stop:
            return stop.value

    def _search(self, requests: list[Request]) -> list[list[Hypothesis]]:
        # Engines compute attention for a whole batch or not at all.
        keys = [(request.attention, len(request.source) + 1) for request in requests]
        return self._run(requests, keys, lambda batches: self.workers.translate(batches, self.settings.search))

    def score(self, rows: Sequence[Row]) -> list[Translation]:
        """The log probability of each given translation. A pair that is too long for the engine has the score nan."""
        sources = self.vocab.encode_source([row.text for row in rows])
        targets = self.vocab.encode_target([row.given for row in rows])
        limit = self.settings.longest_scored or math.inf
        scorable = [n for n in range(len(rows)) if max(len(sources[n]), len(targets[n])) < limit]
        results = self._run(
            [(sources[n], targets[n]) for n in scorable],
            [(False, len(sources[n]) + len(targets[n]) + 2) for n in scorable],
            lambda batches: self.workers.score(batches, self.settings.search.alpha),
        )
        scored = dict(zip(scorable, results, strict=True))
        translations = []
        for n, row in enumerate(rows):
            output = Output(one_line(row.given), math.nan, math.nan, len(targets[n]) + 1)
            if hypothesis := scored.get(n):
                output = replace(
                    output,
                    score=hypothesis.score,
                    logprob=hypothesis.logprob,
                    tokens=tuple(self.vocab.target.id_to_piece(list(hypothesis.ids))),
                    token_logprobs=hypothesis.token_logprobs,
                )
            translations.append(Translation(row.number, row.text, (output,), () if n in scored else ("unscored",)))
        return translations

    def _run(
        self,
        items: Sequence[Item],
        keys: Sequence[tuple[bool, int]],
        run: Callable[[list[list[Item]]], Iterable[Sequence[Answer]]],
    ) -> list[Answer]:
        """Run all items in batches. The answers have the order of the items. A key is the kind and length of an item.

        A batch has one kind, like lengths, and rows x longest within the budget. The longest items come first, so that
        no worker ends with a long batch alone.
        """
        batches: list[list[int]] = []
        for n in sorted(range(len(keys)), key=lambda n: (keys[n][0], -keys[n][1])):
            kind, longest = keys[batches[-1][0]] if batches else (None, 0)
            if kind != keys[n][0] or (len(batches[-1]) + 1) * longest > self.settings.batch_tokens:
                batches.append([])
            batches[-1].append(n)
        answers: dict[int, Answer] = {}
        for batch, found in zip(batches, run([[items[n] for n in batch] for batch in batches]), strict=True):
            answers.update(zip(batch, found, strict=True))
        return [answers[n] for n in range(len(items))]
