"""Translations that repeat themselves."""

from __future__ import annotations

import json

import pytest
import torch

from nmt_cli.store.checkpoint import save_model
from nmt_cli.translate.line import cut_loops


@pytest.mark.parametrize(
    ("ids", "source", "expected"),
    [
        ("abcabcabcabc", "x", "abc"),
        ("xabababababy", "x", "xaby"),
        ("xabcabcabcabcady", "x", "xabcady"),  # an incomplete repeat before other text stays
        ("xabcabcabcabca", "x", "xabc"),  # an incomplete repeat at the end goes
        ("abcabcabcabcabc", "xyzxyzxyz", "abcabcabc"),  # as often as in the source
        ("aaaa", "x", "a"),
        ("aaab", "x", None),
        ("ha ha ha ha ha", "he he he he he", None),  # the source repeats itself, too
        ("aaaabbbb", "x", "ab"),
        ("", "x", None),
        ("10000000", "ten million", None),  # every digit is a piece
        ("wait.....", "wait...", None),
        ("." * 30, "x", "."),
        ("price abababababab", "price 100000", "price ababababab"),  # as often as the zeros of the source
        ("x" + 5 * "abcdefghijkl", "y", "xabcdefghijkl"),
        ("ha ha ha ha ha ha ha ha ", "he he he he ", "ha ha ha ha "),
    ],
)
def test_cut_loops_removes_repeats(ids, source, expected):
    found = cut_loops(ids, source, str.isalpha)
    assert found == (None if expected is None else tuple(expected))


def test_loop_is_cut_and_flagged(nmt, model, trained, tmp_path):
    """A model of zeros writes one piece again and again."""
    blank = {name: torch.zeros_like(tensor) for name, tensor in trained.model.state_dict().items()}
    save_model(tmp_path / "blank", blank, trained.recipe, model / "model/vocab", {})
    result = nmt("translate", tmp_path / "blank", "--min-length", 15, "--format", "jsonl", stdin=b"a cat.\n")
    found = json.loads(result.text)
    assert result.code == 0 and "loop" in found["flags"], found
    assert "warning: line 1: the model repeated itself; the repeats are cut" in result.err
    assert len(found["translation"]) < 20
