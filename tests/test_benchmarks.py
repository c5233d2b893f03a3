"""The benchmarks: their results have what a reader needs to judge them, and gradient noise is estimated rightly."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from nmt_cli.data.batches import make_batch
from nmt_cli.model.build import build_model
from nmt_cli.model.device import Compute
from nmt_cli.recipe.load import open_recipe
from nmt_cli.recipe.schema import Train, Transformer
from nmt_cli.store.checkpoint import State
from nmt_cli.training.loss import TrainingLoss
from nmt_cli.training.step import Updater

ROOT = Path(__file__).parents[1]
FIELDS = {"benchmark", "command", "date", "seconds", "commit", "machine", "machine_was_busy", "load_before"}
FIELDS |= {"versions", "recipe", "figures"}


@pytest.fixture
def benchmarks(monkeypatch):
    """The scripts of benchmarks/ can be imported."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.fixture
def record(benchmarks, monkeypatch, tmp_path):
    """The module benchmarks/record.py, which writes into tmp_path."""
    import record

    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(record, "busy_share", lambda: 0.2)
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
    assert found["machine_was_busy"] is True
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


def test_a_busy_processor_is_noticed(benchmarks):
    import record

    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            assert record.busy_share(0.3) > 0.5 / (os.cpu_count() or 1)
        finally:
            busy.kill()


def test_the_spread_of_ratios_is_taken_round_by_round(record):
    found = record.spread([2.0, 9.0, 4.0], [1.0, 3.0, 8.0])
    assert found == {"ratio": 2.0, "lowest": 0.5, "highest": 3.0, "rounds": [2.0, 3.0, 0.5]}


def test_the_estimate_of_gradient_noise_has_no_bias(benchmarks):
    """Gradients of single tokens are drawn around a known mean with a known covariance."""
    import first_updates

    random = np.random.default_rng(1)
    mean, deviations = np.array([0.3, -0.2, 0.1]), np.array([1.0, 2.0, 0.5])
    sizes = (10, 30, 60)
    few = 3 / sum(1 / size for size in sizes)
    found = []
    for _ in range(20_000):
        parts = [mean + deviations / np.sqrt(size) * random.standard_normal(3) for size in sizes]
        whole = sum(size * part for size, part in zip(sizes, parts, strict=True)) / 100
        found.append(first_updates.noise(whole @ whole, np.mean([part @ part for part in parts]), 100, few))
    square, trace = np.mean(found, axis=0)
    assert square == pytest.approx(mean @ mean, rel=0.1)
    assert trace == pytest.approx(deviations @ deviations, rel=0.05)


def test_measuring_the_noise_does_not_change_the_gradient(benchmarks):
    import first_updates

    model = build_model(Transformer(dim=16, heads=2, ff=32, encoder_layers=1, decoder_layers=1), 50, 50)
    settings = Train(precision="fp32")
    ids = np.random.default_rng(1).integers(4, 50, (6, 5))
    batches = [(make_batch(list(rows), list(rows)), seed) for seed, rows in enumerate((ids[:2], ids[2:]))]
    tokens, gradients = sum(batch.tokens for batch, _ in batches), []
    for kind in (Updater, first_updates.Measured):
        loss = TrainingLoss(model, settings).train()
        updater = kind(model, loss, settings, Compute(torch.device("cpu"), "fp32", ""), State(), print)
        updater.gradients(batches, tokens)
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-6, rtol=1e-5)


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
        assert not re.search(r"(?<![\w.])/\w+/", text), path.name  # a path from the root


def test_results_with_a_reservation_are_named_in_the_documents():
    """A busy machine or uncommitted changes: the table of docs/results.md names these results, and no others."""
    rows = re.findall(r"^\| `(\S+\.json)` \| (.*?) \|", (ROOT / "docs/results.md").read_text(encoding="utf-8"), re.M)
    stated, wanted = {}, {}
    for path in (ROOT / "benchmarks/results").glob("*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        reservations = ["busy"] * found["machine_was_busy"] + ["changed"] * found["commit"].endswith("+")
        wanted[path.name] = ", ".join(reservations)
        stated[path.name] = "".join(said for name, said in rows if fnmatch.fnmatch(path.name, name))
    assert stated == wanted
