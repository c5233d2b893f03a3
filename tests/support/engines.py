"""Engines that are easy to foresee, for tests of the translator."""

from __future__ import annotations

import numpy as np

from nmt_cli.search.contract import Hypothesis
from nmt_cli.text.vocab import UNK


class Echo:
    """Writes the source, by a joint vocabulary, and attends to what it copies; a sentence of `lose` it drops."""

    name = "echo"

    def __init__(self, lose: int = -1) -> None:
        self.lose, self.seen = lose, []

    def translate(self, requests, options):
        self.seen.append(requests)
        found = []
        for request in requests:
            ids = tuple(index for index in request.source if index not in (UNK, self.lose))
            weights = np.zeros((len(ids) + 1, len(request.source) + 1))
            kept = [n for n, index in enumerate(request.source) if index not in (UNK, self.lose)]
            weights[np.arange(len(kept)), kept] = 1
            found.append([Hypothesis(ids, -1.0, -1.0 * (len(ids) + 1), (), True, weights)])
        return found

    def score(self, pairs, alpha):
        raise NotImplementedError


class Says:
    """An engine that always gives the same pieces."""

    name = "says"

    def __init__(self, ids: list[int]) -> None:
        self.ids = tuple(ids)

    def translate(self, requests, options):
        return [[Hypothesis(self.ids, -1.0, -1.0 * (len(self.ids) + 1), (), True, None)] for _ in requests]

    def score(self, pairs, alpha):
        raise NotImplementedError
