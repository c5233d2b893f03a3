"""The attention that `nmt inspect` and `nmt_cli.attention` compute: against the model itself, and for every family."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.drawings import plain
from support.tiny_run import SENTENCE, TEXT
from torch import nn

from nmt_cli.errors import NmtError
from nmt_cli.inspect.attention import Attention, attention, source_ids
from nmt_cli.inspect.beam_tree import beam_steps
from nmt_cli.inspect.draw import as_json, html_page, show_attention, show_heads
from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.build import build_model
from nmt_cli.recipe.schema import DecoderOnly, Vocab
from nmt_cli.search.beam import search
from nmt_cli.search.contract import options_of
from nmt_cli.store.checkpoint import Trained
from nmt_cli.text.alignment import pharaoh
from nmt_cli.text.lines import one_line
from nmt_cli.text.vocab import BOS, EOS, PAD, learn, load_vocab, write_vocab


def test_weights_over_pieces_equal_the_models_own(trained):
    """With pieces and special tokens, nothing is merged, left out or averaged."""
    result = attention(trained, SENTENCE, "le chat", pieces=True, special=True)
    ids, target = trained.vocab.encode_source([SENTENCE])[0], trained.vocab.encode_target(["le chat"])[0]
    with torch.inference_mode():
        memory = trained.model.encode(torch.tensor([[*ids, EOS]]), attention=True)
        logits, weights = trained.model.decode(torch.tensor([[BOS, *target]]), memory, attention=True)
    expected = {"cross": weights["cross"], "decoder": weights["decoder"], "encoder": memory["attention"]}
    for kind, tensor in expected.items():
        np.testing.assert_allclose(result.weights[kind], tensor[0].numpy(), atol=1e-6)
        np.testing.assert_allclose(result.weights[kind].sum(-1), 1, atol=1e-5)
        assert result.special_share[kind] == pytest.approx(0, abs=1e-5)
    assert result.columns["cross"][-1] == result.rows["cross"][-1] == "</s>"
    assert result.rows["decoder"][0] == "<s>" and "".join(result.rows["decoder"][1:]) == "▁le▁chat"
    logits = logits[0].clone()
    logits[:, [PAD, BOS]] = -np.inf  # the search never writes them
    per_token = logits.log_softmax(1)[range(len(target) + 1), [*target, EOS]]
    assert result.logprob == pytest.approx(float(per_token.sum()))


def test_weights_over_words_are_sums_of_columns_and_means_of_rows(trained):
    words, pieces = (attention(trained, SENTENCE, "le chat vert.", pieces=by_piece) for by_piece in (False, True))
    assert words.columns["cross"] == ["I", "like", "the", "green", "cat", "."]
    assert words.rows["cross"] == ["le", "chat", "vert", "."]
    weights = words.weights["cross"]
    np.testing.assert_allclose(weights[..., -1, :].sum(-1), pieces.weights["cross"][..., -1, :].sum(-1))
    assert (
        words.special_share["cross"] == pytest.approx(1 - weights.sum(-1).mean()) and words.special_share["cross"] > 0
    )
    np.testing.assert_allclose(words.mean("cross"), weights.mean((0, 1)))
    np.testing.assert_allclose(words.mean("cross", 2), weights[1].mean(0))
    np.testing.assert_allclose(words.mean("cross", None, 2), weights[:, 1].mean(0))
    np.testing.assert_allclose(words.mean("cross", 1, 2), weights[0, 1])


def test_shares_of_a_head_that_looks_back_and_of_one_that_looks_at_the_full_stop():
    back, stop = np.eye(4, k=-1), np.tile([0, 0, 0, 1.0], (4, 1))
    words = ["a", "b", "c", "."]
    weights, entropy = np.stack([back, stop])[None], np.zeros((1, 2))
    by_kind = ({"encoder": value} for value in (weights, words, words, entropy, 0.0))
    result = Attention("", "", True, 0.0, *by_kind, [], [], None)
    assert {name: shares[0].round(2).tolist() for name, shares in result.shares("encoder").items()} == {
        "previous": [1, 0], "same": [0, 0.25], "next": [0, 0.33], "punctuation": [0, 1]
    }  # fmt: skip


def test_without_a_target_the_model_translates_by_beam_search(trained):
    best = search([trained.model], torch.tensor([source_ids(trained, SENTENCE)]), options_of(trained.recipe))[0][0]
    result = attention(trained, SENTENCE)
    assert result.target == one_line(trained.vocab.decode_target([list(best.ids)])[0]) and not result.target_given
    assert result.logprob == pytest.approx(best.logprob, abs=1e-3)


def test_a_path_gives_the_same_attention_as_a_loaded_model(folder, trained):
    by_path, loaded = (attention(model, SENTENCE, "le chat") for model in (str(folder / "run"), trained))
    np.testing.assert_array_equal(by_path.weights["cross"], loaded.weights["cross"])
    assert by_path.logprob == loaded.logprob


def test_bytes_become_characters(folder, tmp_path, trained):
    """With byte fallback, a character without a piece is several byte pieces. The column shows the character."""
    settings = Vocab(size=300, byte_fallback=True)
    write_vocab(tmp_path / "v", {"joint": learn(iter(TEXT[:2]), settings, "toy")}, trained.recipe.data, settings)
    vocab = load_vocab(tmp_path / "v")
    model = build_model(trained.recipe.model, *vocab.sizes).eval()
    result = attention(Trained(model, vocab, trained.recipe, {}), "the ☂ cat")
    assert result.columns["encoder"] == ["the", "☂", "cat"]


class Recurrent(Seq2Seq):
    """The smallest model that keeps the contract: one layer and head of cross-attention, or no attention at all."""

    def __init__(self, vocab: int, attends: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, 4)
        self.attends = attends

    @property
    def output_weight(self):
        return self.embedding.weight

    def encode(self, src, attention=False, keep=None):
        return {"keys": self.embedding(src)}

    def start(self, memory):
        return {"age": memory["keys"].new_zeros(len(memory["keys"]))}

    def step(self, prev, memory, state, attention=False):
        return self.project(self.embedding(prev)), None, state

    def features(self, tgt_in, memory, attention=False, keep=None):
        queries = self.embedding(tgt_in)
        weights = {"cross": (queries @ memory["keys"].mT).softmax(-1)[:, None, None]} if self.attends else None
        return queries, weights if attention else None


@pytest.fixture
def recurrent(trained):
    torch.manual_seed(1)
    return lambda attends: replace(trained, model=Recurrent(70, attends).eval())


def test_a_model_that_has_only_cross_attention(recurrent):
    result = attention(recurrent(True), SENTENCE, "le chat")
    assert list(result.weights) == ["cross"]
    drawn = plain(show_attention(result, "cross", None, None, 80, "blocks"))
    assert "cross-attention, its only layer, its only head" in drawn and "chat " in drawn
    assert re.fullmatch(r"\d-[01] \d-[01]", pharaoh(result.alignment()))
    with pytest.raises(NmtError, match="no encoder self-attention") as refused:
        result.mean("encoder")
    assert refused.value.hint == "use --kind cross"
    with pytest.raises(NmtError, match="there is no layer 2") as refused:
        result.mean("cross", 2)
    assert "one layer, number 1" in refused.value.hint


def test_attention_to_the_target_is_not_attention_to_special_tokens(trained):
    """A decoder-only model has one softmax over source and target."""
    torch.manual_seed(1)
    model = build_model(DecoderOnly("decoder", 16, 2, 32, 2, max_positions=100), 70, 70).eval()
    result = attention(replace(trained, model=model), SENTENCE, "le chat", special=True)
    assert result.weights["cross"].sum(-1).mean() < 0.95
    assert result.special_share["cross"] == pytest.approx(0, abs=1e-6)


def test_a_model_without_attention_is_refused(recurrent):
    model = recurrent(False)
    result = attention(model, SENTENCE, "le chat")
    for ask in (lambda: result.mean("cross"), result.alignment, lambda: html_page(result)):
        with pytest.raises(NmtError, match="this model has no attention to show") as refused:
            ask()
        assert "--show beam" in refused.value.hint
    assert as_json(result)["attention"] == {} and as_json(result)["alignment"] is None
    assert beam_steps(model, SENTENCE, 2)[0]


def test_an_empty_translation_is_drawn_as_empty(trained):
    class AlwaysEnds(type(trained.model)):
        def project(self, features):
            return super().project(features).index_fill(-1, torch.tensor([EOS]), 1e4)

    model = AlwaysEnds(trained.recipe.model, 70, 70)
    result = attention(replace(trained, model=model.eval()), SENTENCE)
    assert result.target == "" and result.rows["cross"] == [] and result.alignment() == []
    drawn = plain(show_attention(result, "cross", None, None, 80, "blocks"))
    assert "(empty)" in drawn and "the translation is empty" in drawn
    assert "the translation is empty" in plain(show_heads(result, "cross", None, 80, "blocks"))
    assert "green" in plain(show_heads(result, "encoder", None, 80, "blocks"))
    json.dumps(as_json(result), allow_nan=False)
