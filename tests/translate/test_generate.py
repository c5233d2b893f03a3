"""`--generate`: a decoder-only model continues a text."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.models import DECODERS, VOCAB, assert_close, randomized
from support.tiny_run import ABOUT, RECIPE, TEXT
from torch import nn

from nmt_cli.errors import NmtError
from nmt_cli.model.build import build_model
from nmt_cli.model.decoder_only import SourceWriter
from nmt_cli.recipe.load import load_recipe
from nmt_cli.search.beam import search
from nmt_cli.search.contract import SearchOptions
from nmt_cli.store.checkpoint import load_model, save_model
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK, learn, write_vocab
from nmt_cli.translate.options import check_command
from nmt_cli.translate.translator import load


def save(folder, **changes):
    (folder / "toy.toml").write_text(RECIPE)
    recipe = load_recipe(folder / "toy.toml", changes)
    write_vocab(folder / "vocab", {"joint": learn(iter(TEXT), recipe.vocab, "toy")}, recipe.data, recipe.vocab)
    torch.manual_seed(3)
    model = build_model(recipe.model, 70, 70)
    nn.init.normal_(model.output_weight, std=0.7)
    save_model(folder / "run", model.state_dict(), recipe, folder / "vocab", ABOUT)
    return folder / "run"


DECODER = {"model.family": "decoder", "model.dim": 16, "model.heads": 2, "model.ff": 16, "model.layers": 2}


@torch.no_grad()
def next_logp(model, ids: list[int]) -> torch.Tensor:
    """log p of the token behind the ids, by the pass that training uses."""
    logits = model.project(model.read_source(torch.tensor([ids]))[0])[0, -1]
    logits[[PAD, BOS]] = -torch.inf
    return logits.log_softmax(0)


@pytest.mark.parametrize("name", ["decoder", "decoder-post"])
def test_exhaustive_beam_finds_the_best_continuations(name):
    model = randomized(DECODERS[name])
    prompts = [[7, 9, 5], [4]]
    src = torch.tensor([[7, 9, 5, EOS], [4, EOS, PAD, PAD]])
    allowed = [EOS, 11, 12, 13]
    forbidden = tuple(sorted(set(range(UNK + 1, VOCAB)) - {*allowed, BOS}))
    options = SearchOptions(beam=100, n_best=5, generate=True, max_ratio=0.0, max_extra=3, forbidden=(*forbidden,))
    found = search([SourceWriter(model)], src, options, prompts)
    for prompt, hypotheses in zip(prompts, found, strict=True):
        expected = []
        for length in range(3):
            for more in itertools.product((UNK, *allowed[1:]), repeat=length):
                ids = [*prompt, *more]
                steps = [next_logp(model, ids[:n])[ids[n]].item() for n in range(len(prompt), len(ids))]
                total = sum(steps) + next_logp(model, ids)[EOS].item()
                expected.append((tuple(ids), total / (len(ids) + 1)))
        expected.sort(key=lambda pair: -pair[1])
        assert [h.ids for h in hypotheses] == [ids for ids, _ in expected[:5]]
        assert_close(torch.tensor([h.score for h in hypotheses]), torch.tensor([s for _, s in expected[:5]]), 1e-4)


def test_lines_are_continued_greedily_and_by_sampling(tmp_path):
    run = save(tmp_path, **DECODER, **{"train.source_loss": 1.0})
    trained = load_model(run)
    with load(run, workers=1) as translator:
        prompt, blank = translator.translate(["I like 犬 the ", " "], generate=True, beam=1)
        assert blank.text == "" and prompt.text.startswith("I like 犬 the")
        ids = trained.vocab.encode_source(["I like 犬 the"])[0]
        known = len(ids)
        while len(ids) < 2 * known + known + 10 - 1:
            logp = next_logp(trained.model, ids)
            logp[1] = -torch.inf  # UNK is never written
            if (token := int(logp.argmax())) == EOS:
                break
            ids.append(token)
        decode = trained.vocab.source.decode
        assert prompt.text == "I like 犬 the" + decode(ids)[len(decode(ids[:known])) :]
        assert prompt.best.length == len(ids) + 1
        samples = [translator.translate("the dog", generate=True, sample=True, seed=seed).text for seed in (1, 1, 2)]
        assert samples[0] == samples[1] != samples[2] and all(text.startswith("the dog") for text in samples)
        with pytest.raises(NmtError, match=r"the prompt in line 1 has .* pieces"):
            translator.translate("the cat " * 40, generate=True)


def test_other_models_and_options_are_refused(tmp_path):
    (tmp_path / "plain").mkdir()
    cases = {
        tmp_path: ({}, '--generate needs a decoder-only model, not one with model.family = "transformer"'),
        tmp_path / "plain": (DECODER, "this model has not learned to continue a text"),
    }
    for folder, (changes, problem) in cases.items():
        with load(save(folder, **changes)) as translator, pytest.raises(NmtError, match=problem):
            translator.translate("the dog", generate=True)
    with pytest.raises(NmtError, match="--generate cannot be combined with"):
        check_command("jsonl", False, None, {"generate": True, "align": True, "n_best": 1}, None, [])
