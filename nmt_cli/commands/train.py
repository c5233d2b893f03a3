"""`nmt train`: train a model, or go on where a run stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nmt_cli.commands.options import DryRun, Overrides, RecipeName


def train(
    recipe: RecipeName,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the run; else the recipe's.")] = None,
    start_from: Annotated[
        Path | None, typer.Option("--from", metavar="MODEL", help="Start from another run's weights: fine-tuning.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes.")] = None,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    force: Annotated[
        bool, typer.Option("--force", help="Start again: remove the run's checkpoints and model.")
    ] = False,
) -> None:
    """Train a model on prepared data. On an existing run, go on where it was.

    \b
    nmt train demo
    torchrun --nproc-per-node 2 -m nmt_cli train RECIPE        on two processes or GPUs

    Ctrl-C saves and stops; the same command goes on.
    """
    import json
    from dataclasses import replace

    from nmt_cli.commands.options import open_recipe

    named = {"train.out": str(out) if out else None, "train.minutes": minutes}
    given = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in named.items() if value is not None]
    settings = [*given, *(overrides or [])]
    loaded = open_recipe(recipe, settings)
    if not loaded.is_prepared:  # another run folder does not mean other data
        usual = open_recipe(recipe, [one for one in settings if not one.replace(" ", "").startswith("train.out=")])
        if usual.is_prepared:
            loaded = replace(loaded, data=replace(loaded.data, prepared=usual.prepared_folder))
    if dry_run:
        from nmt_cli.commands.dry_run import show_plan

        show_plan(loaded)
        return

    from nmt_cli.train.screen import TrainingScreen
    from nmt_cli.train.trainer import train as run

    with TrainingScreen(loaded) as screen:
        run(loaded, start_from, force, screen.watch)
    if screen.signal:
        raise typer.Exit(128 + screen.signal)
