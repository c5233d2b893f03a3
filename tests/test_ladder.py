"""`nmt ladder`: rungs are recipes, are trained once, resume after an interruption, and are compared in one table."""

from __future__ import annotations

import importlib
import operator
import re
import signal
from functools import partial
from pathlib import Path

import pytest
from support.checks import assert_user_error, wait_until
from support.drawings import plain

from nmt_cli.cli import app
from nmt_cli.errors import NmtError
from nmt_cli.files import sha256_of
from nmt_cli.inspect.attention import attention
from nmt_cli.ladder import SHIPPED, measure, rung_recipe, show
from nmt_cli.recipe.load import load_recipe, shipped_recipes
from nmt_cli.recipe.schema import Conv, DecoderOnly, Rnn, Transformer
from nmt_cli.store.log import Start, Train, read_log
from nmt_cli.translate.translator import load

TEXT = [
    ("a cat sees a dog .", "ein hund katze sieht ein ."),
    ("the dog runs .", "der hund rennt ."),
    ("a small bird sings a song .", "ein kleiner vogel singt ein lied ."),
]
SETTINGS = ("model.dim=16", "train.batch_tokens=64", "train.warmup=5", "train.valid_lines=3", "train.precision=fp32")
TINY = [part for setting in SETTINGS for part in ("--set", setting)]
FLOPS = 1e7


@pytest.fixture(scope="module")
def prepared(nmt_in, tmp_path_factory):
    """A folder with prepared data in data/."""
    folder = tmp_path_factory.mktemp("ladder")
    for side, language in enumerate(("en", "de")):
        (folder / f"a.{language}").write_text("".join(f"{pair[side]} {n}\n" for n in range(30) for pair in TEXT))
        (folder / f"t.{language}").write_text("".join(pair[side] + "\n" for pair in TEXT))
    files = ("--source", "a.en", "--target", "a.de", "--test-source", "t.en", "--test-target", "t.de")
    assert nmt_in(folder, "prepare", *files, "--vocab-size", 60, "--out", "data").code == 0
    return folder


def test_the_shipped_rungs_on_other_data(nmt_in, prepared):
    nmt = partial(nmt_in, prepared)
    command = ("ladder", "data", "--flops", FLOPS, "--sentence", "a cat runs .", *TINY)
    result = nmt(*command)
    assert result.code == 0, result.err
    table, lengths, *maps = result.text.split("\n\n")
    rows = {line.split()[0]: line.split() for line in table.splitlines() if line.startswith("demo")}
    assert tuple(rows) == SHIPPED
    assert {"weight", "time"} <= set(table.split("demo-rnn")[0].split())
    runs = {name: prepared / "ladder" / name for name in SHIPPED}
    for name, run in runs.items():
        last = [entry for entry in read_log(run) if isinstance(entry, Train)][-1]
        assert last.flops >= FLOPS and f"{last.flops:.1e}" in rows[name]  # the same budget for all
        (start,) = (entry for entry in read_log(run) if isinstance(entry, Start))
        assert f"{60 * last.minutes * start.rate:.1e}" in rows[name]
    assert "BLEU by length" in lengths
    drawn = re.findall(r"^(demo\S*): .*\n(no attention)?", "\n\n".join(maps), re.M)
    assert drawn == [(name, "no attention" if name == "demo-rnn" else "") for name in SHIPPED]
    assert "rung 1 of 6, demo-rnn: The first rung" in result.err

    # The same command again trains nothing.
    weights = {name: run / "model/model.safetensors" for name, run in runs.items()}
    before = {name: sha256_of(path) for name, path in weights.items()}
    assert nmt(*command).code == 0
    for name, run in runs.items():
        kinds = [entry.kind for entry in read_log(run)]
        assert kinds.count("valid") == 1, (name, kinds)
        assert sha256_of(weights[name]) == before[name]

    # The table fits a narrow terminal.
    recipes = [load_recipe(run / "recipe.toml") for run in runs.values()]
    measured = [measure(recipe, lines=0) for recipe in recipes]
    shown = plain(show(measured, "a cat .", 60, "ascii"), 60).split("\n")
    table = [line for line in shown if re.match(r"rung |demo[\w-]* +\d", line)]
    assert len(table) == 7 and max(map(len, shown)) <= 60 and not any("…" in line for line in table)

    # Each rung is a model like any other.
    for name, run in runs.items():
        with load(run, workers=1) as translator:
            translations = translator.translate(["a cat .", "", "the dog"], n_best=2)
        assert [len(translation.n_best) for translation in translations] == [2, 0, 2], name
    pair = ("a cat runs .", "--target", "der hund .")
    assert_user_error(nmt("inspect", runs["demo-rnn"], *pair), "this model has no attention to show")
    for name in ("demo-rnn-multi-head", "demo-conv", "demo-decoder"):
        result = attention(runs[name], "a cat runs .", "der hund .")
        assert result.rows["cross"] == ["der", "hund", "."] and result.mean("cross").shape == (3, 4), name
    assert_user_error(nmt("export", runs["demo-rnn"], "--to", "ctranslate2"), "CTranslate2", "rnn")

    # A rung that was trained with other settings is refused, and trained again with --force.
    refused = nmt(*command, "--set", "train.seed=5")
    assert refused.code == 1 and "error: " in refused.err and "Traceback" not in refused.err
    assert "train.seed was 1 and is 5" in refused.err and re.search("hint: --out .*--force", refused.err)
    assert nmt(*command, "--rungs", "demo-rnn", "--set", "train.seed=5", "--force").code == 0
    assert sha256_of(weights["demo-rnn"]) != before["demo-rnn"]


