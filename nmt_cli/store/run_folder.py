"""The folder of a training run, apart from its tensors: its recipe, its log, and whether one may go on in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from nmt_cli.errors import NmtError
from nmt_cli.files import read_json
from nmt_cli.recipe.load import load_recipe, recipe_tables
from nmt_cli.recipe.schema import Recipe
from nmt_cli.store.checkpoint import State, checkpoints, without_paths

# Keys of [train] that may change between two sessions: they end, watch or place a run, but do not shape it.
_FREE = {
    *(
        "out",
        "steps",
        "epochs",
        "tokens",
        "minutes",
        "flops",
        "patience",
        "valid_every",
        "valid_minutes",
        "valid_lines",
    ),
    *(
        "valid_beam",
        "metric",
        "keep",
        "log_every",
        "average",
        "device",
        "processes",
        "compile",
        "tf32",
        "pin_memory",
        "tensorboard",
    ),
}


def data_fingerprint(recipe: Recipe) -> str:
    """Of the prepared data; they must be there."""
    meta = recipe.prepared_folder / "meta.json"
    if not meta.is_file():
        raise NmtError(
            f"there are no prepared data in {recipe.prepared_folder}",
            "run nmt prepare with the same recipe first; or set data.prepared to where they are",
        )
    return str(read_json(meta, "the prepared data's").get("fingerprint"))


def as_prepared(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """With the [vocab] that the data were prepared with, whatever the recipe says; and what it says otherwise."""
    path = recipe.prepared_folder / "recipe.toml"
    if not path.is_file():
        return recipe, []
    prepared = load_recipe(path)
    before, now = (recipe_tables(each)["vocab"] for each in (prepared, recipe))
    different = [
        f"the data were prepared with vocab.{key} = {before[key]!r}: that counts, not {now[key]!r}"
        for key in now
        if prepared.vocab.reuse is None and key in before and before[key] != now[key]
    ]
    return replace(recipe, vocab=prepared.vocab), different


def check_same(recipe: Recipe, state: State, start_from: Path | None) -> None:
    """Refuse to go on with a recipe, data or an origin that are not the run's."""
    run = recipe.run_folder
    before, now = (recipe_tables(without_paths(each)) for each in (load_recipe(run / "recipe.toml"), recipe))
    # The curve ends with the budget, and was followed so far as if that were where it was.
    bent = {"steps", "epochs", "tokens", "flops"} if recipe.train.schedule in ("cosine", "linear", "wsd") else set()
    different = [
        f"{table}.{key} was {before[table].get(key)!r} and is {now[table].get(key)!r}"
        for table in ("model", "train")
        for key in sorted(set(before[table]) | set(now[table]))
        if before[table].get(key) != now[table].get(key) and not (table == "train" and key in _FREE - bent)
    ]
    if data_fingerprint(recipe) != state.data:
        different.append("the prepared data are others")
    if start_from is not None and str(start_from.resolve()) != state.origin:
        different.append(f"it was begun from {state.origin or 'no other model'}, and is to be from {start_from}")
    if different:
        raise NmtError(
            f"the run in {run} was begun with another recipe: {'; '.join(different)}",
            "--out starts a new run elsewhere, --force this one again; nmt train --from RUN starts with its weights",
        )


@contextmanager
def replaced_run(run: Path) -> Iterator[None]:
    """--force: the run's own files, not the prepared data beside them, are put aside; removed at the end, or put back
    after an error."""
    try:
        _move(run, run / _ASIDE)
        yield
    except BaseException:
        put_back(run)
        raise
    shutil.rmtree(run / _ASIDE)


def put_back(run: Path) -> None:
    """What a kill in the midst of that left aside: the old run, unless the new one has come to a checkpoint."""
    if (run / _ASIDE).exists():
        if not checkpoints(run):
            _move(run / _ASIDE, run)
        shutil.rmtree(run / _ASIDE, ignore_errors=True)


_ASIDE = ".replaced"


def _move(here: Path, there: Path) -> None:
    """All that a run consists of."""
    there.mkdir(exist_ok=True)
    for name in ("checkpoints", "model", "vocab", "log.jsonl", "recipe.toml"):
        if (here / name).exists():
            shutil.rmtree(there / name, ignore_errors=True)  # a folder, else a file, which is replaced
            if name == "recipe.toml":  # which stays too: by it the run is found again
                shutil.copy2(here / name, there / name)
            else:
                (here / name).rename(there / name)
