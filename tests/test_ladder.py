"""`nmt ladder`: rungs are trained once, go on after an interruption, and are compared in one table."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import pytest
from support.checks import assert_user_error, on_terminal

from nmt_cli.files import sha256_of
from nmt_cli.ladder import RUNGS, rung_recipe
from nmt_cli.recipe.load import shipped_recipes
from nmt_cli.recipe.schema import Conv, DecoderOnly, Rnn, Transformer
from nmt_cli.store.run_folder import read_log

NAMES = [rung.name for rung in RUNGS]
NBEST = ("--format", "tsv", "--n-best", 2, "--workers", 1)
TEXT = [
    ("a cat sees a dog .", "ein hund katze sieht ein ."),
    ("the dog runs .", "der hund rennt ."),
    ("a small bird sings a song .", "ein kleiner vogel singt ein lied ."),
]
TINY = ("model.dim=16", "model.heads=4", "model.ff=32", "model.encoder_layers=1", "model.decoder_layers=1")
TINY += ("train.batch_tokens=64", "train.lr=3e-3", "train.warmup=5", "train.valid_lines=3", "train.precision=fp32")


@pytest.fixture
def data(nmt, write):
    for side, language in enumerate(("en", "de")):
        write(f"a.{language}", "".join(f"{pair[side]} {n}\n" for n in range(30) for pair in TEXT))
        write(f"t.{language}", "".join(pair[side] + "\n" for pair in TEXT))
    files = ("--source", "a.en", "--target", "a.de", "--test-source", "t.en", "--test-target", "t.de")
    assert nmt("prepare", *files, "--vocab-size", 60, "--out", "data").code == 0
    return [part for key in TINY for part in ("--set", key)]


def test_a_ladder(nmt, data, tmp_path):
    """All rungs, trained once; and then each is a model like any other."""
    command = ("ladder", "data", "--minutes", 0, "--flops", 3e7, "--sentence", "a cat runs .", *data)
    result = nmt(*command)
    assert result.code == 0, result.err
    table, lengths, *maps = result.text.split("\n\n")
    rows = {line.split()[0]: line.split() for line in table.splitlines()[1:-1]}
    assert list(rows) == NAMES
    for name in rows:
        last = [entry for entry in read_log(tmp_path / "ladder" / name) if entry["kind"] == "train"][-1]
        assert last["flops"] >= 3e7 and f"{last['flops']:.1e}" in rows[name]  # the same budget for all
    assert "BLEU by length" in lengths
    drawn = re.findall(r"^(\S+): .*\n(no attention)?", "\n\n".join(maps), re.M)
    assert drawn == [(name, "no attention" if name == "rnn" else "") for name in NAMES]
    assert "rung 1 of 6, rnn" in result.err

    weights = {name: tmp_path / "ladder" / name / "model/model.safetensors" for name in NAMES}
    before = {name: sha256_of(path) for name, path in weights.items()}
    shown = on_terminal("stdout", 60, *command, cwd=tmp_path)
    table = [line for line in shown if line.startswith(("model ", *(f"{name} " for name in NAMES)))]
    assert len(table) == 7 and max(map(len, shown)) <= 60 and not any("…" in line for line in table)
    for name in NAMES:
        kinds = [entry["kind"] for entry in read_log(tmp_path / "ladder" / name)]
        assert kinds.count("valid") == 1, (name, kinds)  # nothing was trained again
        assert sha256_of(weights[name]) == before[name]

    for name in NAMES:
        found = nmt("translate", tmp_path / "ladder" / name, *NBEST, stdin=b"a cat .\n\nthe dog\n")
        assert found.code == 0, (name, found.err)
        numbers = ["".join(line.split("\t")[:2]) for line in found.text.splitlines()]
        assert numbers == ["11", "12", "21", "31", "32"], name  # line and rank
    look = ("a cat runs .", "--target", "der hund .")
    assert_user_error(nmt("inspect", tmp_path / "ladder/rnn", *look), "this model has no attention to show")
    for name in ("multi-head", "conv", "decoder"):
        seen = nmt("inspect", tmp_path / "ladder" / name, *look)
        assert seen.code == 0 and "hund" in seen.text, (name, seen.err)
    refused = nmt("export", tmp_path / "ladder/rnn", "--to", "ctranslate2")
    assert_user_error(refused, "CTranslate2 has no models of family")

    refused = nmt("ladder", "data", "--minutes", 0, "--flops", 3e7, *data, "--set", "train.seed=5")
    assert refused.code == 1 and "error: " in refused.err and "Traceback" not in refused.err
    assert (
        "train.seed was 1 and is 5" in refused.err and "hint: --out starts a new run elsewhere, --force" in refused.err
    )
    assert nmt(*command, "--rungs", "rnn", "--set", "train.seed=5", "--force").code == 0
    assert sha256_of(weights["rnn"]) != before["rnn"]


def test_an_interrupted_ladder_goes_on(nmt, data, tmp_path):
    options = [
        "ladder",
        "data",
        "--minutes",
        "0.1",
        "--rungs",
        "rnn,transformer",
        *data,
        "--set",
        "train.valid_every=20",
    ]
    command = [sys.executable, "-m", "nmt_cli", *options]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "ladder/rnn/checkpoints/last").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err
    result = nmt(*options)
    assert result.code == 0 and "going on from step" in result.err
    assert "transformer" in result.text


def test_every_rung_has_a_recipe(tmp_path):
    recipes = {rung.name: rung_recipe(rung, shipped_recipes()["demo"], {}, tmp_path, {}) for rung in RUNGS}
    kinds = {name: type(recipe.model) for name, recipe in recipes.items()}
    assert kinds == {
        **{"rnn": Rnn, "attention": Rnn, "multi-head": Rnn, "conv": Conv},
        **{"decoder": DecoderOnly, "transformer": Transformer},
    }
    assert len({recipe.prepared_folder for recipe in recipes.values()}) == 1
    assert len({recipe.run_folder for recipe in recipes.values()}) == len(RUNGS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["demo", "--rungs", "rnn,lstm"], "there is no rung lstm"),
        (["demo", "--minutes", 0], "one of them"),
        (["demo-rnn"], 'this recipe is of family "rnn"'),
    ],
)
def test_mistakes(nmt, options, message):
    assert_user_error(nmt("ladder", *options), message)
