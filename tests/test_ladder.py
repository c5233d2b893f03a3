"""`nmt ladder`: rungs are recipes, are trained once, resume after an interruption, and are compared in one table."""

from __future__ import annotations

import importlib
import json
import math
import operator
import re
import shutil
import signal
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from support.checks import assert_user_error, wait_until
from support.drawings import plain

from nmt_cli.cli import app
from nmt_cli.data.prepare import prepare
from nmt_cli.errors import NmtError
from nmt_cli.files import sha256_of
from nmt_cli.inspect.attention import attention
from nmt_cli.ladder import (
    SHIPPED,
    TABLE2,
    Ladder,
    best_rate,
    measure,
    next_rate,
    show,
    show_table2,
    train_rungs,
)
from nmt_cli.recipe.load import load_recipe, parse_overrides, settings_of, shipped_recipes
from nmt_cli.recipe.schema import Conv, DecoderOnly, Rnn, Transformer
from nmt_cli.search.contract import Request, options_of
from nmt_cli.search.torch_engine import TorchEngine
from nmt_cli.store.log import Start, Train, Valid, read_log
from nmt_cli.text.vocab import load_vocab
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
    table, parts, lengths, *maps = result.text.split("\n\n")
    rows = {line.split()[0]: line.split() for line in table.splitlines() if line.startswith("demo")}
    assert tuple(rows) == SHIPPED
    assert {"weight", "time"} <= set(table.split("demo-rnn")[0].split())
    assert "by bootstrap of the test lines" in table and "validation" not in table
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
    parts = parts.split("demo-rnn-attention:")[1].split("demo-")[0]
    counts = [int(count.replace(",", "")) for count in re.findall(r" (\d[\d,]*\d|\d)\b", parts)]
    assert "attention" in parts and f"{sum(counts):,}" in rows["demo-rnn-attention"]

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
    measured = [measure([recipe], lines=0) for recipe in recipes]
    shown = plain(show(measured, "a cat .", 60, "ascii"), 60).split("\n")
    table = [line for line in shown if re.match(r"rung |demo[\w-]* +\d", line)]
    assert len(table) == 7 and max(map(len, shown)) <= 60 and not any("…" in line for line in table)

    # A sentence that is too long for a rung does not spoil the table.
    shown = plain(show(measured[-1:], "a cat . " * 1024, 60, "ascii"), 60)
    assert "demo: the sentence has" in shown and "BLEU by length" in shown

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

    # A run that has lost its log cannot be compared.
    shutil.copytree(runs["demo-rnn"], prepared / "lost/demo-rnn", symlinks=True)
    (prepared / "lost/demo-rnn/log.jsonl").write_text("damaged\n")
    lost = load_recipe(prepared / "lost/demo-rnn/recipe.toml")
    with pytest.raises(NmtError, match=r"lost/demo-rnn has no figures of its training"):
        measure([lost], lines=0)

    # A rung that was trained with other settings is refused, and trained again with --force.
    refused = nmt(*command, "--set", "train.seed=5")
    assert refused.code == 1 and "error: " in refused.err and "Traceback" not in refused.err
    assert "train.seed was 1 and is 5" in refused.err and re.search("hint: --out .*--force", refused.err)
    assert nmt(*command, "--rungs", "demo-rnn", "--set", "train.seed=5", "--force").code == 0
    assert sha256_of(weights["demo-rnn"]) != before["demo-rnn"]


def test_without_a_test_set_the_table_says_that_it_shows_the_validation_lines(nmt_in, prepared, tmp_path):
    files = ("--source", prepared / "a.en", "--target", prepared / "a.de", "--vocab-size", 60)
    assert nmt_in(tmp_path, "prepare", *files, "--out", "data").code == 0
    result = nmt_in(tmp_path, "ladder", "data", "--rungs", "demo-rnn", "--flops", FLOPS, *TINY)
    assert result.code == 0, result.err
    before, after = result.err.split("rung 1 of 1")
    assert "warning: there is no test set" in before and "warning: there is no test set" not in after
    assert "95 % interval, by bootstrap of the validation lines" in result.text
    assert "BLEU of the validation lines, which also chose the weights: there is no test set" in result.text


