"""Checks before a session: the prepared data, the model of --from, and settings that must not change within a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from nmt_cli.errors import NmtError, quoted, raise_if_denied
from nmt_cli.files import check_files, read_record
from nmt_cli.recipe.load import load_recipe, settings_of, shipped_recipes
from nmt_cli.recipe.schema import Recipe
from nmt_cli.store.checkpoint import State, damage_of, without_paths
from nmt_cli.store.folders import CheckpointFolder, RunFolder, find_model
from nmt_cli.text.vocab import load_vocab

_LARGEST_CHECKED_AGAIN = 1 << 30  # bytes; a second or two to read
_LIMITS = {"steps", "epochs", "tokens", "flops", "minutes", "patience"}
_VALIDATION = {"valid_every", "valid_minutes", "valid_lines", "valid_beam", "metric", "keep", "average"}
_PLACE = {"out", "log_every", "tensorboard", "device", "processes", "compile", "tf32", "pin_memory", "pad_to"}
_PLACE |= {"checkpoint_activations", "shard"}


def read_meta(recipe: Recipe) -> dict[str, Any]:
    """meta.json of the prepared data. Missing data are an error."""
    meta = recipe.prepared_folder / "meta.json"
    raise_if_denied(meta)
    if not meta.is_file():
        first = f"run nmt prepare {recipe.name if recipe.name in shipped_recipes() else 'with the same recipe'} first"
        raise NmtError(
            f"there are no prepared data in {recipe.prepared_folder}",
            f"{first}, or set data.prepared to the folder of the data",
        )
    return read_record(meta, "the prepared data's")


def data_fingerprint(recipe: Recipe) -> str:
    """The fingerprint of the prepared data."""
    return str(read_meta(recipe).get("fingerprint"))


def check_prepared(recipe: Recipe, resumes: bool, show: Callable[[str], None]) -> None:
    """Compare the checksums of the prepared data.

    A session that resumes a run does not read the largest files for that: the first session has read them, and tens
    of gigabytes would delay every start (docs/reliability.md). `show` gets a line about the progress.
    """
    folder, files = recipe.prepared_folder, read_meta(recipe).get("files", {})
    sizes = {name: (folder / name).stat().st_size for name in files if (folder / name).is_file()}
    if resumes:
        files = {name: files[name] for name in files if sizes.get(name, 0) <= _LARGEST_CHECKED_AGAIN}
    total, done = sum(sizes.get(name, 0) for name in files), 0

    def progress(count: int) -> None:
        nonlocal done
        done += count
        if done % (1 << 28) < count:  # every 256 MB
            show(f"checking the prepared data: {done / 1e9:.1f} of {total / 1e9:.1f} GB")

    hint = f"nmt verify {quoted(folder)} lists what is damaged; prepare the data again with --force"
    check_files(folder, files, hint, progress)


def share_of_paragraphs(recipe: Recipe) -> float | None:
    """The share of the training lines that have several sentences. Data of older versions do not say."""
    report = read_meta(recipe).get("report", {})
    several, pairs = report.get("several_sentences"), report["splits"]["train"]["sentences"] if report else 0
    return None if several is None else several / max(1, pairs)


def as_prepared(recipe: Recipe) -> Recipe:
    """The recipe with the [vocab] table of the prepared data. A [vocab] key that states something else is an error.

    The size 0 lets nmt prepare choose, so it states nothing.
    """
    folder = recipe.prepared_folder
    if not (folder / "recipe.toml").is_file():
        return recipe
    prepared = load_recipe(folder / "recipe.toml").vocab
    stated = {key: value for key, value in vars(recipe.vocab).items() if f"vocab.{key}" in recipe.stated}
    if not recipe.vocab.size:
        stated.pop("size", None)
    differences = [
        f"vocab.{key} = {getattr(prepared, key)!r}, not {value!r}"
        for key, value in stated.items()
        if prepared.reuse is None and getattr(prepared, key) != value
    ]
    if differences:
        raise NmtError(
            f"the data in {folder} were prepared with {'; '.join(differences)}",
            "leave the key out, or prepare the data again with it: nmt prepare ... --out NEW",
        )
    return replace(recipe, vocab=prepared)


def last_good_checkpoint(run: RunFolder) -> tuple[CheckpointFolder | None, dict[CheckpointFolder, str]]:
    """The checkpoint to continue from, and the later ones, which are damaged, with the reasons."""
    damaged: dict[CheckpointFolder, str] = {}
    for folder in reversed(run.saved_checkpoints()):
        reason = damage_of(folder)
        if not reason:
            return folder, damaged
        damaged[folder] = reason
    if damaged:
        restart = f"--from {quoted(run.model)} --out NEW starts a new run with the best weights; " * run.model.exists()
        reasons = "; ".join(damaged.values())
        raise NmtError(f"no checkpoint of {run.path} is intact: {reasons}", f"{restart}--force starts this one again")
    return None, damaged


def check_same_run(recipe: Recipe, state: State, start_from: Path | None) -> None:
    """Refuse to continue a run with other data, another model or other training settings."""
    run = RunFolder(recipe.run_folder)
    before, now = (settings_of(without_paths(each)) for each in (load_recipe(run.recipe), recipe))
    may_change = _LIMITS | _VALIDATION | _PLACE
    if recipe.train.schedule in ("cosine", "linear", "wsd"):  # the rate has fallen towards the old limit so far
        may_change -= {"steps", "epochs", "tokens", "flops"}
    differences = [
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in sorted(before.keys() | now.keys())
        if name.startswith(("model.", "train.")) and name.removeprefix("train.") not in may_change
        if before.get(name) != now.get(name)
    ]
    if data_fingerprint(recipe) != state.data:
        differences.append("the prepared data have changed")
    if start_from is not None and str(start_from.resolve()) != state.origin:
        differences.append(f"it started from {state.origin or 'random weights'}, not from {start_from}")
    if differences:
        raise NmtError(
            f"the run in {run.path} has other settings: {'; '.join(differences)}",
            "--out NEW starts a new run in another folder, --force starts this one again, "
            f"--from {quoted(run.path)} --out NEW starts a new run with its weights",
        )


def check_origin(recipe: Recipe, origin: Path, force: bool) -> None:
    """Refuse --from a model that --force would rename, or whose vocabulary or architecture differs."""
    files = find_model(origin)
    if force and files.path.resolve().is_relative_to(recipe.run_folder.resolve()):
        raise NmtError(
            f"--force would rename {recipe.run_folder}, which holds the model of --from",
            "name another folder with --out",
        )
    if not load_vocab(files.vocab).same_pieces(load_vocab(recipe.prepared_folder / "vocab")):
        raise NmtError(
            f"the data were prepared with another vocabulary than that of {origin}",
            f"prepare them with --set vocab.reuse={quoted(origin)}",
        )
    # Two models can have weights of the same shapes and still differ, for example in their number of heads.
    theirs, ours = (vars(each.model) for each in (load_recipe(files.recipe, may_extend=False), recipe))
    different = [key for key in ours if theirs.get(key) != ours[key] and not key.endswith("dropout")]
    if different:
        raise NmtError(
            f"{origin} is another model: {', '.join(f'model.{key}' for key in different)} differ",
            f"set them as in {files.recipe}, or prepare the data with that recipe",
        )
