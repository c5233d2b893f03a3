"""`nmt score --alignment`: the alignment error rate, against counts made by hand, and the errors of bad lines."""

from __future__ import annotations

import json

import pytest
from support.checks import assert_user_error

from nmt_cli.scoring.alignment import score_alignments


@pytest.mark.parametrize(("found", "gold", "precision", "recall", "aer"), [
    (["0-0 1-1"], ["0-0 1-1"], 1, 1, 0),
    (["0-0 1-1"], ["0-0 1?1"], 1, 1, 0),
    (["0-0"], ["0-0 1p1 2-2"], 1, 1 / 2, 1 - 2 / 3),
    (["0-0 1-1", "3-1"], ["0-0 1?1 1?2", "2-1"], 2 / 3, 1 / 2, 1 - (1 + 2) / (3 + 2)),
    (["0-1"], ["0-0"], 0, 0, 1),
    (["0-0 0-0"], ["0-0"], 1, 1, 0),  # a link counts once
    ([""], ["0-0"], 1, 0, 1),
    ([""], [""], 1, 1, 0),
])  # fmt: skip
def test_rates(found, gold, precision, recall, aer):
    (score,) = score_alignments({"a": found}, "gold", gold)
    assert (score.precision, score.recall, score.aer) == pytest.approx((precision, recall, aer))


def test_formats(nmt, write):
    write("gold", "0-0 1?1\n2-1\n")
    write("a", "0-0 1-1\n3-1\n")
    drawn = nmt("score", "a", "gold.a", "--ref", "gold", "--alignment") if write("gold.a", "0-0\n2-1\n") else None
    assert drawn.text.splitlines() == [
        "2 lines against gold",
        "",
        "system    AER ↓  precision    recall  links  sure links",
        "a       40.00 %    66.67 %   50.00 %      3           2",
        "gold.a   0.00 %   100.00 %  100.00 %      2           2",
    ]
    row = {"system": "a", "aer": 0.4, "precision": 2 / 3, "recall": 0.5}
    row |= {"links": 3, "in_sure": 1, "in_possible": 2, "sure": 2}
    as_json = nmt("score", "a", "--ref", "gold", "--alignment", "--format", "json")
    assert json.loads(as_json.text) == {"alignments": [pytest.approx(row)]}
    as_tsv = nmt("score", "a", "--ref", "gold", "--alignment", "--format", "tsv")
    assert as_tsv.text == "\t".join(row) + "\na\t0.4000\t0.6667\t0.5000\t3\t1\t2\t2\n"


@pytest.mark.parametrize(("arguments", "parts"), [
    (["long", "--ref", "gold"], ["long, line 2: '1111", "is not a link of two words"]),
    (["a", "--ref", "short"], ["a has 2 lines, but short has 1 line"]),
    (["words", "--ref", "gold"], ["words, line 2: 'Le' is not a link of two words", "such as 0-0"]),
    (["a", "--ref", "words"], ["words, line 2: 'Le' is not a link"]),
    (["gold", "--ref", "a"], ["gold, line 2: '2?1' is a possible link, which only a gold alignment has", "--ref"]),
    (["a", "--ref", "gold", "--ref", "short"], ["one gold alignment, but --ref is given twice"]),
    (["a", "--ref", "gold", "--by-length"], ["--by-length has no effect on alignments"]),
    (["a", "--ref", "gold", "-m", "ter"], ["--metrics has no effect on alignments"]),
    (["a", "--ref", "gold", "--comet-model", "x"], ["--comet-model has no effect on alignments"]),
])  # fmt: skip
def test_errors(nmt, write, arguments, parts):
    texts = {"a": "0-0\n1-1\n", "gold": "0-0\n2?1\n", "short": "0-0\n", "words": "0-0\nLe chat\n"}
    for name, text in {**texts, "long": "0-0\n" + 5000 * "1" + "-0\n"}.items():
        write(name, text)
    assert_user_error(nmt("score", *arguments, "--alignment"), *parts)