def test_test_lines_that_no_rung_can_translate(nmt_in, prepared, tmp_path):
    for path in prepared.glob("a.??"):
        shutil.copy(path, tmp_path)
    for language, lines in (("en", "\n\n"), ("de", "eins\nzwei\n")):
        (tmp_path / f"t.{language}").write_text(lines)
    files = ("--source", "a.en", "--target", "a.de", "--test-source", "t.en", "--test-target", "t.de")
    assert nmt_in(tmp_path, "prepare", *files, "--vocab-size", 60, "--out", "data").code == 0
    result = nmt_in(tmp_path, "ladder", "data", "--rungs", "demo-rnn", "--flops", FLOPS, *TINY)
    assert result.code == 1 and result.out == b"" and "Traceback" not in result.err
    assert "error: ladder/demo-rnn can translate none of the test lines of data\nhint: check that" in result.err


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        (("--test-source", "t.en", "--test-target", "t.de"), ["--choose-rates"], "--choose-rates needs validation"),
        ((), [], "data has neither test nor validation lines"),
    ],
)
def test_data_without_the_lines_that_are_needed_are_refused_before_the_training(
    nmt_in, prepared, tmp_path, files, options, message
):
    for path in prepared.glob("?.??"):
        shutil.copy(path, tmp_path)
    command = ("prepare", "--source", "a.en", "--target", "a.de", "--vocab-size", 60, "--set", "data.hold_out=0")
    assert nmt_in(tmp_path, *command, *files, "--out", "data").code == 0
    assert_user_error(nmt_in(tmp_path, "ladder", "data", "--rungs", "demo-rnn", *options), message)
    assert not (tmp_path / "ladder").exists()


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
    assert "next: nmt inspect 'ladder/[other]' and nmt translate 'ladder/[other]'" in " ".join(result.err.split())
    assert re.findall(r"^(mine|\[other\]) +\d", result.text, re.M) == ["mine", "[other]"]


def test_every_shipped_rung_trains_on_the_data_of_the_corpus(tmp_path):
    corpus = load_recipe(shipped_recipes()["multi30k-en-de"])
    ladder = Ladder(corpus, {"model.dropout": 0.3}, tmp_path, minutes=1, flops=0)
    recipes = {name: ladder.recipe(name, seed=1) for name in SHIPPED}
    families = [type(recipe.model) for recipe in recipes.values()]
    assert families == [Rnn, Rnn, Rnn, Conv, DecoderOnly, Transformer]
    for name, recipe in recipes.items():
        assert (recipe.data, recipe.vocab) == (corpus.data, corpus.vocab)
        assert recipe.run_folder == tmp_path / name and recipe.model.dropout == 0.3
        shipped = load_recipe(shipped_recipes()[name], {"model.dropout": 0.3})
        assert recipe.model == shipped.model  # nothing but the recipe describes a rung


# The keys in which a rung may differ from the rung below. Keys that only one of two families has are not listed.
DIFFERENCES = {
    "demo-rnn-attention": {"model.attention", "model.order"},  # only a model with attention has an order
    "demo-rnn-multi-head": {"model.heads", "model.projections"},  # without projections all heads are equal
    # Recurrent layers are wide and few, and their gradients need clipping.
    "demo-conv": {"model.family", "model.dim", "model.encoder_layers", "model.decoder_layers", "train.clip"},
    "demo-decoder": {"model.family"},
    "demo": {"model.family"},
}


def test_neighboring_rungs_differ_in_the_named_property_and_the_rate_alone():
    settings = {name: settings_of(load_recipe(shipped_recipes()[name])) for name in SHIPPED}
    for below, name in pairwise(SHIPPED):
        one, two = settings[below], settings[name]
        different = {key for key in one.keys() & two.keys() if one[key] != two[key]}
        assert different - {"train.lr", "train.out", "data.prepared"} == DIFFERENCES[name], name


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        (4e-3, [2e-3, 4e-3, 8e-3]),
        (2e-3, [2e-3, 4e-3, 8e-3, 1e-3]),
        (1e-3, [2e-3, 4e-3, 8e-3, 1e-3, 5e-4]),
        (1.6e-2, [2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2]),
        (0, [2e-3, 4e-3, 8e-3, 1e-3, 5e-4, 2.5e-4, 1.25e-4]),  # there is a smallest rate
        (9, [2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2]),
    ],
)
def test_rates_are_tried_until_the_best_is_between_two_others(best, tried):
    losses: dict[float, float] = {}
    while rate := next_rate(losses):
        losses[rate] = abs(math.log((best or 1e-9) / rate))
    assert list(losses) == pytest.approx(tried)


