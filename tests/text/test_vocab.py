"""Vocabularies, compared with SentencePiece itself."""

from __future__ import annotations

import io

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from support.toy_corpus import corpus

from nmt_cli.recipe.schema import Vocab
from nmt_cli.text.vocab import learn


def test_bpe_from_word_counts_equals_bpe_from_lines():
    """The oracle is SentencePiece on the lines."""
    lines = [line for side in corpus(900, 100) for line in side.splitlines()]
    settings = Vocab(size=70, symbols=("<2de>",))
    ours = SentencePieceProcessor(model_proto=learn(iter(lines), settings, "test"))
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=70,
        character_coverage=1.0,
        user_defined_symbols=["<2de>"],
        split_digits=True,
        normalization_rule_name="identity",
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        minloglevel=2,
    )
    theirs = SentencePieceProcessor(model_proto=model.getvalue())
    assert [ours.id_to_piece(i) for i in range(70)] == [theirs.id_to_piece(i) for i in range(70)]


@pytest.mark.parametrize(
    ("kind", "pieces"),
    [("char", ["▁", "a", "▁", "c", "a", "t", "."]), ("word", ["▁a", "▁cat."])],
)
def test_pieces_that_are_characters_or_words(kind, pieces):
    """A vocabulary of all characters, or of all words, even if the wanted size is larger."""
    lines = ["a cat.", "a dog.", "cat. 12"]
    processor = SentencePieceProcessor(model_proto=learn(iter(lines), Vocab(type=kind, size=500), "test", exact=False))
    assert processor.encode("a cat.", out_type=str) == pieces
    assert processor.decode(processor.encode("a cat.")) == "a cat."
    different = {"▁", *"acatdog.12"} if kind == "char" else {word for line in lines for word in line.split()}
    assert processor.get_piece_size() == 4 + len(different)
