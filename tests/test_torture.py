"""The harness of `make torture`: its order, its results file and its table. The commands themselves take hours."""

from __future__ import annotations

import json
import random

import pytest
from support.checks import Result
from torture.__main__ import CLASSES, MEANINGS, position, read_results, table
from torture.bench import Case, Failure, judge
from torture.mutants import CHANGES


def test_a_share_is_part_of_every_larger_share():
    cases = [Case("mutants", str(number), lambda chance: "right") for number in range(2000)]
    places = [position(1, case) for case in cases]
    assert places == [position(1, case) for case in cases] != [position(2, case) for case in cases]
    assert 0.05 < sum(place < 0.1 for place in places) / len(places) < 0.15


def test_a_killed_harness_goes_on_from_its_results(tmp_path):
    entry = {"class": "mutants", "case": "a", "verdict": "right", "detail": ""}
    (tmp_path / "results").write_text(json.dumps(entry) + "\n" + json.dumps({**entry, "case": "b"})[:-5])
    assert read_results(tmp_path / "results") == {("mutants", "a"): entry}
    assert read_results(tmp_path / "none") == {}


def test_the_table_counts_by_class():
    verdicts = {("mutants", "a"): "right", ("mutants", "b"): "refused", ("load", "a"): "failed"}
    lines = table({key: {"verdict": verdict} for key, verdict in verdicts.items()}, {"mutants": 10, "load": 2})
    assert "| 10 | 2 | 1 | 1 | 0 |" in lines and "| 2 | 1 | 0 | 0 | 1 |" in lines
    assert "| all | 12 | 3 | 1 | 1 | 1 |" in lines
    assert CLASSES.keys() == MEANINGS.keys()


@pytest.mark.parametrize(
    ("result", "is_right", "expected"),
    [
        (Result(0, b"x", ""), True, "right"),
        (Result(0, b"x", ""), None, "right"),
        (Result(0, b"x", ""), False, Failure),
        (Result(1, b"", "error: no\nhint: yes\n"), False, "refused"),
        (Result(1, b"", "Traceback\nerror: no\n"), None, Failure),
        (Result(1, b"", "error: a\nerror: b\n"), None, Failure),
        (Result(1, b"", ""), None, Failure),
        (Result(-11, b"", ""), None, Failure),
    ],
)
def test_verdicts(result, is_right, expected):
    if expected is Failure:
        with pytest.raises(Failure):
            judge(result, is_right)
    else:
        assert judge(result, is_right) == expected


@pytest.mark.parametrize("change", CHANGES)
def test_changes_damage_files_of_all_sizes(change):
    chance = random.Random(1)
    for size in (2, 3, 100, 5000):
        content = bytes(range(1, 256)) * 20
        assert any(CHANGES[change](content[:size], chance) != content[:size] for _ in range(20))
