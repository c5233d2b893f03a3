"""Search options: their limits, and the one function that builds them."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.search_oracle import SRC, VOCAB, Recurrent

import nmt_cli
from nmt_cli.errors import NmtError
from nmt_cli.model.device import Compute
from nmt_cli.recipe.schema import Recipe, Rnn, Translate
from nmt_cli.search.beam import search
from nmt_cli.search.contract import SearchOptions, options_of
from nmt_cli.text.vocab import EOS, UNK
from nmt_cli.training.validation import Validation


@pytest.mark.parametrize(
    "wrong",
    [
        {"beam": 0},
        {"beam": 2, "n_best": 3},
        {"alpha": -0.1},
        {"length_penalty": "none"},
        {"coverage_penalty": -1.0},
        {"patience": 0.0},
        {"temperature": 0.0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"forbidden": (EOS,)},
        {"repetition_penalty": 0.0},
    ],
)
def test_option_out_of_range_is_refused(wrong):
    with pytest.raises(NmtError, match=list(wrong)[-1]):
        SearchOptions(**wrong)


def test_all_wrong_options_are_reported_at_once():
    with pytest.raises(
        NmtError, match=r"beam must be from 1 to 10000, not 0; .*temperature must be above 0 and at most 1000, not -1"
    ):
        SearchOptions(beam=0, temperature=-1)


def test_options_come_from_the_recipe():
    settings = {"beam": 7, "alpha": 0.8, "max_ratio": 1.5, "max_extra": 50}
    settings |= {"length_penalty": "gnmt", "coverage_penalty": 0.2}
    recipe = Recipe(translate=Translate(**settings))
    expected = SearchOptions(**settings, max_length=recipe.model.max_positions, forbidden=(UNK,))
    assert options_of(recipe) == expected
    assert options_of(recipe, beam=2) == replace(expected, beam=2)
    assert options_of(replace(recipe, model=Rnn())).max_length == 0


def test_only_the_search_room_constructs_search_options():
    """Validation, inspect, ladder and translate start from options_of, so that all of them search alike."""
    package = Path(nmt_cli.__file__).parent
    constructed = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "SearchOptions"
    ]
    assert constructed, "options_of constructs SearchOptions"
    assert [place for place in constructed if not place.startswith("search/")] == []


def test_validation_never_writes_the_unknown_piece():
    class PrefersUnknown(Recurrent):
        def step(self, prev, memory, state, attention=False):
            logits, weights, state = super().step(prev, memory, state, attention)
            logits[:, UNK] += 100
            return logits, weights, state

    torch.manual_seed(1)
    model = PrefersUnknown(VOCAB).eval()
    assert all(UNK in hypotheses[0].ids for hypotheses in search([model], SRC, SearchOptions()))
    written: list[list[int]] = []

    def decode_target(sequences: list[list[int]]) -> list[str]:
        written.extend(sequences)
        return [""] * len(sequences)

    validation = Validation(
        SimpleNamespace(decode_target=decode_target, target_prefix=()), [0, 1], [[4, 5, 6], [5]], [[4], [5]], ["", ""]
    )
    validation.translations([model], Recipe(), Compute(torch.device("cpu"), "fp32", ""))
    assert len(written) == 2 and all(written) and not any(UNK in ids for ids in written)
