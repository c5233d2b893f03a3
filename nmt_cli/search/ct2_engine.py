"""The ctranslate2 engine: CTranslate2 with an exported Transformer. It starts fast, because it needs no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from nmt_cli.errors import NmtError
from nmt_cli.files import check_regular, read_small
from nmt_cli.search.contract import (
    Hypothesis,
    Pair,
    Request,
    SearchOptions,
    length_limit,
    length_normalized,
    rescored,
    scored_target,
)
from nmt_cli.search.quality import coverage_of
from nmt_cli.store.folders import ModelFiles
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK, Vocab, pieces_of

# CTranslate2 cannot prove that no open hypothesis can win, as beam.py does. On 200 lines of Multi30k, a patience of 1.5
# gave the translations of beam.py on all lines; a patience of 1 gave other translations on 9 lines.
PATIENCE = 1.5
_EXPORT_AGAIN = "use --engine torch, or export the model again: nmt export MODEL --to ctranslate2 --force"


def unsupported(options: SearchOptions) -> str:
    """The command line options for which this engine would give other results than beam.py; "" if there are none."""
    in_use = {
        "--sample": options.sample,  # CTranslate2 draws other samples on every run
        "--coverage-penalty": options.coverage_penalty,
        "--repetition-penalty": options.repetition_penalty != 1,  # `rescored` could not apply the penalty
        # CTranslate2 gives the probability of a token that is ruled out to the others, and beam.py does not.
        "--no-repeat-ngram": options.no_repeat_ngram,
        "--min-length": options.min_length,
        "--forbid": set(options.forbidden) - {UNK},
    }
    return ", ".join(option for option, used in in_use.items() if used)


@contextmanager
def _explain_errors() -> Iterator[None]:
    """Turn two errors of CTranslate2 into NmtErrors: too few positions, and a wrong value in config.json.

    CTranslate2 checks some values of config.json only when it translates.
    """
    try:
        yield
    except RuntimeError as error:
        if "json.exception" in str(error):
            raise NmtError(f"CTranslate2 refuses config.json of the export: {error}", _EXPORT_AGAIN) from None
        if "position encodings" not in str(error):  # the torch engine can extend sinusoids
            raise
        message = "a given translation or prefix has more pieces than the exported model has positions"
        raise NmtError(message, "use --engine torch") from None


def _check_pieces(folder: Path, source: list[str], target: list[str], foreign: bool) -> None:
    """Refuse an export whose pieces are not those of the model's vocabulary. CTranslate2 has its own list of them."""
    shared = folder / "shared_vocabulary.json"
    files = (
        (shared, shared) if shared.exists() else (folder / "source_vocabulary.json", folder / "target_vocabulary.json")
    )
    for path, pieces in zip(files, (source, target), strict=True):
        try:
            exported = json.loads(read_small(path))
        except (ValueError, RecursionError, FileNotFoundError) as error:
            raise NmtError(f"CTranslate2 cannot load {path}: {error}", _EXPORT_AGAIN) from None
        # A model that was imported from CTranslate2 has its own order, and lacks BOS and PAD.
        extra = {pieces[PAD], pieces[BOS]} if foreign else set()
        if exported != pieces if not foreign else set(exported) | extra != set(pieces):
            raise NmtError(f"{path} has other pieces than the vocabulary of the model", _EXPORT_AGAIN)


