"""`nmt ladder`: train several architectures on one corpus under one budget, and compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from nmt_cli.commands.options import Force, Overrides
from nmt_cli.errors import NmtError, quoted


def ladder(
    data: Annotated[
        str, Argument(metavar="DATA", help="A recipe or a folder of prepared data: all rungs train on it.")
    ] = "demo",
    rungs: Annotated[
        str,
        Option(
            metavar="RECIPES", help="Recipes to train, separated by commas. Default: the six rungs of docs/ladder.md."
        ),
    ] = "",
    table2: Annotated[
        bool, Option("--table2", help='Train the rows of Table 2 of "Attention is all you need", and show both.')
    ] = False,
    out: Annotated[
        Path, Option("--out", "-o", metavar="FOLDER", help="Folder for the runs, one for each rung.")
    ] = Path("ladder"),
    minutes: Annotated[float | None, Option(min=0, metavar="M", help="Training time of each rung. Default: 1.")] = None,
    flops: Annotated[float | None, Option(min=0, metavar="N", help="FLOPs of each rung, instead of --minutes.")] = None,
    seeds: Annotated[
        int,
        Option(min=1, max=100, metavar="N", help="Train each rung this many times. --table2 has ensembles of them."),
    ] = 1,
    choose_rates: Annotated[
        bool,
        Option("--choose-rates", help="First find the learning rate of each rung, in trials of half the budget."),
    ] = False,
    lines: Annotated[
        int,
        Option(
            min=0, metavar="N", help="Translate this many test lines, or validation lines without a test set. 0: all."
        ),
    ] = 0,
    sentence: Annotated[
        str, Option(metavar="TEXT", help="Draw the attention of this sentence.")
    ] = "I like the green cat.",
    ascii_only: Annotated[bool, Option("--ascii", help="Draw with ASCII characters only.")] = False,
    overrides: Overrides = None,
    force: Force = False,
) -> None:
    """Train an RNN, attention, convolutions and Transformers under one budget, and compare them.

    A rung is a recipe. --set changes a key of every rung.
    The same command continues after an interruption.
    A finished rung is trained again only with --force.

    \b
    nmt demo && nmt prepare demo && nmt ladder
    nmt ladder demo --minutes 2 --seeds 3 --choose-rates --out by-rates
    nmt ladder data/en-de --table2 --minutes 10 --set model.dropout=0.3 --out table2
    nmt ladder data/en-de --rungs demo-rnn,mine.toml --flops 1e13 --out my-rungs
    """
    from nmt_cli.ladder import SHIPPED, TABLE2, Ladder, evaluation_splits, measure, show, show_table2, train_rungs
    from nmt_cli.recipe.load import find_recipe, load_recipe, parse_overrides
    from nmt_cli.recipe.options import check_given_once
    from nmt_cli.terminal.console import output, say, stages, warn
    from nmt_cli.terminal.heatmap import ink_of
    from nmt_cli.text.lines import check_text, is_blank
    from nmt_cli.training.session import Interrupted

    # 1. The settings of all runs. Every mistake is found here, before anything is trained.
    changes = parse_overrides(overrides or [])
    for key, option in {"train.out": "--out", "train.minutes": "--minutes", "train.flops": "--flops"}.items():
        if key in changes:  # each run has its own folder and its share of the budget
            raise NmtError(f"nmt ladder takes {key} from {option}, not from --set", f"leave out --set {key}")
    check_given_once({"train.seed": "--seeds" * (seeds > 1), "train.lr": "--choose-rates" * choose_rates}, changes)
    minutes = 1.0 if minutes is None and not flops else minutes
    if bool(minutes) == bool(flops):
        raise NmtError("each rung needs one budget, --minutes or --flops", "for example --minutes 10")
    check_text(sentence, "--sentence")
    if is_blank(sentence):
        raise NmtError("--sentence is empty", 'for example --sentence "I like the green cat."')
    rows = tuple(dict.fromkeys(row.recipe for row in TABLE2))
    names = [name.strip() for name in rungs.split(",") if name.strip()] or list(rows if table2 else SHIPPED)
    if table2 and (unknown := [name for name in names if name not in rows]):
        raise NmtError(f"{unknown[0]} is no row of --table2", f"its rows are {', '.join(rows)}")
    of_data = {key: value for key, value in changes.items() if key.startswith(("data.", "vocab."))}
    of_rungs = {key: value for key, value in changes.items() if key not in of_data}
    runs = Ladder(load_recipe(find_recipe(data), of_data), of_rungs, out, minutes or 0.0, flops or 0.0)
    recipes = [[runs.recipe(name, seed) for seed in range(1, seeds + 1)] for name in names]
    folders = [recipe.run_folder for seeded in recipes for recipe in seeded]
    if twice := [folder for folder in folders if folders.count(folder) > 1]:
        raise NmtError(f"two rungs would share the folder {twice[0]}", "give the recipes different names")
    splits = evaluation_splits(runs.corpus)
    if "test" not in splits:
        warn("there is no test set: BLEU will be that of the validation lines, which also choose the weights")
    if choose_rates and "valid" not in splits:
        problem = f"--choose-rates needs validation lines, but {runs.corpus.prepared_folder} has none"
        raise NmtError(problem, "prepare the data with validation files")

    # 2. Training. A finished run is not trained again.
    try:
        train_rungs(runs, names, recipes, choose_rates, force)
    except Interrupted as stop:
        raise typer.Exit(128 + stop.signal) from None

    # 3. The comparison.
    in_ensembles = {row.recipe for row in TABLE2 if row.ensemble} if table2 and seeds > 1 else set()
    measured = []
    with stages() as progress:
        for number, (name, seeded) in enumerate(zip(names, recipes, strict=True)):
            progress("translating", number, len(names))
            measured.append(measure(seeded, lines, name in in_ensembles))
    console = output()
    if table2:
        console.print(show_table2(measured, console.width))
    else:
        console.print(show(measured, sentence, console.width, ink_of(console, ascii_only)))
    last = quoted(folders[-1])
    say(f"\nnext: nmt inspect {last} and nmt translate {last}")