def test_seeds_and_rates_chosen_on_the_validation_set(nmt_in, prepared):
    nmt = partial(nmt_in, prepared)
    command = ("ladder", "data", "--rungs", "demo-rnn", "--flops", FLOPS, "--seeds", 2, "--choose-rates", "--out", "s")
    result = nmt(*command, *TINY)
    assert result.code == 0, result.err
    trials = {path.name: path for path in (prepared / "s/rates").iterdir()}
    losses = {
        name: min(entry.loss for entry in read_log(path) if isinstance(entry, Valid)) for name, path in trials.items()
    }
    best = min(losses, key=losses.get).removeprefix("demo-rnn-")
    assert f"demo-rnn: train.lr = {best} has the lowest validation loss" in result.err
    for path in trials.values():
        last = [entry for entry in read_log(path) if isinstance(entry, Train)][-1]
        assert FLOPS / 2 <= last.flops < FLOPS
    for folder, seed in (("demo-rnn", 1), ("demo-rnn-seed2", 2)):
        recipe = load_recipe(prepared / "s" / folder / "recipe.toml")
        assert (recipe.train.seed, recipe.train.lr) == (seed, float(best))
    assert re.search(r"^demo-rnn +\S+ +\S+ +± \S+ ", result.text, re.M) and "mean of 2 seeds" in result.text
    # Nothing is trained again.
    before = {path: path.stat().st_mtime_ns for path in prepared.glob("s/**/model.safetensors")}
    assert nmt(*command, *TINY).code == 0 and len(before) > 5
    assert before == {path: path.stat().st_mtime_ns for path in prepared.glob("s/**/model.safetensors")}


