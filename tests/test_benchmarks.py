"""The results of benchmarks: their file has what a reader needs to judge them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nmt_cli.recipe.load import open_recipe

ROOT = Path(__file__).parents[1]
FIELDS = {"benchmark", "command", "date", "seconds", "commit", "machine", "machine_was_busy", "load_before"}
FIELDS |= {"versions", "recipe", "figures"}


@pytest.fixture
def record(monkeypatch, tmp_path):
    """The module benchmarks/record.py, which writes into tmp_path."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import record

    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python", str(ROOT / "benchmarks/x.py"), "--rounds", "3"])
    return record


def test_a_benchmark_writes_its_figures_with_machine_versions_and_command(record, tmp_path):
    with record.Record("x", open_recipe("demo")) as results:
        results.add("encoding", ratio=1.2345678, rounds=[1.0, 2.0], bleu=None)
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    assert path.name.startswith("x.") and found.keys() == FIELDS
    assert found["command"] == "python benchmarks/x.py --rounds 3"
    assert found["figures"] == [{"what": "encoding", "ratio": 1.2346, "rounds": [1.0, 2.0], "bleu": None}]
    assert found["machine"]["processor"] and found["machine"]["cores"] >= 1
    assert found["versions"]["torch"] and found["recipe"] == record.recipe_hash(open_recipe("demo"))
    assert found["recipe"] != record.recipe_hash(open_recipe("demo", {"train.lr": 1e-5}))
    assert found["recipe"] == record.recipe_hash(open_recipe("demo", {"train.out": "elsewhere"}))


def test_a_benchmark_that_fails_or_is_skipped_writes_nothing(record, tmp_path):
    with record.Record("skipped"):
        pass
    with pytest.raises(ValueError, match="broken"), record.Record("failed") as results:
        results.add("encoding", ratio=1.0)
        raise ValueError("broken")
    assert list(tmp_path.iterdir()) == []


def test_the_spread_of_ratios_is_taken_round_by_round(record):
    found = record.spread([2.0, 9.0, 4.0], [1.0, 3.0, 8.0])
    assert found == {"ratio": 2.0, "lowest": 0.5, "highest": 3.0, "rounds": [2.0, 3.0, 0.5]}


@pytest.mark.torture
@pytest.mark.parametrize(
    "command",
    [
        "memory.py demo --tokens 128",
        "processes.py --tokens 64 --rounds 2",
        "rnn.py --rungs dot --tokens 128 --rounds 1 --threads 1",
        "score.py 1",
        "search.py --sentences 16 --batch 8 --rounds 1",
        "train_step.py --tokens 64 --rounds 1 --threads 1",
    ],
)
def test_benchmarks_run_in_small(command, tmp_path):
    script, *words = command.split()
    environment = {**os.environ, "NMT_RESULTS": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / script, *words], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["figures"]


def test_committed_results_are_complete_and_name_no_place_of_a_machine():
    for path in (ROOT / "benchmarks/results").glob("*.json"):
        text = path.read_text(encoding="utf-8")
        found = json.loads(text)
        assert found.keys() == FIELDS and found["figures"] and found["commit"], path.name
        assert path.name.startswith(found["benchmark"] + "."), path.name
        assert "/home/" not in text and "/work/" not in text and "/tmp/" not in text, path.name
