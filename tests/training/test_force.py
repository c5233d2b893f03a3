"""--force renames the old run and starts again."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checks import assert_user_error
from support.toy_runs import sets, steps_saved

from nmt_cli.errors import NmtError
from nmt_cli.recipe.load import load_recipe
from nmt_cli.store.log import Note
from nmt_cli.training.session import train


def content(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_force_renames_the_old_run_and_says_where_it_went(nmt, toy, tmp_path):
    run, old = tmp_path / "runs/toy", tmp_path / "runs/toy.old-1"
    assert nmt("train", toy, *sets("train.steps=5")).code == 0
    before = content(run)
    for number in (1, 2):
        result = nmt("train", toy, "--force", *sets("train.lr=5e-3", "train.steps=3"))
        assert result.code == 0
        assert f"the old run was renamed to {tmp_path}/runs/toy.old-{number}" in result.err.replace("\n", " ")
        assert steps_saved(run) == [3]
    assert content(old) == before and steps_saved(tmp_path / "runs/toy.old-2") == [3]
    # A renamed run is a run like any other.
    assert "already finished" in nmt("train", toy, "--out", old, *sets("train.steps=5")).err


def test_force_without_a_run_renames_nothing(train_toy, tmp_path):
    (tmp_path / "runs/toy").mkdir(parents=True)
    result, events = train_toy("train.steps=2", force=True)
    assert result.reason == "2 steps" and not any(
        isinstance(event, Note) and "renamed" in event.text for event in events
    )
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["toy"]


def test_force_renames_nothing_if_the_new_run_is_refused(nmt, toy, tmp_path):
    assert nmt("train", toy, *sets("train.steps=5")).code == 0
    before = content(tmp_path / "runs")
    refused = nmt("train", toy, "--force", *sets("train.max_length=1"))
    assert_user_error(refused, "every training pair has more than 1 pieces on a side")
    assert content(tmp_path / "runs") == before
    assert "already finished" in nmt("train", toy, *sets("train.steps=5")).err


def test_force_follows_a_link_to_the_run(nmt, toy, tmp_path):
    (tmp_path / "disk/run").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk/run")
    for _ in range(2):
        assert nmt("train", toy, "--out", "link", "--force", *sets("train.steps=2")).code == 0
    assert steps_saved(tmp_path / "disk/run") == steps_saved(tmp_path / "disk/run.old-1") == [2]


def test_force_is_refused_if_the_old_run_holds_the_model_of_from(toy, tmp_path):
    recipe = load_recipe(toy, {"train.steps": 2})
    train(recipe)
    before = content(tmp_path / "runs")
    with pytest.raises(NmtError, match=r"--force would rename .*, which holds the model of --from"):
        train(recipe, start_from=tmp_path / "runs/toy", force=True)
    assert content(tmp_path / "runs") == before
