"""`nmt train`: train a model, or continue a run."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from nmt_cli.commands.options import DryRun, Overrides, RecipeName
from nmt_cli.errors import NmtError

if TYPE_CHECKING:
    from nmt_cli.recipe.schema import Recipe
    from nmt_cli.training.plan import Plan


def train(
    recipe: RecipeName,
    out: Annotated[
        Path | None, Option("--out", "-o", metavar="FOLDER", help="Folder of the run. Default: the one in the recipe.")
    ] = None,
    start_from: Annotated[
        Path | None,
        Option("--from", metavar="MODEL", help="Start from the weights of this run or model (fine-tuning)."),
    ] = None,
    minutes: Annotated[float | None, Option(metavar="M", help="Stop after this many minutes.")] = None,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    memory: Annotated[
        str | None, Option(metavar="SIZE", help="With --dry-run: propose train.batch_tokens for a card, such as 24GB.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Start again. The old run is renamed to RUN.old-1.")] = False,
) -> None:
    """Train a model on prepared data, or continue an existing run.

    \b
    nmt train data/en-de --out runs/en-de --minutes 30    nmt chooses the settings
    nmt train demo                                        a recipe states them
    torchrun --nproc-per-node 2 -m nmt_cli train RECIPE   on 2 GPUs

    Ctrl-C saves and stops. The same command continues.
    """
    began = perf_counter()  # before torch is imported, which takes seconds on a busy machine
    import nmt_cli
    from nmt_cli.recipe.load import open_recipe, parse_overrides
    from nmt_cli.recipe.options import with_options

    options = {"train.out": ("--out", str(out) if out else None), "train.minutes": ("--minutes", minutes)}
    loaded = open_recipe(recipe, with_options(options, parse_overrides(overrides or [])))
    if memory is not None and not dry_run:
        raise NmtError("--memory only works with --dry-run", "add --dry-run, or set train.batch_tokens")
    if dry_run:
        from nmt_cli.commands.dry_run import parse_size, show_plan

        show_plan(loaded, _plan(loaded, start_from, force), parse_size(memory) if memory is not None else 0.0)
        return

    from nmt_cli.training.screen import TrainingScreen

    with TrainingScreen(loaded) as screen:
        result = nmt_cli.train(loaded, start_from=start_from, force=force, watch=screen.watch, began=began)
    if result.signal:
        raise typer.Exit(128 + result.signal)


def _plan(recipe: Recipe, start_from: Path | None, force: bool) -> Plan | None:
    """The plan that the same command without --dry-run would follow. None: the data are not prepared yet."""
    from nmt_cli.model.device import choose_device
    from nmt_cli.training.distributed import World
    from nmt_cli.training.session import plan_session

    if not recipe.is_prepared:
        return None
    return plan_session(recipe, choose_device(recipe.train.device), start_from, force, World())
