"""WindowTranslator with engines whose output is known in advance."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from support.engines import Echo, Says
from support.small_language import SENTENCES, TEST

from nmt_cli.recipe import schema as recipe
from nmt_cli.search.contract import SearchOptions
from nmt_cli.search.ct2_engine import CTranslate2Engine
from nmt_cli.search.torch_engine import TorchEngine
from nmt_cli.search.workers import Workers
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK, Imported, learn, load_vocab, write_vocab
from nmt_cli.translate.options import Settings
from nmt_cli.translate.rows import Row
from nmt_cli.translate.translator import WindowTranslator


def test_newline_written_in_bytes_stays_inside_its_line(trained, tmp_path):
    """With byte fallback every byte is a piece, so a model can write a newline or half a character."""
    settings = recipe.Vocab(size=400, byte_fallback=True)
    texts = [side for pair in TEST[:50] for side in pair]
    write_vocab(tmp_path / "v", {"joint": learn(iter(texts), settings, "toy")}, trained.recipe.data, settings)
    vocab = load_vocab(tmp_path / "v")
    written = [vocab.target.piece_to_id(piece) for piece in ("▁la", "<0x0A>", "<0x0D>", "<0x00>", "<0xE2>", "▁la")]
    assert UNK not in written
    translator = WindowTranslator(Workers(Says(written), 1, False), vocab, Settings(SearchOptions(), 4000, 100))
    (found,) = translator.translate([Row(1, "the cat.")])
    assert found.text.startswith("la") and found.text.endswith("la")
    assert not any(unicodedata.category(character).startswith("C") for character in found.text)


@pytest.mark.parametrize("name", ["torch", "ctranslate2"])
@pytest.mark.parametrize("length_penalty", ["power", "gnmt"])
def test_codes_of_languages_are_no_part_of_a_scored_translation(model, trained, name, length_penalty):
    """An imported vocabulary puts codes before every source and target. The code of the target is forced, so its log p
    does not count."""
    pytest.importorskip("ctranslate2")
    code = trained.vocab.target.piece_to_id("▁le")  # the model has learned that a new word follows
    imported = Imported(PAD, UNK, EOS, BOS, trained.vocab.sizes, source_prefix=(30, 31), target_prefix=(code,))
    vocab = replace(trained.vocab, imported=imported)
    engine = (
        TorchEngine([model], "cpu")
        if name == "torch"
        else CTranslate2Engine(model / "model/ctranslate2", trained.vocab, "float32", "cpu", 1)
    )
    search = SearchOptions(length_penalty=length_penalty, forbidden=(UNK,))
    settings = Settings(search, 4000, 100, protect=False, align=True, tokens=True)
    translator = WindowTranslator(Workers(engine, 1, False), vocab, settings)
    lines = [*SENTENCES[:6], *(f"{one} {two}" for one, two in zip(SENTENCES[:6], SENTENCES[6:12], strict=True))]
    found = translator.translate([Row(n, line) for n, line in enumerate(lines, 1)])
    engine.translate = None  # the attention of given translations needs no search
    scored = translator.score([Row(one.line, one.source, one.text) for one in found])
    # The model may write a word in other pieces than those that its vocabulary divides the word into.
    same = [(one, two) for one, two in zip(found, scored, strict=True) if one.best.tokens == two.best.tokens]
    assert {"split" in one.flags for one, _ in same} == {True, False}
    for one, two in same:  # the search gives the probability of UNK to the other pieces
        assert two.score == pytest.approx(one.score, abs=1e-2)
        assert two.best.logprob == pytest.approx(one.best.logprob, abs=1e-2)
        assert two.best.token_logprobs == pytest.approx(one.best.token_logprobs, abs=1e-2)
        assert (two.best.length, two.best.alignment) == (one.best.length, one.best.alignment)


def test_window_is_batched_by_length_and_keeps_the_order(trained):
    engine = Echo()
    translator = WindowTranslator(Workers(engine, 1, False), trained.vocab, Settings(SearchOptions(), 40, 200))
    lines = ["the cat.", "", *SENTENCES[:9], "x {name} y."]
    found = translator.translate([Row(n, line) for n, line in enumerate(lines, 1)])
    assert [one.line for one in found] == list(range(1, len(lines) + 1))
    assert found[1].text == "" and "{name}" in found[-1].text
    assert all(request.source for batch in engine.seen for request in batch)  # the engine gets no blank lines
    for batch in engine.seen:
        assert len(batch) == 1 or len(batch) * (max(len(request.source) for request in batch) + 1) <= 40
