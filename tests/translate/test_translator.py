"""WindowTranslator with engines whose output is known in advance."""

from __future__ import annotations

import unicodedata

from support.engines import Echo, Says
from support.small_language import SENTENCES, TEST

from nmt_cli.recipe import schema as recipe
from nmt_cli.search.contract import SearchOptions
from nmt_cli.search.workers import Workers
from nmt_cli.text.vocab import UNK, learn, load_vocab, write_vocab
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
