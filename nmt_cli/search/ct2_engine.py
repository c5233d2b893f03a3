"""The fast engine: CTranslate2 on an exported Transformer. Starts without torch, in a fraction of a second.

Same search, same score, same limits as search.py, as far as CTranslate2 can be told; `unable` says what it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from nmt_cli.errors import NmtError
from nmt_cli.search.contract import Hypothesis, Request, SearchOptions, length_limit, length_normalized, rescored
from nmt_cli.text.vocab import EOS, UNK, Vocab, pieces_of

TYPES = ("auto", "float32", "int8", "int8_float32", "int16", "float16", "int8_float16", "bfloat16", "int8_bfloat16")
# It stops at so many times the beam of ended hypotheses, whatever is still open. At 1.5 it found what search.py finds
# with its proof that none can win, on all of 200 lines of Multi30k; at 1 it missed it on 9.
PATIENCE = 1.5


def unable(options: SearchOptions, models: int) -> str:
    """What stands against this engine; nothing, if it can do all that is asked."""
    if models > 1:
        return "an ensemble"
    if options.sample:
        return "sampling that is the same on every run"
    if options.repetition_penalty != 1:
        return "that it cannot tell the score of a translation without --repetition-penalty"
    if options.no_repeat_ngram or options.min_length or set(options.forbidden) - {UNK}:
        # It gives their probability to all others, which search.py does not: another search, other translations.
        return "pieces that are ruled out (--forbid, --min-length, --no-repeat-ngram)"
    return "" if find_spec("ctranslate2") else "that it is not installed: pip install 'nmt-cli[fast]'"


def check_type(name: str) -> None:
    """Of weights to be exported."""
    if name not in TYPES or name == "auto":
        raise NmtError(f"--type {name} is none of {', '.join(TYPES[1:])}", "float32 loses nothing, int8 is smallest")
    if not find_spec("ctranslate2"):
        raise NmtError("ctranslate2 is not installed", "pip install 'nmt-cli[fast]'")


class CTranslate2Engine:
    name = "ctranslate2"
    batch_tokens = 512

    def __init__(self, folder: Path, vocab: Vocab, compute_type: str, device: str, workers: int) -> None:
        import ctranslate2

        ctranslate2.set_log_level(40)  # errors come as exceptions
        try:
            self.translator = ctranslate2.Translator(
                str(folder),
                device=device,
                compute_type="default" if compute_type == "auto" else compute_type,
                inter_threads=workers,
                intra_threads=1 if workers > 1 else 0,
            )
        except (RuntimeError, ValueError) as error:
            raise NmtError(f"CTranslate2 cannot use {folder}: {error}", "--engine torch; or export it again") from None
        self.source_pieces = pieces_of(vocab.source)
        self.target_pieces = pieces_of(vocab.target)
        self.target_ids = {piece: index for index, piece in enumerate(self.target_pieces)}

    def translate(self, requests: Sequence[Request], options: SearchOptions) -> list[list[Hypothesis]]:
        limits = [length_limit(len(request.source), len(request.prefix), options) for request in requests]
        found = self._translate(requests, options, max(limits))
        for index, (request, limit) in enumerate(zip(requests, limits, strict=True)):
            # The limit is the batch's longest, for CTranslate2 knows only one. Who reached his own, EOS counted, is
            # asked again.
            if limit < max(limits) and any(len(best.ids) >= limit - 1 for best in found[index]):
                found[index] = self._translate([request], options, limit)[0]
            # Who was stopped by the limit has no EOS in his score yet, and may have driven out one that had an end.
            cut_off = not all(best.finished for best in found[index])
            if cut_off and options.n_best < options.beam:
                found[index] = self._translate([request], replace(options, n_best=options.beam), limit)[0]
            # No search tells the log p of single tokens, nor that of a prefix.
            if cut_off or request.tokens or request.free < len(request.prefix):
                found[index] = [rescored(self, request, best, options) for best in found[index]]
            if cut_off:
                found[index] = sorted(found[index], key=lambda best: -best.score)[: options.n_best]
        return self._attended(requests, found) if requests[0].attention else found

    def _attended(self, requests: Sequence[Request], found: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """The same with attention, by another pass over what was found.

        The search could give it, but none of a forced prefix, and in a batch that of another sentence at the first step
        (seen with CTranslate2 4.8).
        """
        pairs = [(request, best) for request, bests in zip(requests, found, strict=True) for best in bests]
        with _positions():
            results = self.translator.translate_batch(
                [self._source(request.source) for request, _ in pairs],
                [[self.target_pieces[index] for index in best.ids] or None for _, best in pairs],
                beam_size=1,
                max_input_length=0,
                max_decoding_length=max(len(best.ids) for _, best in pairs) + 1,
                return_attention=True,
            )
        attended = iter(
            replace(best, attention=_array(result.attention[0])[: len(best.ids), : len(request.source) + 1])
            for (request, best), result in zip(pairs, results, strict=True)
        )
        return [[next(attended) for _ in bests] for bests in found]

    def _translate(self, requests: Sequence[Request], options: SearchOptions, limit: int) -> list[list[Hypothesis]]:
        patience = PATIENCE if math.isinf(options.patience) else options.patience
        # With no length penalty it stops at n ended ones when the best has ended, whether or not another could be n-th.
        penalty = options.alpha or (1e-9 if options.n_best > 1 else 0.0)
        with _positions():
            results = self.translator.translate_batch(
                [self._source(request.source) for request in requests],
                [[self.target_pieces[index] for index in request.prefix] or None for request in requests],
                beam_size=options.beam,
                patience=1 if options.beam == 1 else options.enough(patience) / options.beam,
                num_hypotheses=options.n_best,
                length_penalty=penalty,
                disable_unk=UNK in options.forbidden,
                max_input_length=0,
                max_decoding_length=limit - 1,  # EOS is not counted there
                min_decoding_length=0,
                return_scores=True,
            )
        return [
            [
                self._hypothesis(pieces, score, limit, options)
                for pieces, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def _hypothesis(self, pieces: list[str], score: float, limit: int, options: SearchOptions) -> Hypothesis:
        length = len(pieces) + 1
        return Hypothesis(
            ids=tuple(self.target_ids[piece] for piece in pieces),
            score=score,
            logprob=score * length**options.alpha,
            token_logprobs=(),
            finished=length < limit,
        )

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], alpha: float) -> list[Hypothesis]:
        with _positions():
            results = self.translator.score_batch(
                [self._source(source) for source, _ in pairs],
                [[self.target_pieces[index] for index in target] for _, target in pairs],
                max_input_length=0,
            )
        scored = []
        for (_, target), result in zip(pairs, results, strict=True):
            logprobs = tuple(result.log_probs)
            total = sum(logprobs)
            score = length_normalized(total, len(logprobs), alpha)
            scored.append(Hypothesis(tuple(target), score, total, logprobs, finished=True))
        return scored

    def _source(self, ids: Sequence[int]) -> list[str]:
        return [*(self.source_pieces[index] for index in ids), self.source_pieces[EOS]]


def _array(attention: list[list[float]]) -> np.ndarray:
    """(T,S), also if nothing was written."""
    return np.array(attention, np.float32).reshape(len(attention), -1)


@contextmanager
def _positions() -> Iterator[None]:
    """CTranslate2 has no positions beyond those that were exported, where the torch engine makes more."""
    try:
        yield
    except RuntimeError as error:
        if "position encodings" not in str(error):
            raise
        message = "a given translation or prefix has more pieces than the exported model has positions"
        raise NmtError(message, "--engine torch copes with it") from None