class CTranslate2Engine:
    name = "ctranslate2"
    batch_tokens = 512

    def __init__(self, folder: Path, vocab: Vocab, compute_type: str, device: str, workers: int) -> None:
        import ctranslate2

        for path in (path for path in folder.iterdir() if not path.name.startswith(".")):
            check_regular(path)
            path.open("rb").close()  # CTranslate2 does not say why it cannot open a file
        self.source_pieces = pieces_of(vocab.source)
        self.target_pieces = pieces_of(vocab.target)
        self.target_ids = {piece: index for index, piece in enumerate(self.target_pieces)}
        foreign = not ModelFiles(folder.parent).weights.exists()
        _check_pieces(folder, self.source_pieces, self.target_pieces, foreign)
        ctranslate2.set_log_level(40)  # errors only; CTranslate2 raises them as exceptions too
        try:
            self.translator = ctranslate2.Translator(
                str(folder),
                device=device,
                compute_type="default" if compute_type == "auto" else compute_type,
                inter_threads=workers,
                intra_threads=1 if workers > 1 else 0,
            )
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            raise NmtError(f"CTranslate2 cannot load {folder}: {error}", _EXPORT_AGAIN) from None
        self.folder = folder

    @_explain_errors()
    def translate(self, requests: Sequence[Request], options: SearchOptions) -> list[list[Hypothesis]]:
        limits = [length_limit(len(request.source), len(request.prefix), options) for request in requests]
        patience = PATIENCE if math.isinf(options.patience) else options.patience
        enough = 1 if options.beam == 1 else options.ended_to_stop(patience)
        results = self._translate(requests, options, max(limits), enough)
        for index, (request, limit) in enumerate(zip(requests, limits, strict=True)):
            # CTranslate2 has one limit for a batch: the highest. Repeat the search of a sentence that reached its own.
            if limit < max(limits) and any(len(hypothesis.ids) >= limit - 1 for hypothesis in results[index]):
                results[index] = self._translate([request], options, limit, enough)[0]
            # A hypothesis that the limit ended has a score without EOS, so it may have displaced better ones that ended
            # with EOS. There are at most as many as the beam is wide: ask for that many more.
            if options.beam > 1 and not all(hypothesis.finished for hypothesis in results[index]):
                results[index] = self._translate([request], options, limit, enough + options.beam, n_best=False)[0]
            results[index] = self._ranked(request, results[index], options)
        if requests[0].coverage:
            self._add_coverage_of_prefixes(requests, results)
        return self._with_attention(requests, results) if requests[0].attention else results

    def _ranked(self, request: Request, found: list[Hypothesis], options: SearchOptions) -> list[Hypothesis]:
        """The n best. The search's score lacks the log p of a prefix, and of EOS if the limit ended the hypothesis."""
        has_forced = request.given < len(request.prefix)
        found = [rescored(self, request, each, options) if has_forced or not each.finished else each for each in found]
        found = sorted(found, key=lambda hypothesis: -hypothesis.score)[: options.n_best]
        if request.tokens:  # the search returns no log p of single tokens
            found = [each if each.token_logprobs else rescored(self, request, each, options) for each in found]
        return found

    def _add_coverage_of_prefixes(self, requests: Sequence[Request], results: list[list[Hypothesis]]) -> None:
        """The attention of the search has no rows for a forced prefix, so these lines need a second pass."""
        forced = [index for index, request in enumerate(requests) if request.prefix]
        if not forced:
            return
        attended = self._with_attention([requests[index] for index in forced], [results[index] for index in forced])
        for index, hypotheses in zip(forced, attended, strict=True):
            for n, each in enumerate(hypotheses):
                assert each.attention is not None
                coverage = coverage_of(each.attention, len(requests[index].source), len(each.ids))
                results[index][n] = replace(results[index][n], coverage=coverage)

    def _with_attention(self, requests: Sequence[Request], results: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """The same hypotheses with attention, from a second pass with the hypotheses as prefixes.

        The attention of the search itself is good for coverage only: it has no rows for a forced prefix, and in a batch
        its first row may belong to another sentence (seen with CTranslate2 4.8).
        """
        pairs = [(request, each) for request, nbest in zip(requests, results, strict=True) for each in nbest]
        outputs = self.translator.translate_batch(
            [self._source(request.source) for request, _ in pairs],
            [[self.target_pieces[index] for index in hypothesis.ids] or None for _, hypothesis in pairs],
            beam_size=1,
            max_input_length=0,
            max_decoding_length=max(len(hypothesis.ids) for _, hypothesis in pairs) + 1,
            return_attention=True,
        )
        attended = []
        for (request, hypothesis), output in zip(pairs, outputs, strict=True):
            columns = len(request.source) + 1
            # CTranslate2 gives no rows for an empty translation.
            weights = np.array(output.attention[0] or np.empty((0, columns)), np.float32)
            attended.append(replace(hypothesis, attention=weights[: len(hypothesis.ids), :columns]))
        next_hypothesis = iter(attended)
        return [[next(next_hypothesis) for _ in hypotheses] for hypotheses in results]

    def _translate(
        self, requests: Sequence[Request], options: SearchOptions, limit: int, enough: int, n_best: bool = True
    ) -> list[list[Hypothesis]]:
        """Search until `enough` hypotheses have ended. Returns the n best of them, or with n_best=False all of them."""
        if limit == 1:  # only EOS fits. CTranslate2 refuses such a search
            return [[Hypothesis((), 0.0, 0.0, (), finished=False)] for _ in requests]
        # CTranslate2 divides by a power of the length only, so with gnmt all hypotheses are ranked again. At the end of
        # the search, CTranslate2 leaves out up to beam - 1, the worst. The power 2/3 alpha ranks almost as gnmt does.
        is_gnmt = options.length_penalty == "gnmt"
        count = options.n_best if n_best and not is_gnmt else enough
        # Without a length penalty CTranslate2 stops as soon as the best hypothesis has ended, although an open one
        # could still become one of the n best. A tiny penalty prevents that and does not change the order.
        penalty = options.alpha * (2 / 3 if is_gnmt else 1) or (1e-9 if count > 1 else 0.0)
        outputs = self.translator.translate_batch(
            [self._source(request.source) for request in requests],
            [[self.target_pieces[index] for index in request.prefix] or None for request in requests],
            beam_size=options.beam,
            patience=enough / options.beam,
            num_hypotheses=count,
            length_penalty=penalty,
            disable_unk=UNK in options.forbidden,
            max_input_length=0,
            max_decoding_length=limit - 1,  # CTranslate2 does not count EOS
            min_decoding_length=0,
            return_scores=True,
            return_attention=requests[0].coverage,
        )
        results: list[list[Hypothesis]] = [[] for _ in outputs]
        if any(math.isnan(score) for output in outputs for score in output.scores):
            raise NmtError(f"the weights in {self.folder} are damaged: they have NaN or infinity", _EXPORT_AGAIN)
        for request, output, hypotheses in zip(requests, outputs, results, strict=True):
            attention = output.attention if request.coverage and not request.prefix else ()
            for n, (pieces, score) in enumerate(zip(output.hypotheses, output.scores, strict=True)):
                ids, length = tuple(self.target_ids[piece] for piece in pieces), len(pieces) + 1
                weights = np.array(attention[n], np.float32, ndmin=2) if attention else None
                coverage = None if weights is None else coverage_of(weights, len(request.source), len(ids))
                logprob = score * length**penalty
                if is_gnmt:
                    score = length_normalized(logprob, length, options)
                hypotheses.append(Hypothesis(ids, score, logprob, (), length < limit, coverage=coverage))
        return results

    @_explain_errors()
    def score(self, pairs: Sequence[Pair], options: SearchOptions) -> list[Hypothesis]:
        sources = [self._source(source) for source, _ in pairs]
        targets = [[self.target_pieces[index] for index in target] for _, target in pairs]
        outputs = self.translator.score_batch(sources, targets, max_input_length=0)
        ids = (target for _, target in pairs)
        scored = [scored_target(target, output.log_probs, options) for target, output in zip(ids, outputs, strict=True)]
        if not options.attention:
            return scored
        requests = [Request(tuple(source)) for source, _ in pairs]
        return [hypothesis for (hypothesis,) in self._with_attention(requests, [[each] for each in scored])]

    def _source(self, ids: Sequence[int]) -> list[str]:
        return [*(self.source_pieces[index] for index in ids), self.source_pieces[EOS]]
