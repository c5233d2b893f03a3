"""The reference engine: search.py over any architecture, on any device, with any option, and ensembles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from nmt_cli.data.batches import make_batch, pad
from nmt_cli.errors import NmtError
from nmt_cli.model.base import forbid_pad_and_bos
from nmt_cli.model.device import choose_device
from nmt_cli.search.beam import search
from nmt_cli.search.contract import Hypothesis, Request, SearchOptions, length_normalized, rescored
from nmt_cli.store.checkpoint import load_model
from nmt_cli.text.vocab import PAD


class TorchEngine:
    name = "torch"
    batch_tokens = 2048  # in one process 1.4 times as fast as 512; in two, alike

    def __init__(self, paths: Sequence[Path], device: str, threads: int = 0) -> None:
        if threads:
            torch.set_num_threads(threads)
        self.device = choose_device(device)
        trained = [load_model(path, self.device) for path in paths]
        for other, path in zip(trained[1:], paths[1:], strict=True):
            if not other.vocab.same_pieces(trained[0].vocab):
                raise NmtError(
                    f"{path} has another vocabulary than the first model: their probabilities cannot be averaged",
                    "an ensemble needs models trained on the same prepared data",
                )
        self.models = [one.model for one in trained]

    def translate(self, requests: Sequence[Request], options: SearchOptions) -> list[list[Hypothesis]]:
        found = search(
            self.models,
            torch.from_numpy(pad([request.source for request in requests])).to(self.device),
            replace(options, attention=requests[0].attention),
            [request.prefix for request in requests],
            [request.number for request in requests],
        )
        return [
            found_here
            if request.free == len(request.prefix)
            else [rescored(self, request, one, options) for one in found_here]
            for request, found_here in zip(requests, found, strict=True)
        ]

    @torch.inference_mode()
    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], alpha: float) -> list[Hypothesis]:
        batch = make_batch([source for source, _ in pairs], [target for _, target in pairs])
        arrays = (batch.src, batch.tgt_in, batch.tgt_out)
        src, tgt_in, tgt_out = (torch.from_numpy(array).to(self.device) for array in arrays)
        logits = [forbid_pad_and_bos(model(src, tgt_in).float()) for model in self.models]
        logps = [one.log_softmax(2).gather(2, tgt_out[:, :, None]) for one in logits]
        mean = (torch.stack(logps).logsumexp(0) - torch.tensor(float(len(logps))).log())[:, :, 0]
        scored = []
        for (_, target), row, real in zip(pairs, mean.tolist(), (tgt_out != PAD).sum(1).tolist(), strict=True):
            logprobs = tuple(row[:real])
            total = sum(logprobs)
            score = length_normalized(total, len(logprobs), alpha)
            scored.append(Hypothesis(tuple(target), score, total, logprobs, finished=True))
        return scored
