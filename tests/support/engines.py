"""Engines whose output is known in advance, for tests of the translator."""

from __future__ import annotations

import numpy as np

from nmt_cli.search.contract import Hypothesis
from nmt_cli.text.vocab import UNK


class Echo:
    """Writes the source, with a joint vocabulary, and attends to the copied piece. Drops UNK."""

    name = "echo"

    def __init__(self) -> None:
        self.seen = []

    def translate(self, requests, options):
        self.seen.append(requests)
        found = []
        for request in requests:
            kept = [n for n, index in enumerate(request.source) if index != UNK]
            ids = tuple(request.source[n] for n in kept)
            weights = np.zeros((len(ids) + 1, len(request.source) + 1))
            weights[np.arange(len(kept)), kept] = 1
            found.append([Hypothesis(ids, -1.0, -1.0 * (len(ids) + 1), (), True, weights)])
        return found

    def score(self, pairs, options):
        raise NotImplementedError


class Says:
    """An engine that always gives the same pieces."""

    name = "says"

    def __init__(self, ids: list[int]) -> None:
        self.ids = tuple(ids)

    def translate(self, requests, options):
        return [[Hypothesis(self.ids, -1.0, -1.0 * (len(self.ids) + 1), (), True, None)] for _ in requests]

    def score(self, pairs, options):
        raise NotImplementedError