def test_an_interrupted_ladder_resumes(nmt_in, start_nmt, prepared, tmp_path):
    (tmp_path / "mine.toml").write_text('extends = "demo-rnn"\n[model]\ndim = 16\n')
    options = ["ladder", str(prepared / "data"), "--rungs", f"mine.toml,{tmp_path / '[other].toml'}", *TINY]
    (tmp_path / "[other].toml").write_text('# [/x] is no markup\nextends = "mine.toml"\n')
    running = start_nmt(*options, "--flops", "1e18", "--set", "train.valid_every=5")
    wait_until((tmp_path / "ladder/mine/checkpoints/last").exists)
    running.send_signal(signal.SIGINT)
    result = running.wait()
    assert result.code == 130 and "Traceback" not in result.err, result.err
    # The interrupted rung resumes with a little more than it has used already.
    used = [entry for entry in read_log(tmp_path / "ladder/mine") if isinstance(entry, Train)][-1].flops
    result = nmt_in(tmp_path, *options, "--flops", 1.2 * used)
    assert result.code == 0 and "continuing from step" in result.err, result.err
    assert "rung 2 of 2, [other]: [/x] is no markup" in result.err
    assert re.findall(r"^(mine|\[other\]) +\d", result.text, re.M) == ["mine", "[other]"]


def test_every_shipped_rung_trains_on_the_data_of_the_corpus(tmp_path):
    corpus = load_recipe(shipped_recipes()["multi30k-en-de"])
    recipes = {name: rung_recipe(name, corpus, {"model.dropout": 0.3}, tmp_path) for name in SHIPPED}
    families = [type(recipe.model) for recipe in recipes.values()]
    assert families == [Rnn, Rnn, Rnn, Conv, DecoderOnly, Transformer]
    for name, recipe in recipes.items():
        assert (recipe.data, recipe.vocab) == (corpus.data, corpus.vocab)
        assert recipe.run_folder == tmp_path / name and recipe.model.dropout == 0.3
        shipped = load_recipe(shipped_recipes()[name], {"model.dropout": 0.3})
        assert recipe.model == shipped.model  # nothing but the recipe describes a rung


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rungs", "demo-rnn,lstm"], "there is no recipe lstm"),
        (["--minutes", 1, "--flops", 1e9], "each rung needs one budget"),
        (["--minutes", 0], "each rung needs one budget"),
        (["--rungs", "demo-rnn,demo-rnn"], "two rungs would share the folder ladder/demo-rnn"),
        (["--sentence", " "], "--sentence is empty"),
        (["--out", "data"], "must be separate folders"),
        (["--set", "model.ff=8"], "model.ff"),
    ],
)
def test_mistakes_are_refused(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NmtError) as refused:
        app(["ladder", "demo", *map(str, options)], standalone_mode=False)
    assert message in refused.value.message and refused.value.hint


def test_a_rung_that_does_not_fit_the_data(tmp_path):
    corpus = load_recipe(None, {"vocab.joint": False, "model.tie": "none"})
    with pytest.raises(NmtError, match=r"the rung demo-conv does not fit the data .*: model\.tie"):
        rung_recipe("demo-conv", corpus, {}, tmp_path)


def test_docs_name_code_that_exists():
    """The lines "- code: `Rnn.encode` ... in `nmt_cli/model/rnn.py`" of docs/ladder.md."""
    root = Path(__file__).parents[1]
    text = (root / "docs/ladder.md").read_text(encoding="utf-8")
    checked = 0
    for entry in re.findall(r"^- code: (.*?)\n- ", text, re.M | re.S):
        for names, file in re.findall(r"(.*?)\bin\s+`(nmt_cli/\S+\.py)`", entry, re.S):
            module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
            for name in re.findall(r"`([\w.]+)`", names):
                assert operator.attrgetter(name)(module), name
                checked += 1
    assert checked >= 18
