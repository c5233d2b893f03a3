"""Translations that repeat themselves."""

from __future__ import annotations

import json

import pytest
import torch

from nmt_cli.store.checkpoint import save_model
from nmt_cli.translate.loops import cut_loops


@pytest.mark.parametrize(
    ("ids", "source", "expected"),
    [
        ("abcabcabcabc", "x", "abc"),
        ("xabababababy", "x", "xaby"),
        ("xabcabcabcabcady", "x", "xabcady"),  # n'elle n'elle n'elle n'elle n'a: what has begun again goes on
        ("xabcabcabcabca", "x", "xabc"),  # ... or does not
        ("abcabcabcabcabc", "xyzxyzxyz", "abcabcabc"),  # as often as the source
        ("aaaa", "x", "a"),
        ("aaab", "x", None),
        ("ha ha ha ha ha", "he he he he he", None),  # the source does it too
        ("aaaabbbb", "x", "ab"),
        ("", "x", None),
        ("10000000", "ten million", None),  # as pieces, where digits are split
        ("wait.....", "wait...", None),
        ("." * 30, "x", "."),
        ("price abababababab", "price 100000", "price ababababab"),  # no more often than the source has anything
        ("x" + 5 * "abcdefghijkl", "y", "xabcdefghijkl"),
        ("ha ha ha ha ha ha ha ha ", "he he he he ", "ha ha ha ha "),
    ],
)
def test_loops(ids, source, expected):
    found = cut_loops(ids, source, str.isalpha)
    assert found == (None if expected is None else tuple(expected))


def test_a_loop_is_cut_and_flagged(nmt, model, trained, tmp_path):
    """A model without a single thought writes one piece for ever."""
    blank = {name: torch.zeros_like(tensor) for name, tensor in trained.model.state_dict().items()}
    save_model(tmp_path / "blank", blank, trained.recipe, model / "model/vocab", {})
    result = nmt("translate", tmp_path / "blank", "--min-length", 15, "--format", "jsonl", stdin=b"a cat.\n")
    found = json.loads(result.text)
    assert result.code == 0 and "loop" in found["flags"], found
    assert "warning: line 1: the model repeated itself; the repeats are cut" in result.err
    assert len(found["translation"]) < 20
