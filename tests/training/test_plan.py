"""Settings that nobody states are chosen, printed, written into the run, and kept when the run goes on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from support.checks import assert_user_error
from support.toy_runs import sets

from nmt_cli.recipe.load import load_recipe, parse_overrides
from nmt_cli.recipe.schema import Augment
from nmt_cli.store.log import Train, Valid, read_log, to_table
from nmt_cli.training.plan import Plan, make_plan

NARROW = sets("model.dim=16", "train.precision=fp32", "train.valid_lines=5")
SHALLOW = sets("model.encoder_layers=1", "model.decoder_layers=1")
FAST = [*NARROW, *SHALLOW]


@pytest.fixture(scope="module")
def own(prepared, nmt_in, tmp_path_factory):
    """Two files of the user, prepared without a recipe."""
    folder = tmp_path_factory.mktemp("own") / "own"
    files = ("--source", prepared / "a.en", "--target", prepared / "a.de", "--set", "data.hold_out=20")
    assert nmt_in(folder.parent, "prepare", *files, "--out", folder).code == 0
    return folder


def plan(recipe: Path, *overrides: str) -> Plan:
    """The plan of a new run, as --dry-run prints it. --dry-run also predicts the memory, which takes long."""
    return make_plan(load_recipe(recipe, parse_overrides(overrides)), torch.device("cpu"))


def test_own_files_get_a_vocabulary_and_a_training_that_are_chosen_and_written_down(own, nmt, tmp_path):
    prepared = load_recipe(own / "recipe.toml")
    assert prepared.train.auto and 6 <= prepared.vocab.size <= 500
    result = nmt("train", own, "--out", "run", "--minutes", "0.02", *NARROW)
    assert result.code == 0, result.err
    choice, forecast = (line for line in result.err.splitlines() if "pairs" in line and "minutes" in line)
    assert re.match(r"380 pairs, 0.02 minutes, \d+ cores?: transformer of width 16, 4\+4 layers, dropout", choice)
    assert re.match(r"0.02 minutes: about [\d,]+ updates, [\d.]+ epochs of 380 pairs", forecast)
    recipe = load_recipe(tmp_path / "run/recipe.toml")
    assert not recipe.train.auto and recipe.model.dim == 16
    assert (recipe.train.optimizer, recipe.train.schedule) == ("muon", "linear")
    assert choice in [entry.text for entry in read_log(tmp_path / "run") if entry.kind == "note"]


def test_a_continued_run_keeps_its_choices(own, nmt, tmp_path):
    train = ("train", own, "--out", "run", *FAST, *sets("train.epochs=0", "train.augment.typos=0.1"))
    assert nmt(*train, "--minutes", "0.01").code == 0
    before = load_recipe(tmp_path / "run/recipe.toml")
    begun = [entry for entry in read_log(tmp_path / "run") if isinstance(entry, Train)][-1]
    left, share = 60 - begun.minutes, 60 / begun.minutes - 1
    rest = f"the limits leave {round(left, 1):g} minutes: about {round(share * begun.step):,} updates, "
    log = tmp_path / "run/log.jsonl"
    intact = log.read_text()
    later = {**to_table(begun), "step": begun.step + 5, "minutes": 50}  # of a session that was killed before it saved
    for text in (intact, intact + json.dumps(later) + "\n"):
        log.write_text(text)
        assert f"# {rest}{round(share * begun.epoch, 1):g} epochs" in nmt(*train, "--minutes", "60", "--dry-run").text
    log.write_text(intact)
    result = nmt(*train, "--minutes", "0.03")
    assert result.code == 0 and "continuing" in result.err, result.err
    after = load_recipe(tmp_path / "run/recipe.toml")
    assert after.model == before.model and after.train.minutes == 0.03
    assert (after.train.lr, after.train.warmup) == (before.train.lr, before.train.warmup)
    assert after.train.augment == before.train.augment == Augment(typos=0.1)


def test_stated_keys_win_over_choices(own, nmt, tmp_path):
    stated = sets("model.dropout=0.33", "train.lr=0.5e-3", "train.optimizer=adam", "train.steps=3")
    assert nmt("train", own, "--out", "run", *FAST, *stated).code == 0
    recipe = load_recipe(tmp_path / "run/recipe.toml")
    assert recipe.model.dropout == 0.33
    assert (recipe.train.lr, recipe.train.optimizer, recipe.train.steps) == (0.5e-3, "adam", 3)


def test_a_recipe_with_data_only_leaves_the_rest_to_nmt_and_a_recipe_with_training_keys_does_not(write):
    corpora = '[data]\ntrain = ["a.en", "a.de"]\n'
    assert load_recipe(write("data.toml", corpora)).train.auto
    assert not load_recipe(write("train.toml", corpora + "[train]\nwarmup = 4000\n")).train.auto
    assert not load_recipe(write("model.toml", corpora + "[model]\ndim = 64\n")).train.auto
    assert load_recipe(write("both.toml", corpora + "[model]\ndim = 64\n[train]\nauto = true\n")).train.auto
    assert not load_recipe(write("off.toml", corpora + "[train]\nauto = false\n")).train.auto


def test_another_family_trains_with_chosen_settings(own, nmt, tmp_path):
    result = nmt("train", own, "--out", "run", *NARROW, *sets("model.family=rnn", "train.steps=3"))
    assert result.code == 0, result.err
    recipe = load_recipe(tmp_path / "run/recipe.toml")
    assert (recipe.model.family, recipe.train.optimizer) == ("rnn", "muon")


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        (("train.steps=0", "train.minutes=0.1"), "may take longer than 0.1 minutes; give at least 1 minute"),
        (("train.warmup=30", "train.steps=40"), "the warm-up of 30 updates is longer than half of"),
        (("train.steps=2",), "warning: training ends before it has read all data once"),
        (("train.tokens=100",), "warning: training ends before it has read all data once"),
        (("model.dim=256", "train.steps=40"), "a smaller model would learn more"),
    ],
)
def test_the_plan_warns_when_the_limits_do_not_fit_the_data(toy, settings, warning):
    assert any(warning in line for line in plan(toy, *settings).lines)


@pytest.mark.parametrize(
    ("settings", "forecast"),
    [
        (("train.epochs=150",), r"150 epochs of \d+ pairs: about [\d,]+ updates"),
        (("train.epochs=1",), r"1 epoch of \d+ pairs: about [\d,]+ updates"),
        (("train.steps=40",), r"40 updates: about [\d.]+ epochs of \d+ pairs"),
        (("train.tokens=3000",), r"3,000 tokens: about [\d,]+ updates?, [\d.]+ epochs of \d+ pairs"),
        (("train.flops=3e8",), r"3e\+08 FLOPs: about [\d,]+ updates?, [\d.]+ epochs of \d+ pairs"),
        (("train.steps=40", "train.batch_tokens=100000"), r"40 updates: about 40 epochs of \d+ pairs"),
        # Each batch is a pass over the data, and 4 batches are an update.
        (("train.steps=40", "train.batch_tokens=100000", "train.accumulate=4"), r"40 updates: about 160 epochs of .*"),
    ],
)
def test_the_forecast_says_each_amount_once(toy, settings, forecast):
    assert re.fullmatch(forecast, plan(toy, "train.steps=0", *settings).lines[0])


def test_the_forecast_without_a_limit_says_the_time_and_what_ends_the_training_earlier(own, monkeypatch):
    """380 pairs of about 9 target tokens are read in less than a second a pass at 5,000 tokens/s."""
    monkeypatch.setattr("nmt_cli.training.plan._speed", lambda *args: 5000.0)
    forecast = r"150 epochs of 380 pairs: about [\d,]+ updates, \d minutes?, at 5,000 target tokens/s"
    lines = plan(own / "recipe.toml").lines
    assert re.fullmatch(forecast + "; fewer after 8 validations without progress", lines[1]), lines


@pytest.mark.parametrize(
    "settings", [(), ("train.consistency=rdrop",), ("train.reward=gleu", "train.reward_after=0.5")]
)
def test_a_limit_of_operations_gives_the_updates_of_the_forecast(toy, train_toy, settings):
    settings = ("train.steps=0", "train.flops=6e8", "train.valid_every=1000", "train.log_every=1", *settings)
    result, _ = train_toy(*settings)
    last = [entry.step for entry in read_log(result.run) if isinstance(entry, Train)][-1]
    assert plan(toy, *settings).updates == pytest.approx(last, rel=0.2)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # The data have 2,280 tokens on each side. 150 epochs are 342,000 tokens: 21 updates of 16,384.
        (("train.minutes=6000", "train.batch_tokens=16384"), {"warmup": 10, "ema": 0.9}),
        (("train.minutes=6000", "train.batch_tokens=1024", "train.accumulate=16"), {"warmup": 10, "ema": 0.9}),
        (("train.steps=300",), {"warmup": 30, "ema": 0.933, "batch_tokens": 1024}),
        (("train.flops=1e7",), {"warmup": 10, "schedule": "linear", "patience": 0, "epochs": 0}),
    ],
)
def test_the_choices_suit_the_stated_batches_and_limits(own, settings, expected):
    planned = plan(own / "recipe.toml", *(setting for setting in FAST if "=" in setting), *settings)
    assert {key: getattr(planned.recipe.train, key) for key in expected} == expected
    assert ("train.flops=1e7" in settings) == any("warm-up" in line for line in planned.lines)


def test_dry_run_prints_the_forecast_and_the_warnings(toy, nmt):
    result = nmt("train", toy, "--dry-run", *sets("train.steps=2"))
    assert result.code == 0
    assert re.search(r"^# 2 updates: about [\d.]+ epochs of 400 pairs$", result.text, re.MULTILINE), result.text[:600]
    said = " ".join(result.text.replace("#", "").split())
    assert "warning: training ends before it has read all data once; expect a weak model" in said
    assert "warning: the warm-up of 20 updates is longer than half of the training" in said


def test_dry_run_of_own_files_prints_the_choice_and_a_valid_recipe(own, nmt, write):
    result = nmt("train", own, "--dry-run", "--minutes", "5", *SHALLOW)
    text = result.out.decode()
    assert re.search(r"^# 380 pairs, 5 minutes, \d+ cores?: transformer", text, re.MULTILINE)
    assert re.search(r"^# 5 minutes: about|^# 150 epochs of 380 pairs: about", text, re.MULTILINE)
    recipe = load_recipe(write("shown.toml", text))
    assert not recipe.train.auto and recipe.train.optimizer == "muon"


def test_dry_run_before_the_data_are_prepared_says_when_settings_are_chosen(prepared, nmt):
    files = ("--source", prepared / "a.en", "--target", prepared / "a.de", "--out", "new", "--dry-run")
    assert b"nmt train chooses the model and the training" in nmt("prepare", *files).out


def test_a_stated_size_of_0_is_the_size_that_prepare_has_chosen(own, prepared, nmt, write):
    """The dry run of prepare writes this line."""
    shown = nmt("prepare", "--source", prepared / "a.en", "--target", prepared / "a.de", "--out", own, "--dry-run").text
    assert "size = 0\n" in shown
    result = nmt("train", write("my.toml", shown), "--dry-run", *FAST)
    assert result.code == 0, result.err
    assert load_recipe(write("shown.toml", result.text)).vocab == load_recipe(own / "recipe.toml").vocab


def test_another_vocabulary_than_that_of_the_data_is_an_error(own, nmt):
    for dry_run in ((), ("--dry-run",)):
        result = nmt("train", own, "--out", "run", *dry_run, *sets("vocab.size=80"))
        assert_user_error(result, "were prepared with vocab.size = ", "not 80")


OTHER_MODELS = [
    (("model.family=rnn", "model.cell=gru"), 'has model.family = "transformer", not "rnn"'),
    (("model.dim=18",), "model.heads: must divide dim = 18; 4 does not"),
]


@pytest.mark.parametrize(("settings", "message"), OTHER_MODELS)
def test_a_run_cannot_go_on_with_another_model(own, nmt, tmp_path, settings, message):
    train = ("train", own, "--out", "run", *FAST, *sets("train.steps=1"))
    assert nmt(*train).code == 0
    for more in ((), ("--dry-run",)):
        assert_user_error(nmt(*train, *sets(*settings), *more), str(Path("run")), message, "--out NEW starts a new run")


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        *(("transformer", *row) for row in OTHER_MODELS),
        ("rnn", ("model.attention_dropout=0.1",), 'model.family = "rnn", which has no key attention_dropout'),
    ],
)
def test_a_model_of_from_keeps_its_architecture(own, nmt, family, settings, message):
    small = (*NARROW, *(SHALLOW if family == "transformer" else ()), *sets(f"model.family={family}", "train.steps=1"))
    assert nmt("train", own, "--out", "old", *small).code == 0
    assert_user_error(nmt("train", own, "--from", "old", "--out", "new", *sets(*settings)), message, "leave them out")


def test_models_of_sentences_longer_than_the_default(own, prepared, nmt, tmp_path):
    files = ("--source", prepared / "a.en", "--target", prepared / "a.de")
    assert nmt("prepare", *files, "--out", "long", *sets("data.clean.max_tokens=1500")).code == 0
    train = sets("train.steps=1", "train.precision=fp32")
    result = nmt("train", "long", "--out", "base", *FAST, *train)
    assert result.code == 0, result.err
    assert load_recipe(tmp_path / "base/recipe.toml").model.max_positions == 1501
    result = nmt(
        "finetune", "base", "--source", prepared / "v.en", "--target", prepared / "v.de", "--out", "new", *train
    )
    assert result.code == 0, result.err
    assert load_recipe(tmp_path / "new/recipe.toml").model.max_positions == 1501
    # A model of shorter sentences keeps its positions.
    assert nmt("train", own, "--out", "short", *FAST, *train).code == 0
    result = nmt("train", "long", "--from", "short", "--out", "tuned")
    assert_user_error(result, "model.max_positions: must be above data.clean.max_tokens = 1500, not 1024")


@pytest.mark.parametrize(("setting", "heads"), [("model.dim=18", 2), ("model.dim=50", 2)])
def test_the_heads_suit_the_stated_width(own, setting, heads):
    planned = plan(own / "recipe.toml", setting, "model.encoder_layers=1", "model.decoder_layers=1")
    assert planned.recipe.model.heads == heads


def test_stated_keys_that_do_not_fit_the_choices_are_an_error(own, nmt):
    result = nmt("train", own, "--out", "run", *FAST, *sets("train.schedule=cosine", "train.epochs=0"))
    assert_user_error(result, 'train.steps: schedule = "cosine" needs an end', "state this key as well")


def test_fine_tuning_keeps_the_model_lowers_the_rate_and_measures_before_and_after(own, prepared, nmt, write, tmp_path):
    assert nmt("train", own, "--out", "old", *FAST, *sets("train.steps=5")).code == 0
    files = ("--source", prepared / "v.en", "--target", prepared / "v.de", "--set", "vocab.reuse=old")
    assert nmt("prepare", *files, "--out", "new").code == 0
    train = ("train", "new", "--from", "old", "--out", "tuned", *sets("train.steps=5", "train.precision=fp32"))
    dry_run = nmt(*train, "--dry-run")
    assert dry_run.code == 0, dry_run.err
    result = nmt(*train)
    assert result.code == 0, result.err
    old, tuned = (load_recipe(tmp_path / f"{name}/recipe.toml") for name in ("old", "tuned"))
    assert tuned.model.dim == old.model.dim == 16 and tuned.train.lr == pytest.approx(old.train.lr / 5, rel=0.05)
    steps = [entry.step for entry in read_log(tmp_path / "tuned") if isinstance(entry, Valid)]
    assert steps[0] == 0 and steps[-1] == 5
    rows = [line.split()[:2] for line in result.text.splitlines()]
    assert ["before", "BLEU"] in rows and ["best", "BLEU"] in rows
    shown = load_recipe(write("shown.toml", dry_run.text))
    assert (shown.model, shown.train.lr) == (tuned.model, tuned.train.lr)


def test_dry_run_of_a_run_shows_the_settings_that_it_began_with(own, nmt, write, tmp_path):
    assert nmt("train", own, "--out", "run", "--minutes", "0.01", *FAST).code == 0
    begun = load_recipe(tmp_path / "run/recipe.toml")
    shown = load_recipe(write("shown.toml", nmt("train", own, "--out", "run", "--minutes", "600", "--dry-run").text))
    assert (shown.model, shown.train.warmup, shown.train.minutes) == (begun.model, begun.train.warmup, 600)
