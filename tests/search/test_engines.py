"""Both engines give the same n best, scores and attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_language import SENTENCES
from support.small_models import briefly_trained

from nmt_cli.errors import NmtError
from nmt_cli.export.ctranslate2 import to_ctranslate2
from nmt_cli.search import torch_engine
from nmt_cli.search.contract import Request, SearchOptions, length_limit
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
    {"norm": "pre", "tie": "all", "positions": "none"},
    {"norm": "post", "tie": "all", "positions_join": "concat"},
]
WIDE = {"patience": 1.0}
OPTIONS = [
    SearchOptions(beam=1),
    SearchOptions(beam=4, n_best=3, alpha=0.7, **WIDE),
    SearchOptions(beam=5, alpha=1.2, **WIDE),
    SearchOptions(beam=5, alpha=0.0, n_best=3, **WIDE),
    SearchOptions(beam=5, n_best=3, patience=0.5),
    SearchOptions(beam=5, n_best=2, patience=1.25),
    SearchOptions(beam=4, n_best=2, alpha=0.6, length_penalty="gnmt", max_ratio=1.0, max_extra=50, **WIDE),
]
# The search does not know the variant of its model, so two variants meet all options. The others meet two options.
CASES = [(variant, OPTIONS if number < 2 else OPTIONS[:2]) for number, variant in enumerate(VARIANTS)]


def both_engines(trained: Trained, folder: Path) -> tuple[TorchEngine, CTranslate2Engine]:
    to_ctranslate2(trained, folder / "ct2")
    torch_engine = TorchEngine.__new__(TorchEngine)
    torch_engine.models, torch_engine.device = [trained.model], torch.device("cpu")
    return torch_engine, CTranslate2Engine(folder / "ct2", trained.vocab, "float32", "cpu", 1)


@torch.inference_mode()
def rank_of_end(engine: TorchEngine, source: list[int], prefix: tuple[int, ...]) -> int:
    """The number of pieces that are more probable after the prefix than EOS."""
    logits = engine.models[0](torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *prefix]]))[0, -1]
    return int((logits > logits[EOS]).sum())


@pytest.mark.parametrize(("variant", "several_options"), CASES, ids=["-".join(v.values()) for v in VARIANTS])
def test_engines_give_the_same_hypotheses(trained, tmp_path, variant, several_options):
    """With and without prefixes, by greedy and by beam search. Both engines get the same patience."""
    reference, fast = both_engines(briefly_trained(trained, **variant), tmp_path)
    sources = sorted(trained.vocab.encode_source(SENTENCES[:12]), key=len)
    ranks = {prefix: [rank_of_end(reference, source, prefix) for source in sources] for prefix in ((), (20, 30))}
    for options in several_options:
        for prefix, rank in ranks.items():
            requests = [Request(tuple(source), prefix, len(prefix), attention=True, tokens=True) for source in sources]
            results = zip(reference.translate(requests, options), fast.translate(requests, options), strict=True)
            # CTranslate2 has other rules at the length limit, and where EOS competes right after the prefix.
            comparable = [
                (len(source) + 1, ours, theirs)
                for source, (ours, theirs), pieces in zip(sources, results, rank, strict=True)
                if all(h.finished for h in (*ours, *theirs)) and not 1 <= pieces < 2 * options.beam
            ]
            assert len(comparable) >= len(sources) / 2
            for width, ours, theirs in comparable:
                assert [h.ids for h in ours] == [h.ids for h in theirs]
                assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)
                for one, two in zip(ours, theirs, strict=True):
                    assert one.token_logprobs == pytest.approx(two.token_logprobs, abs=1e-3)
                    assert two.attention.shape == (len(two.ids), width)
                    np.testing.assert_allclose(one.attention[: len(one.ids), :width], two.attention, atol=1e-4)
    pairs = [(source, source[::-1][:9]) for source in sources]
    for one, two in zip(*(engine.score(pairs, SearchOptions(alpha=0.5)) for engine in (reference, fast)), strict=True):
        assert one.score == pytest.approx(two.score, abs=1e-4)


def test_engines_agree_on_a_trained_model(model, trained):
    reference = TorchEngine([model], "cpu")
    fast = CTranslate2Engine(model / "model/ctranslate2", trained.vocab, "float32", "cpu", 1)
    requests = [Request(tuple(ids)) for ids in sorted(trained.vocab.encode_source(SENTENCES), key=len)]
    options = SearchOptions(n_best=3, patience=1.0, forbidden=(UNK,))  # every command forbids UNK
    for ours, theirs in zip(reference.translate(requests, options), fast.translate(requests, options), strict=True):
        assert [h.ids for h in ours] == [h.ids for h in theirs]
        # Label smoothing gives PAD and BOS some probability, so they could appear in an n-best list.
        assert not any({PAD, BOS} & set(h.ids) for h in theirs)
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)
    # With the default patience, the torch engine stops when no open hypothesis can win. CTranslate2 has no such proof
    # and may stop too early, but rarely.
    options = SearchOptions(forbidden=(UNK,))
    ours, theirs = ([best for best, *_ in engine.translate(requests, options)] for engine in (reference, fast))
    assert all(one.score >= two.score - 1e-3 for one, two in zip(ours, theirs, strict=True))
    assert sum(one.ids != two.ids for one, two in zip(ours, theirs, strict=True)) <= 0.1 * len(requests)


@pytest.fixture(scope="module")
def engines(model, trained):
    """The torch engine and the ctranslate2 engine with the trained model."""
    fast = CTranslate2Engine(model / "model/ctranslate2", trained.vocab, "float32", "cpu", 1)
    return TorchEngine([model], "cpu"), fast


def sentences(trained) -> list[Request]:
    return [Request(tuple(ids)) for ids in trained.vocab.encode_source(SENTENCES)]


@pytest.mark.parametrize("ratio", [0.5, 0.6, 0.7, 0.8, 1.0])
def test_finished_translation_is_not_displaced_by_ones_that_the_limit_ended(engines, trained, ratio):
    """CTranslate2 ranks a hypothesis that the limit ended without its EOS."""
    options = SearchOptions(max_ratio=ratio, max_extra=1, patience=3, forbidden=(UNK,))
    results = [engine.translate(sentences(trained), options) for engine in engines]
    for (ours, *_), (theirs, *_) in zip(*results, strict=True):
        assert not ours.finished or theirs.score >= ours.score - 1e-3


@pytest.mark.parametrize("options", [{"n_best": 2, "patience": 1.5}, {"n_best": 5, "alpha": 0.2, "patience": 2}])
def test_engines_agree_with_the_length_penalty_of_gnmt(engines, trained, options):
    """A short translation may win although CTranslate2, which divides by a power of the length, ranks it low."""
    search = SearchOptions(length_penalty="gnmt", forbidden=(UNK,), **options)
    for ours, theirs in zip(*(engine.translate(sentences(trained), search) for engine in engines), strict=True):
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-3)


@pytest.mark.parametrize("limits", [{"max_ratio": 0, "max_extra": 1}, {"max_ratio": 0.1, "max_extra": 1}])
def test_length_limit_may_leave_room_for_the_end_mark_only(engines, trained, limits):
    options = SearchOptions(n_best=2, **limits)
    requests = [replace(request, attention=True, tokens=True, coverage=True) for request in sentences(trained)]
    results = zip(requests, *(engine.translate(requests, options) for engine in engines), strict=True)
    empty = [(ours, theirs) for request, ours, theirs in results if length_limit(len(request.source), 0, options) == 1]
    assert empty
    for ours, theirs in empty:
        assert [h.ids for h in ours] == [h.ids for h in theirs] == [()]
        assert ours[0].score == pytest.approx(theirs[0].score, abs=1e-4) and not theirs[0].finished


def test_n_best_behind_a_forced_term_are_best_first(engines, trained):
    """The log p of a forced term counts. It is the same for all, but the length divides it."""
    (prefix,) = trained.vocab.encode_target(["le chat"])
    requests = [Request(request.source, tuple(prefix)) for request in sentences(trained)]
    for engine in engines:
        for hypotheses in engine.translate(requests, SearchOptions(n_best=5, forbidden=(UNK,))):
            assert hypotheses == sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


def test_samples_depend_on_the_seed_and_not_on_the_batch(model, trained):
    engine = TorchEngine([model], "cpu")
    requests = [Request(tuple(ids), number=n) for n, ids in enumerate(trained.vocab.encode_source(SENTENCES[:6]))]
    one, two, other = (
        engine.translate(requests, SearchOptions(sample=True, temperature=3, seed=seed)) for seed in (7, 7, 8)
    )
    assert one == two != other
    alone = engine.translate(requests[2:3], SearchOptions(sample=True, temperature=3, seed=7))
    assert alone[0][0].ids == one[2][0].ids


def test_batch_that_does_not_fit_into_memory_is_halved(model, trained, monkeypatch):
    engine, options = TorchEngine([model], "cpu"), SearchOptions(beam=2)
    sources = trained.vocab.encode_source(SENTENCES[:7])
    requests, pairs = [Request(tuple(ids)) for ids in sources], list(zip(sources, sources, strict=True))
    found, scored = engine.translate(requests, options), engine.score(pairs, options)
    search, score, most, sizes = torch_engine.search, torch_engine.score, 2, []

    def limited(work, rows):
        if rows > most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
        sizes.append(rows)
        return work()

    monkeypatch.setattr(torch_engine, "search", lambda *args: limited(lambda: search(*args), len(args[1])))
    monkeypatch.setattr(torch_engine, "score", lambda *args: limited(lambda: score(*args), len(args[1])))
    assert [[h.ids for h in n_best] for n_best in engine.translate(requests, options)] == [
        [h.ids for h in n_best] for n_best in found
    ]
    assert [h.logprob for h in engine.score(pairs, options)] == pytest.approx([h.logprob for h in scored], abs=1e-3)
    assert sum(sizes) == 2 * 7
    most = 0
    for run in (lambda: engine.translate(requests, options), lambda: engine.score(pairs, options)):
        with pytest.raises(NmtError, match="out of memory, even for a single line"):
            run()
