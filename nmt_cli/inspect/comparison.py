"""Compare runs by their recipes and logs, for `nmt compare`. This module reads no weights and does not import torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nmt_cli.errors import NmtError, quoted
from nmt_cli.recipe.load import load_recipe, settings_of
from nmt_cli.recipe.schema import Recipe
from nmt_cli.store.folders import RunFolder
from nmt_cli.store.log import End, Entry, Start, Train, Valid, best_validation, read_log, seconds_of
from nmt_cli.terminal.console import warn
from nmt_cli.terminal.plot import duration, overlaid
from nmt_cli.terminal.tables import new_table


@dataclass(frozen=True)
class Run:
    name: str
    recipe: Recipe
    log: list[Entry]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    if len(paths) < 2:
        raise NmtError("nmt compare needs two runs or more", f"nmt inspect {quoted(paths[0])} shows one")
    folders = [RunFolder(path) for path in paths]
    for folder in folders:
        if not (folder.recipe.is_file() and folder.log.is_file()):
            problem = f"{folder.path} is not a run" if folder.path.exists() else f"there is no run {folder.path}"
            raise NmtError(problem, "name the folders of runs, such as runs/en-de")
    names = [path.resolve().name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    if twice := [name for name in names if names.count(name) > 1]:
        raise NmtError(f"{twice[0]} is named twice", "name every run once")
    return [
        Run(name, load_recipe(run.recipe), read_log(run.path, on_damage=warn))
        for name, run in zip(names, folders, strict=True)
    ]


def shared_test_set(runs: Sequence[Run]) -> tuple[Path, Path]:
    """The test set of the prepared data, source and target, if it is the same for all runs."""
    hint = "name a test text with --source and --ref"
    folders = [run.recipe.prepared_folder for run in runs]
    for side in ("source", "target"):
        files = [folder / f"test.{side}.txt" for folder in folders]
        if missing := [file.parent for file in files if not file.is_file()]:
            raise NmtError(f"{missing[0]} has no test set", hint)
        if other := [file.parent for file in files if file.read_bytes() != files[0].read_bytes()]:
            raise NmtError(f"{folders[0]} and {other[0]} have different test sets", hint)
    return folders[0] / "test.source.txt", folders[0] / "test.target.txt"


def show_comparison(runs: Sequence[Run], width: int) -> RenderableType:
    """The keys that differ, the figures of each training, and the validation curves in one plot."""
    settings = differences(runs)
    parts: list[RenderableType] = [_table("Settings that differ", runs, settings)]
    if not settings:
        parts = [Text("The recipes have the same settings.")]
    parts += ["", _table("Training", runs, _figures(runs))]
    if keys := [key for key in _validation_keys(runs) if key in settings]:
        sentence = f"The validation scores cannot be compared: the runs differ in {', '.join(keys)}."
        parts.append(Text(sentence, style="bold"))
    curves = {run.name: points for run in runs if (points := _curve(run))}
    if any(len(points) > 1 for points in curves.values()):
        parts += ["", Text("validation BLEU", style="bold"), Text(overlaid(curves, min(width, 100), 10))]
    return Group(*parts)


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """The keys whose values differ, with the value of each run. A run without the key has an empty value."""
    tables = [settings_of(run.recipe) for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table if key != "train.out")
    rows = {key: [_text(table.get(key, "")) for table in tables] for key in keys}
    return {key: _without_common_folder(row) for key, row in rows.items() if len(set(row)) > 1}


def _validation_keys(runs: Sequence[Run]) -> list[str]:
    """The keys that must be equal if validation scores are to be compared."""
    keys = ["train.valid_lines", "train.valid_beam"]
    texts = [run.recipe.prepared_folder / "valid.target.txt" for run in runs]
    if all(text.is_file() for text in texts) and len({text.read_bytes() for text in texts}) == 1:
        return keys  # the files have other names, but the same lines
    # Without validation files, the validation lines come from the training files.
    held_out = [] if all(run.recipe.data.valid for run in runs) else ["data.train", "data.hold_out"]
    return ["data.valid", *held_out, *keys]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _without_common_folder(texts: list[str]) -> list[str]:
    """Remove the folder that holds all paths of a row."""
    parents = [Path(part).parent for text in texts for part in text.split(", ") if part.startswith("/")]
    return [text.replace(f"{os.path.commonpath(parents)}/", "") for text in texts] if parents else texts


_FIGURES = ("parameters", "pairs", "steps", "epochs", "time", "tokens/s", "stopped")
_SCORES = ("best BLEU", "chrF", "loss", "at step", "of lines")


def _figures(runs: Sequence[Run]) -> dict[str, list[str]]:
    """The rows of the table of figures. A figure that a run does not have is empty."""
    rows: dict[str, list[str]] = {}
    for run in runs:
        best, seconds = best_validation(run.log), seconds_of(run.log)
        figures = dict.fromkeys((*_FIGURES, *_SCORES), "")
        for entry in run.log:
            match entry:
                case Start():
                    figures |= {"parameters": f"{entry.parameters:,}", "pairs": f"{entry.pairs:,}"}
                    figures |= {"stopped": "not finished"}
                case Train():
                    figures |= {"steps": f"{entry.step:,}", "epochs": f"{entry.epoch:.1f}"}
                    figures |= {"time": duration(seconds)}
                    figures |= {"tokens/s": f"{entry.tokens / seconds:,.0f}" if seconds else ""}
                case End():
                    figures |= {"stopped": entry.reason}
        if best is not None and best.bleu is not None:
            figures |= {"best BLEU": f"{best.bleu:.2f}", "chrF": f"{best.chrf:.2f}", "loss": f"{best.loss:.3f}"}
            figures |= {"at step": f"{best.step:,}", "of lines": f"{best.lines:,}"}
        for name, figure in figures.items():
            rows.setdefault(name, []).append(figure)
    return {name: row for name, row in rows.items() if any(row)}


def _curve(run: Run) -> list[tuple[int, float]]:
    return [(entry.step, entry.bleu) for entry in run.log if isinstance(entry, Valid) and entry.bleu is not None]


def _table(title: str, runs: Sequence[Run], rows: dict[str, list[str]]) -> Table:
    table = new_table("", *(run.name for run in runs), title=title)
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.overflow = "fold"
    for name, values in rows.items():
        table.add_row(name, *map(Text, values))
    return table
