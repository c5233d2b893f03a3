"""Engine against engine: the same n best, scores and attention from torch and CTranslate2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_language import SENTENCES
from support.small_models import briefly_trained

from nmt_cli.export.ctranslate2 import to_ctranslate2
from nmt_cli.search.contract import Request, SearchOptions
from nmt_cli.search.ct2_engine import CTranslate2Engine
from nmt_cli.search.torch_engine import TorchEngine
from nmt_cli.store.checkpoint import Trained
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK

pytest.importorskip("ctranslate2")


VARIANTS = [
    {"norm": "pre", "tie": "all"},
    {"norm": "post", "tie": "all"},
    {"norm": "pre", "tie": "none", "positions": "learned", "activation": "gelu"},
    {"norm": "post", "tie": "target", "positions": "learned", "activation": "swish"},
    {"norm": "post", "tie": "none"},
]


def both_engines(trained: Trained, folder: Path) -> tuple[TorchEngine, CTranslate2Engine]:
    to_ctranslate2(trained, folder / "ct2")
    torch_engine = TorchEngine.__new__(TorchEngine)
    torch_engine.models, torch_engine.device = [trained.model], torch.device("cpu")
    return torch_engine, CTranslate2Engine(folder / "ct2", trained.vocab, "float32", "cpu", 1)


@torch.inference_mode()
def end_ranks(engine: TorchEngine, source: list[int], prefix: tuple[int, ...]) -> int:
    """How many pieces are more probable behind the prefix than the end is."""
    logits = engine.models[0](torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *prefix]]))[0, -1]
    return int((logits > logits[EOS]).sum())


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: f"{v['norm']}-{v['tie']}")
def test_both_engines_find_the_same(trained, tmp_path, variant):
    """n-best texts, scores and attention, with and without prefixes, greedy and by beam, with the same rule to stop."""
    reference, fast = both_engines(briefly_trained(trained, **variant), tmp_path)
    sources = sorted(trained.vocab.encode_source(SENTENCES[:12]), key=len)
    wide = {"patience": 1.0}
    for options in (
        SearchOptions(beam=1),
        SearchOptions(beam=4, n_best=3, alpha=0.7, **wide),
        SearchOptions(beam=5, alpha=1.2, **wide),
        SearchOptions(beam=5, alpha=0.0, n_best=3, **wide),
        SearchOptions(beam=5, n_best=3, patience=0.5),
        SearchOptions(beam=5, n_best=2, patience=1.25),
    ):
        second = range(1, 2 * options.beam)
        for prefix in ((), (20, 30)):
            requests = [Request(tuple(source), prefix, attention=True, tokens=True) for source in sources]
            a, b = reference.translate(requests, options), fast.translate(requests, options)
            # At the longest length CTranslate2 has other rules, and for an end right behind a prefix.
            alike = [
                all(h.finished for found in pair for h in found) and end_ranks(reference, source, prefix) not in second
                for source, *pair in zip(sources, a, b, strict=True)
            ]
            assert sum(alike) >= len(sources) / 2
            pairs = [pair for pair, same in zip(zip(a, b, strict=True), alike, strict=True) if same]
            widths = [len(source) + 1 for source, same in zip(sources, alike, strict=True) if same]
            for (ours, theirs), width in zip(pairs, widths, strict=True):
                assert [h.ids for h in ours] == [h.ids for h in theirs]
                assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)
                for one, two in zip(ours, theirs, strict=True):
                    assert one.token_logprobs == pytest.approx(two.token_logprobs, abs=1e-3)
                    assert two.attention.shape == (len(two.ids), width)
                    np.testing.assert_allclose(one.attention[: len(one.ids), :width], two.attention, atol=1e-4)
    pairs = [(source, source[::-1][:9]) for source in sources]
    for one, two in zip(reference.score(pairs, 0.5), fast.score(pairs, 0.5), strict=True):
        assert one.score == pytest.approx(two.score, abs=1e-4)


def test_the_trained_model_in_both_engines(model, trained):
    reference = TorchEngine([model], "cpu")
    fast = CTranslate2Engine(model / "model/ctranslate2", trained.vocab, "float32", "cpu", 1)
    requests = [Request(tuple(ids)) for ids in sorted(trained.vocab.encode_source(SENTENCES), key=len)]
    options = SearchOptions(n_best=3, patience=1.0, forbidden=(UNK,))  # as every command has it
    for ours, theirs in zip(reference.translate(requests, options), fast.translate(requests, options), strict=True):
        assert [h.ids for h in ours] == [h.ids for h in theirs]
        assert not any({PAD, BOS} & set(h.ids) for h in theirs)  # label smoothing would have them on a list of n best
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)
    # By default the reference stops when it is certain, and CTranslate2, which cannot, late: rarely too early.
    options = SearchOptions(forbidden=(UNK,))
    ours, theirs = ([found[0] for found in engine.translate(requests, options)] for engine in (reference, fast))
    assert all(one.score >= two.score - 1e-3 for one, two in zip(ours, theirs, strict=True))
    assert sum(one.ids != two.ids for one, two in zip(ours, theirs, strict=True)) <= 0.1 * len(requests)


def test_sampling_is_the_same_for_the_same_seed(model, trained):
    engine = TorchEngine([model], "cpu")
    requests = [Request(tuple(ids), number=n) for n, ids in enumerate(trained.vocab.encode_source(SENTENCES[:6]))]
    one, two, other = (
        engine.translate(requests, SearchOptions(sample=True, temperature=3, seed=seed)) for seed in (7, 7, 8)
    )
    assert one == two != other
    alone = engine.translate(requests[2:3], SearchOptions(sample=True, temperature=3, seed=7))
    assert alone[0][0].ids == one[2][0].ids
