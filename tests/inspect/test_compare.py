"""`nmt compare`: the settings that differ, the figures of training, the curves, and the scores of a test set."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from typing import get_args, get_type_hints

import pytest
from support.checks import assert_user_error, on_terminal
from support.records import write_again
from support.small_language import sentences

from nmt_cli.commands.compare import translation_scores
from nmt_cli.errors import NmtError
from nmt_cli.recipe.load import load_recipe, recipe_tables, tables_toml
from nmt_cli.store.log import End, Entry, Start, Train, Valid, to_table


def entry(kind: type[Entry], **known: object) -> Entry:
    """An entry of a log with some figures. The others are null, 0 or empty."""
    types = get_type_hints(kind)
    others = {field.name: None if get_args(types[field.name]) else types[field.name]() for field in fields(kind)}
    return kind(**{**others, **known})


@pytest.fixture
def run(write, tmp_path):
    """run("runs/a", [10.0, 20.0], "lr = 1e-3") writes a run without weights: its BLEUs and its settings."""

    def make(name: str, bleus: list[float], train: str = "", data: str = "") -> str:
        recipe = load_recipe(
            write("some.toml", f"[data]\nprepared = '{tmp_path}/{name}-data'\n{data}\n[train]\nauto = false\n{train}")
        )
        write(f"{name}/recipe.toml", tables_toml(recipe_tables(recipe)))
        steps = range(100, 100 * len(bleus) + 1, 100)
        figures = {"epoch": 1.5, "tokens": 3000, "minutes": 2.0}
        scores = {"loss": 1.5, "chrf": 50.0, "lines": 20, "seconds": 30.0}
        log = [entry(Start, step=0, parameters=1234567, pairs=400)]
        for step, bleu in zip(steps, bleus, strict=True):
            log.append(entry(Train, step=step, **figures))
            log.append(entry(Valid, step=step, bleu=bleu, best=bleu == max(bleus), **scores))
        log.append(End(steps[-1] if bleus else 0, "2 minutes", 0))
        write(f"{name}/log.jsonl", "".join(json.dumps(to_table(entry)) + "\n" for entry in log))
        return name

    return make


def rows_of(text: str) -> dict[str, list[str]]:
    """The cells of each row of the tables, by the first cell."""
    return {first: cells for first, *cells in (re.split(" {2,}", line.strip()) for line in text.split("\n"))}


def test_settings_that_differ_and_figures_are_shown_side_by_side(nmt, run):
    result = nmt("compare", run("runs/a", [10, 30, 20], "lr = 1e-3"), run("runs/b", [15, 25], "lr = 2e-3\nwarmup = 9"))
    assert result.code == 0 and "--test" in result.err, result.err
    settings, training = result.text.split("Training")
    assert rows_of(settings)["train.lr"] == ["0.001", "0.002"] and rows_of(settings)["train.warmup"] == ["4000", "9"]
    assert "train.out" not in settings and "model.dim" not in settings
    rows = rows_of(training)
    assert rows["parameters"] == ["1,234,567"] * 2 and rows["tokens/s"] == ["20", "20"]
    assert rows["best BLEU"] == ["30.00", "25.00"] and rows["at step"] == ["200", "200"]
    assert rows["steps"] == ["300", "200"] and rows["time"] == ["2:30", "2:30"] and rows["stopped"] == ["2 minutes"] * 2
    assert "● a" in training and "■ b" in training and "step 300" in training
    assert "cannot be compared" not in training


@pytest.mark.parametrize("columns", [60, 200])
def test_four_runs_fit_into_the_terminal(forked, run, tmp_path, columns):
    names = [
        run(f"runs/{name}", [5, 9], f"lr = {rate}") for name, rate in zip("abcd", (1e-3, 2e-3, 3e-3, 4e-3), strict=True)
    ]
    lines = on_terminal(forked, "stdout", columns, "compare", *names, cwd=tmp_path)
    assert max(map(len, lines)) <= columns
    assert rows_of("\n".join(lines))["train.lr"] == ["0.001", "0.002", "0.003", "0.004"]


def test_equal_recipes_and_runs_without_validation(nmt, run, tmp_path):
    shutil.copytree(tmp_path / run("runs/a", []), tmp_path / "runs/b")
    result = nmt("compare", "runs/a", "runs/b")
    assert result.code == 0, result.err
    assert "The recipes have the same settings." in result.text and "BLEU" not in result.text


def test_one_validation_is_no_curve(nmt, run):
    assert "validation BLEU" not in nmt("compare", run("runs/a", [1]), run("runs/b", [2])).text
    result = nmt("compare", run("runs/a", []), run("runs/b", [2, 3]))
    assert "validation BLEU" in result.text
    (scores,) = (line for line in result.text.split("\n") if line.startswith("best BLEU"))
    (heads,) = (line for line in result.text.split("Training")[1].split("\n") if line.split() == ["a", "b"])
    assert scores.rindex("3.00") + 3 == heads.rindex("b")  # the score is below the name of its run


@pytest.mark.parametrize(
    ("train", "data", "keys"),
    [
        ("valid_lines = 7", "", "train.valid_lines"),
        ("valid_beam = 3", "", "train.valid_beam"),
        ("", 'valid = ["v.en", "v.de"]', "data.valid"),
        ("", 'train = ["t.en", "t.de"]', "data.train"),
    ],
)
def test_different_validations_are_named(nmt, run, train, data, keys):
    result = nmt("compare", run("runs/a", [10]), run("runs/b", [15], train, data))
    assert f"The validation scores cannot be compared: the runs differ in {keys}." in result.text


def test_equal_validation_texts_can_be_compared(nmt, run, write):
    for name in "ab":
        run(f"runs/{name}", [10], "", f'valid = ["{name}.en", "{name}.de"]')
        write(f"runs/{name}-data/valid.target.txt", "the same\n")
    assert "cannot be compared" not in nmt("compare", "runs/a", "runs/b").text


def test_killed_run_is_not_finished(nmt, run, tmp_path):
    run("runs/a", [10])
    run("runs/b", [10])
    log = tmp_path / "runs/b/log.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    assert rows_of(nmt("compare", "runs/a", "runs/b").text)["stopped"] == ["2 minutes", "not finished"]


def test_damaged_lines_of_a_log_are_named(nmt, run, tmp_path):
    run("runs/a", [10])
    run("runs/b", [10])
    log = tmp_path / "runs/b/log.jsonl"
    log.write_text(log.read_text().replace("2.0", "2.x"))
    result = nmt("compare", "runs/a", "runs/b")
    assert result.code == 0 and result.err.startswith("warning: line 2 of runs/b/log.jsonl cannot be read\n")


def test_paths_are_shown_without_their_common_folder(nmt, run):
    data = [f'train = ["/far/away/{name}/t.en", "/far/away/{name}/t.de"]' for name in ("one", "two")]
    result = nmt("compare", run("runs/a", [10], "", data[0]), run("runs/b", [15], "", data[1]))
    assert rows_of(result.text)["data.train"] == ["one/t.en, one/t.de", "two/t.en, two/t.de"]


def test_runs_of_the_same_name_are_shown_with_their_folders(nmt, run):
    result = nmt("compare", run("x/run", [10, 11]), run("y/run", [15]))
    assert "● x/run" in result.text and "■ y/run" in result.text


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["runs/a"], ["needs two runs", "nmt inspect runs/a"]),
        (["my runs/a"], ["needs two runs", "nmt inspect 'my runs/a'"]),
        (["runs/a", "runs/a"], ["runs/a is named twice"]),
        (["runs/a", "none"], ["there is no run none"]),
        (["runs/a", "runs"], ["runs is not a run"]),
        (["runs/a", "runs/b", "--source", "x"], ["--source and --ref belong together"]),
        (["runs/a", "runs/b", "--source", "x", "--ref", "y", "--test"], ["name two test sets"]),
        (["runs/a", "runs/b", "--test"], ["runs/a-data has no test set", "--source and --ref"]),
        (["runs/a", "runs/b", "--source", "runs/a/recipe.toml", "--ref", "runs/a/log.jsonl"], ["lines, but"]),
        (["runs/a", "runs/b", "--source", "runs/a/recipe.toml", "--ref", "runs/a/recipe.toml"], ["is not a model"]),
    ],
)
def test_mistakes_are_user_errors(nmt, run, arguments, parts):
    run("runs/a", [10])
    run("runs/b", [15])
    assert_user_error(nmt("compare", *arguments), *parts)


def test_different_test_sets_are_refused(nmt, run, write):
    for name in "ab":
        run(f"runs/{name}", [10])
        write(f"runs/{name}-data/test.source.txt", "one\n")
        write(f"runs/{name}-data/test.target.txt", f"{name}\n")
    assert_user_error(nmt("compare", "runs/a", "runs/b", "--test"), "have different test sets", "--source and --ref")


def test_torch_is_not_imported_for_recipes_and_logs(run, tmp_path):
    names = [run("runs/a", [10]), run("runs/b", [15])]
    script = "import sys; from nmt_cli.cli import app\n"
    script += f"app(['compare', *{names}], standalone_mode=False); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


def test_scores_are_those_of_translate_and_score(nmt, model, write, tmp_path):
    """The second run is a copy of the first one that searches greedily and writes short translations."""
    shutil.copytree(model, tmp_path / "runs/short", symlinks=True)
    recipe = tmp_path / "runs/short/model/recipe.toml"
    short = re.sub(r"\[translate\][^\[]*", "[translate]\nbeam = 1\nmax_ratio = 0.1\n", recipe.read_text())
    recipe.write_text(short)
    write_again(tmp_path / "runs/short/model/about.json")
    pairs = sentences(30, seed=5)
    for side, language in enumerate(("en", "fr")):
        write(f"t.{language}", "".join(pair[side] + "\n" for pair in pairs))
    compared = nmt("compare", model, "runs/short", "--source", "t.en", "--ref", "t.fr")
    assert compared.code == 0, compared.err
    for name, folder in (("run", model), ("short", "runs/short")):
        write(name, nmt("translate", folder, "t.en").out)
    scored = nmt("score", "run", "short", "--ref", "t.fr", "--paired", "bs", "--source", "t.en")
    assert scored.code == 0, scored.err
    assert rows_of(scored.text)["BLEU"] == rows_of(compared.text)["BLEU"]
    assert rows_of(scored.text)["chrF2"] == rows_of(compared.text)["chrF2"]
    assert rows_of(scored.text)["short"] == rows_of(compared.text)["short"] and "*" in rows_of(scored.text)["short"][-1]


def test_a_damaged_model_is_reported_before_the_first_one_translates(nmt, model, write, tmp_path, monkeypatch):
    monkeypatch.setattr("nmt_cli.load", None)  # nothing translates in this process
    models = {name: tmp_path / name for name in "ab"}
    for path in models.values():
        shutil.copytree(model, path, symlinks=True)
    source, ref = write("t.en", "one\n"), write("t.fr", "un\n")

    def hint_for_damage(name: str) -> str:
        with (tmp_path / "b/model" / name).open("ab") as weights:
            weights.write(b"x")
        with pytest.raises(NmtError, match=name) as refused:
            translation_scores(models, source, ref, "fr")
        return refused.value.hint.replace(f"{tmp_path}/", "")

    hint = "nmt export b/model --to ctranslate2 --force writes it again"
    assert hint_for_damage("ctranslate2/model.bin") == hint
    assert_user_error(nmt("translate", "b", "t.en"), f"hint: {hint}; or use --engine torch\n")
    shutil.rmtree(tmp_path / "b/model/ctranslate2")  # then torch translates
    assert hint_for_damage("model.safetensors").startswith("nmt verify b/model")


@pytest.mark.skipif(importlib.util.find_spec("MeCab") is not None, reason="the tokenizer of Japanese is installed")
def test_language_whose_tokenizer_is_not_installed_is_scored_as_in_validation(nmt, model, write, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(model, tmp_path / "runs" / name, symlinks=True)
        for recipe in (tmp_path / "runs" / name).rglob("recipe.toml"):
            recipe.write_text(recipe.read_text().replace('target_lang = "fr"', 'target_lang = "ja"'))
        write_again(tmp_path / "runs" / name / "model/about.json")
    for language in ("en", "fr"):
        write(f"t.{language}", "one\n")
    compared = nmt("compare", "runs/a", "runs/b", "--source", "t.en", "--ref", "t.fr")
    assert compared.code == 0, compared.err
    assert "BLEU's tokenizer: char, because ja-mecab is not installed" in compared.text
