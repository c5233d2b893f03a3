"""Translations that repeat themselves."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from support.engines import Says
from support.small_language import TEST

from nmt_cli.recipe import schema as recipe
from nmt_cli.search.contract import Hypothesis, SearchOptions
from nmt_cli.search.workers import Workers
from nmt_cli.store.checkpoint import save_model
from nmt_cli.text.vocab import Vocab, learn, load_vocab, write_vocab
from nmt_cli.translate.line import cut_loops
from nmt_cli.translate.options import Settings
from nmt_cli.translate.rows import Row
from nmt_cli.translate.translator import WindowTranslator


@pytest.mark.parametrize(
    ("ids", "source", "expected"),
    [
        ("abcabcabcabc", "x", "abc"),
        ("xabababababy", "x", "xaby"),
        ("xabcabcabcabcady", "x", "xabcady"),  # an incomplete repeat before other text stays
        ("xabcabcabcabca", "x", "xabc"),  # an incomplete repeat at the end goes
        ("abcabcabcabcabc", "xyzxyzxyz", "abcabcabc"),  # as often as in the source
        ("aaaa", "x", "a"),
        ("aaab", "x", "aaab"),
        ("ha ha ha ha ha", "he he he he he", "ha ha ha ha ha"),  # the source repeats itself, too
        ("aaaabbbb", "x", "ab"),
        ("", "x", ""),
        ("10000000", "ten million", "10000000"),  # every digit is a piece
        ("wait.....", "wait...", "wait....."),
        ("." * 30, "x", "."),
        ("price abababababab", "price 100000", "price ababababab"),  # as often as the zeros of the source
        ("x" + 5 * "abcdefghijkl", "y", "xabcdefghijkl"),
        ("ha ha ha ha ha ha ha ha ", "he he he he ", "ha ha ha ha "),
    ],
)
def test_cut_loops_removes_repeats(ids, source, expected):
    assert "".join(ids[place] for place in cut_loops(ids, source, str.isalpha)) == expected


def test_bytes_of_an_emoji_are_no_word(trained, tmp_path):
    """The names of byte pieces, such as <0xF0>, have letters. Five emoji in a row are no loop."""
    settings = recipe.Vocab(size=400, byte_fallback=True)
    texts = [side for pair in TEST[:50] for side in pair]
    write_vocab(tmp_path / "v", {"joint": learn(iter(texts), settings, "toy")}, trained.recipe.data, settings)
    vocab = load_vocab(tmp_path / "v")
    engine = Says(5 * vocab.target.encode("😀")[-4:])
    translator = WindowTranslator(Workers(engine, 1, False), vocab, Settings(SearchOptions(), 4000, 100))
    (found,) = translator.translate([Row(1, "the cat.")])
    assert (found.text, found.flags) == (5 * "😀", ())


class Stutters:
    """Loses the end of the line, then says "le" five times before each word. Attends word by word."""

    name = "stutters"

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab

    def translate(self, requests, options):
        (request,) = requests
        ids, rows = [], []
        for place, word in ((0, "le le le le le"), (1, "chat"), (2, "dort")):
            pieces = self.vocab.target.encode(word)
            begins = [
                n for n, piece in enumerate(self.vocab.source.id_to_piece(list(request.source))) if piece[0] == "▁"
            ]
            ids, rows = [*ids, *pieces], [*rows, *[begins[place]] * len(pieces)]
        attention = np.eye(len(request.source) + 1)[[*rows, len(request.source)]]
        return [[Hypothesis(tuple(ids), -1.0, -1.0 * (len(ids) + 1), (), True, attention)]]

    def score(self, pairs, options):
        raise NotImplementedError


def test_text_is_put_back_by_the_attention_of_the_pieces_behind_a_loop(trained):
    translator = WindowTranslator(
        Workers(Stutters(trained.vocab), 1, False), trained.vocab, Settings(SearchOptions(), 4000, 100)
    )
    (found,) = translator.translate([Row(1, "the cat {x} sleeps")])
    assert found.text == "le chat {x} dort" and found.flags == ("loop", "restored")


def test_loop_is_cut_and_flagged(nmt, model, trained, tmp_path):
    """A model of zeros writes one piece again and again."""
    blank = {name: torch.zeros_like(tensor) for name, tensor in trained.model.state_dict().items()}
    save_model(tmp_path / "blank", blank, trained.recipe, model / "model/vocab", {})
    result = nmt("translate", tmp_path / "blank", "--min-length", 15, "--format", "jsonl", stdin=b"a cat.\n")
    found = json.loads(result.text)
    assert result.code == 0 and "loop" in found["flags"], found
    assert "warning: line 1: the model repeated itself; the repeats are cut" in result.err
    assert len(found["translation"]) < 20
