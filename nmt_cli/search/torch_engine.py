"""The torch engine: the search of beam.py, for every family of models, device and option, and for ensembles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from nmt_cli.data.batches import make_batch, pad
from nmt_cli.errors import NmtError
from nmt_cli.model.base import Seq2Seq, forbid_pad_and_bos
from nmt_cli.model.decoder_only import DecoderOnly, SourceWriter
from nmt_cli.model.device import choose_device, in_parts, out_of_memory
from nmt_cli.search.beam import search
from nmt_cli.search.contract import (
    Hypothesis,
    Pair,
    Request,
    SearchOptions,
    coverage_penalty,
    rescored,
    scored_target,
)
from nmt_cli.search.quality import coverage_of
from nmt_cli.store.checkpoint import load_model
from nmt_cli.text.vocab import PAD

Result = TypeVar("Result")


class TorchEngine:
    name = "torch"
    batch_tokens = 2048  # 1.4 times as fast as 512 in one process; as fast as 512 in two processes

    def __init__(self, paths: Sequence[Path], device: str, verify: bool = True) -> None:
        """Load one model, or an ensemble of several. `verify` compares checksums before anything is loaded."""
        self.device = choose_device(device)
        loaded = [load_model(path, self.device, verify) for path in paths]
        for trained, path in zip(loaded[1:], paths[1:], strict=True):
            if not trained.vocab.same_pieces(loaded[0].vocab):
                raise NmtError(
                    f"{path} has another vocabulary than {paths[0]}, so their probabilities cannot be averaged",
                    "use models that were trained on the same prepared data",
                )
        self.models = [trained.model for trained in loaded]

    def translate(self, requests: Sequence[Request], options: SearchOptions) -> list[list[Hypothesis]]:
        return _in_parts(lambda rows: self._translate(requests[rows], options), len(requests))

    def score(self, pairs: Sequence[Pair], options: SearchOptions) -> list[Hypothesis]:
        return _in_parts(lambda rows: score(self.models, pairs[rows], options, self.device), len(pairs))

    def _translate(self, requests: Sequence[Request], options: SearchOptions) -> list[list[Hypothesis]]:
        results = search(
            [writer_of(model) for model in self.models] if options.generate else self.models,
            torch.from_numpy(pad([request.source for request in requests])).to(self.device),
            replace(options, attention=requests[0].attention or requests[0].coverage),
            [request.prefix for request in requests],
            [request.number for request in requests],
        )
        for index, request in enumerate(requests):
            if request.coverage:
                results[index] = [_with_coverage(request, hypothesis) for hypothesis in results[index]]
            if request.given < len(request.prefix):
                results[index] = [rescored(self, request, hypothesis, options) for hypothesis in results[index]]
                results[index].sort(key=lambda hypothesis: -hypothesis.score)
        return results


def use_one_thread() -> None:
    """In a worker process: compute on one core, because each core has a worker."""
    torch.set_num_threads(1)


def _in_parts(work: Callable[[slice], list[Result]], rows: int) -> list[Result]:
    """The results of all rows of a batch. If memory runs out, the batch is halved, again and again."""
    try:
        return [result for part in in_parts(work, slice(0, rows)) for result in part]
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
    raise NmtError("out of memory, even for a single line", "use fewer --workers or a smaller --beam")


def writer_of(model: Seq2Seq) -> SourceWriter:
    assert isinstance(model, DecoderOnly)  # translate/options.py has checked it
    return SourceWriter(model)


@torch.inference_mode()
def score(
    models: Sequence[Seq2Seq], pairs: Sequence[Pair], options: SearchOptions, device: torch.device
) -> list[Hypothesis]:
    """Score given targets. Several models average their probabilities."""
    batch = make_batch([source for source, _ in pairs], [target for _, target in pairs])
    arrays = (batch.src, batch.tgt_in, batch.tgt_out)
    src, tgt_in, tgt_out = (torch.from_numpy(array).to(device) for array in arrays)
    beta, attends = options.coverage_penalty, options.attention or options.coverage_penalty > 0
    decoded = [model.decode(tgt_in, model.encode(src), attention=attends) for model in models]
    logits = [forbid_pad_and_bos(model_logits.float()) for model_logits, _ in decoded]
    logps = [model_logits.log_softmax(2).gather(2, tgt_out[:, :, None]) for model_logits in logits]
    mean = (torch.stack(logps).logsumexp(0) - torch.tensor(float(len(logps))).log())[:, :, 0]
    lengths = (tgt_out != PAD).sum(1).tolist()
    hypotheses = [
        scored_target(target, row[:length], options)
        for (_, target), row, length in zip(pairs, mean.tolist(), lengths, strict=True)
    ]
    crosses = [weights["cross"][:, -1].float().mean(1) for _, weights in decoded if weights]
    if crosses:  # as in the search: the last layer, averaged over heads and models
        attention = torch.stack(crosses).mean(0).cpu().numpy()  # (B,T,S)
        for n, ((source, _), length) in enumerate(zip(pairs, lengths, strict=True)):
            score = hypotheses[n].score + (coverage_penalty(attention[n, :length], len(source), beta) if beta else 0.0)
            shown = attention[n, :length] if options.attention else None
            hypotheses[n] = replace(hypotheses[n], score=score, attention=shown)
    return hypotheses


def _with_coverage(request: Request, hypothesis: Hypothesis) -> Hypothesis:
    """The hypothesis with its coverage, and with its attention only if that was requested."""
    attention = hypothesis.attention
    if attention is None:
        return hypothesis
    coverage = coverage_of(attention, len(request.source), len(hypothesis.ids))
    return replace(hypothesis, coverage=coverage, attention=attention if request.attention else None)