def test_a_rate_that_diverges_is_not_chosen(prepared, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("nmt_cli.ladder.FIRST_RATES", (2e-3, 1e30))
    monkeypatch.setattr("nmt_cli.ladder.LEAST_RATE", 2e-3)
    corpus = load_recipe(prepared / "data/recipe.toml", {"data.prepared": str(prepared / "data")})
    settings = parse_overrides(SETTINGS)
    ladder = Ladder(corpus, settings, tmp_path, minutes=0, flops=20 * FLOPS)
    assert best_rate(ladder, "demo", "a rung", force=False) == 2e-3
    shown = capsys.readouterr().err
    assert "training diverged" in shown and "with 0.002, inf with 1e+30" in shown
    monkeypatch.setattr("nmt_cli.ladder.FIRST_RATES", (1e30,))
    with pytest.raises(NmtError, match="no trial of demo has a finite validation loss"):
        best_rate(ladder, "demo", "a rung", force=False)
    monkeypatch.setattr("nmt_cli.ladder.FIRST_RATES", (2e-3, 1e30))
    other = replace(ladder, changes={**settings, "train.clip": 0.5})
    with pytest.raises(NmtError, match="has other settings"):
        best_rate(other, "demo", "a rung", force=False)


def test_the_chosen_rate_counts_in_a_rung_whose_settings_nmt_chooses(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text("# Mine.\n[train]\nauto = true\n")
    trained = []
    monkeypatch.setattr("nmt_cli.ladder.best_rate", lambda *given: 5e-3)
    monkeypatch.setattr("nmt_cli.ladder.train_run", lambda recipe, *given: trained.append(recipe))
    ladder = Ladder(load_recipe(shipped_recipes()["demo"]), {}, tmp_path / "out", minutes=1, flops=0)
    names = [str(tmp_path / "mine.toml")]
    train_rungs(ladder, names, [[ladder.recipe(names[0], seed=1)]], choose_rates=True, force=False)
    assert [settings_of(recipe)["train.lr"] for recipe in trained] == [5e-3]


def test_data_of_another_kind_are_those_of_the_corpus(tmp_path, monkeypatch):
    """DATA is prepared again from other text."""
    monkeypatch.setattr("nmt_cli.ladder.train_run", lambda *given: None)

    def inputs(folder: str) -> object:
        return json.loads((tmp_path / folder / "meta.json").read_text())["inputs"]

    def climb(word: str, force: bool) -> None:
        for side, language in enumerate(("en", "de")):
            (tmp_path / f"a.{language}").write_text(
                "".join(f"{word} {pair[side]} {n}\n" for n in range(9) for pair in TEXT)
            )
        prepare(source=tmp_path / "a.en", target=tmp_path / "a.de", out=tmp_path / "data", vocab_size=60, force=True)
        ladder = Ladder(load_recipe(tmp_path / "data/recipe.toml"), {}, tmp_path / "out", minutes=1, flops=0)
        recipes = [[ladder.recipe("demo-bytenet", seed=1)]]
        train_rungs(ladder, ["demo-bytenet"], recipes, choose_rates=False, force=force)
        assert inputs("out/data-char") == inputs("data")

    climb("one", force=False)
    climb("one", force=False)
    with pytest.raises(NmtError, match="out/data-char exists with other content"):
        climb("two", force=False)
    climb("two", force=True)

    # DATA may have the pieces of other data. The rung learns its own.
    prepare(tmp_path / "data", out=tmp_path / "more", set={"vocab.reuse": str(tmp_path / "data")})
    ladder = Ladder(load_recipe(tmp_path / "more/recipe.toml"), {}, tmp_path / "rungs", minutes=1, flops=0)
    train_rungs(ladder, ["demo-bytenet"], [[ladder.recipe("demo-bytenet", seed=1)]], choose_rates=False, force=False)
    assert load_vocab(tmp_path / "rungs/data-char/vocab").type == "char"


def test_table_2_of_the_paper_and_ours(nmt_in, prepared):
    """ByteNet gets data of characters. An ensemble is the runs of all seeds."""
    nmt = partial(nmt_in, prepared)
    command = ("ladder", "data", "--table2", "--rungs", "demo-bytenet,demo-conv", "--flops", FLOPS, "--seeds", 2, *TINY)
    result = nmt(*command, "--out", "t2")
    assert result.code == 0, result.err
    assert load_recipe(prepared / "t2/data-char/recipe.toml").vocab.type == "char"
    with load(prepared / "t2/demo-bytenet") as translator:
        assert translator.translate(["a cat ."])[0].n_best
    assert_user_error(
        nmt("translate", "t2/demo-bytenet", "t.en", "--align", "--format", "jsonl"), "no attention for --align"
    )
    recipes = [load_recipe(prepared / "t2" / name / "recipe.toml") for name in ("demo-conv", "demo-conv-seed2")]
    measured = measure(recipes, lines=0, ensemble=True)
    engine = TorchEngine([recipe.run_folder / "model" for recipe in recipes], "cpu")
    vocab = load_vocab(recipes[0].run_folder / "vocab")
    requests = [Request(tuple(vocab.source.encode(source)), number=n) for n, (source, _) in enumerate(TEXT)]
    expected = [best[0].ids for best in engine.translate(requests, options_of(recipes[0]))]
    assert [measured.ensemble[n] for n in range(3)] == [vocab.target.decode(list(ids)) for ids in expected]
    for text in (result.text, plain(show_table2([measured], 80), 80)):
        lines = text.splitlines()
        assert len(TABLE2) == 10 and {row.recipe for row in TABLE2} <= shipped_recipes().keys()
        for row in TABLE2:  # every row of the paper, trained here or not
            found = [line.split() for line in lines if line.startswith(f"{row.model} ")]
            assert found[0][len(row.model.split())] in (row.en_de, row.en_fr)
        single, ensemble = (
            int(re.findall(rf"^{model} .*?(\d+,\d+)", text, re.M)[0].replace(",", ""))
            for model in ("ConvS2S", "ConvS2S, ensemble")
        )
        assert ensemble == 2 * single
        note = "an ensemble of 2 seeds: parameters, time and FLOPs are sums; ±: 95 % interval, by bootstrap of the test"
        assert note in " ".join(text.split())
    alone = replace(measured, runs=measured.runs[:1], translations=measured.translations[:1], ensemble={})
    assert "an ensemble of" not in plain(show_table2([alone], 80), 80)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rungs", "demo-rnn,lstm"], "there is no recipe lstm"),
        (["--minutes", 1, "--flops", 1e9], "each rung needs one budget"),
        (["--minutes", 0], "each rung needs one budget"),
        (["--rungs", "demo-rnn,demo-rnn"], "two rungs would share the folder ladder/demo-rnn"),
        (["--sentence", " "], "--sentence is empty"),
        (["--sentence", "caf\udce9"], "--sentence is not UTF-8"),
        (["--out", "data"], "must be separate folders"),
        (["--set", "model.ff=8"], "model.ff"),
        (["--seeds", 2, "--set", "train.seed=5"], "--seeds and --set train.seed are both given"),
        (["--choose-rates", "--set", "train.lr=1e-3"], "--choose-rates and --set train.lr are both given"),
        (["--set", "train.out=x"], "nmt ladder takes train.out from --out, not from --set"),
        (["--choose-rates", "--set", "train.minutes=4"], "nmt ladder takes train.minutes from --minutes, not from"),
        (["--minutes", 2, "--set", "train.flops=1e8"], "nmt ladder takes train.flops from --flops, not from --set"),
        (["--rungs", "demo,sub/demo"], "there is no recipe sub/demo, and no folder of this name"),
        (["--table2", "--rungs", "demo-rnn"], "demo-rnn is no row of --table2"),
    ],
)
def test_mistakes_are_refused(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NmtError) as refused:
        app(["ladder", "demo", *map(str, options)], standalone_mode=False)
    assert message in refused.value.message and refused.value.hint
    assert "nmt prepare" not in refused.value.hint


def test_data_that_are_not_there_yet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NmtError, match="there is no recipe data/s") as refused:
        app(["ladder", "data/s"], standalone_mode=False)
    assert "nmt prepare --source FILE --target FILE --out data/s makes such a folder" in refused.value.hint


def test_a_rung_that_does_not_fit_the_data(tmp_path):
    corpus = load_recipe(None, {"vocab.joint": False, "model.tie": "none"})
    with pytest.raises(NmtError, match=r"the rung demo-conv does not fit the data .*: model\.tie"):
        Ladder(corpus, {}, tmp_path, minutes=1, flops=0).recipe("demo-conv", seed=1)


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
