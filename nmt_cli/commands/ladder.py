"""`nmt ladder`: train several architectures on one corpus under one budget, and compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from nmt_cli.commands.options import Force, Overrides
from nmt_cli.errors import NmtError


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
    out: Annotated[
        Path, Option("--out", "-o", metavar="FOLDER", help="Folder for the runs, one for each rung.")
    ] = Path("ladder"),
    minutes: Annotated[float | None, Option(min=0, metavar="M", help="Training time of each rung. Default: 1.")] = None,
    flops: Annotated[float | None, Option(min=0, metavar="N", help="FLOPs of each rung, instead of --minutes.")] = None,
    lines: Annotated[int, Option(min=0, metavar="N", help="Translate this many test lines. 0: all.")] = 0,
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
    nmt ladder data/en-de --minutes 10 --set model.dropout=0.3
    nmt ladder data/en-de --rungs demo-rnn,mine.toml --flops 1e13
    """
    from nmt_cli.ladder import SHIPPED, measure, rung_recipe, show
    from nmt_cli.recipe.help import comments
    from nmt_cli.recipe.load import find_recipe, load_recipe, parse_overrides
    from nmt_cli.terminal.console import messages, output, say, stages
    from nmt_cli.terminal.heatmap import ink_of
    from nmt_cli.text.lines import is_blank
    from nmt_cli.training.screen import TrainingScreen
    from nmt_cli.training.session import train

    minutes = 1.0 if minutes is None and not flops else minutes
    if bool(minutes) == bool(flops):
        raise NmtError("each rung needs one budget, --minutes or --flops", "for example --minutes 10")
    if is_blank(sentence):
        raise NmtError("--sentence is empty", 'for example --sentence "I like the green cat."')
    names = [name.strip() for name in rungs.split(",") if name.strip()] or list(SHIPPED)
    changes = parse_overrides(overrides or [])
    of_data = {key: value for key, value in changes.items() if key.startswith(("data.", "vocab."))}
    of_rungs = {key: value for key, value in changes.items() if key not in of_data}
    budget = {f"train.{limit}": 0.0 for limit in ("steps", "epochs", "tokens", "patience")}
    budget |= {"train.minutes": minutes or 0.0, "train.flops": flops or 0.0}
    corpus = load_recipe(find_recipe(data), of_data)
    recipes = [rung_recipe(name, corpus, {**budget, **of_rungs}, out) for name in names]
    folders = [recipe.run_folder for recipe in recipes]
    if twice := [folder for folder in folders if folders.count(folder) > 1]:
        raise NmtError(f"two rungs would share the folder {twice[0]}", "give the recipes different names")

    for number, (name, recipe) in enumerate(zip(names, recipes, strict=True), 1):
        heading = f"\nrung {number} of {len(names)}, {recipe.name}: {comments(find_recipe(name))[0]}"
        messages().print(heading, soft_wrap=not messages().is_terminal)  # a terminal itself would wrap inside words
        with TrainingScreen(recipe, summarize=False) as screen:
            result = train(recipe, force=force, watch=screen.watch)
        if result.signal:
            raise typer.Exit(128 + result.signal)
    measured = []
    with stages() as progress:
        for number, recipe in enumerate(recipes):
            progress("translating", number, len(recipes))
            measured.append(measure(recipe, lines))
    console = output()
    console.print(show(measured, sentence, console.width, ink_of(console, ascii_only)))
    say(f"\nnext: nmt inspect {folders[-1]} and nmt translate {folders[-1]}")
