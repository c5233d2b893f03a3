"""`nmt ladder`: from the recurrent bottleneck to the Transformer, on one corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nmt_cli.commands.options import Force, Overrides, RecipeName


def ladder(
    recipe: RecipeName = "demo",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the runs, one for each rung.")] = Path("ladder"),
    minutes: Annotated[float, typer.Option(min=0, help="Budget of each rung.")] = 1.0,
    flops: Annotated[float, typer.Option(min=0, help="... or its budget of training FLOPs, with --minutes 0.")] = 0.0,
    rungs: Annotated[str, typer.Option(help="Only these, as rnn,attention,transformer.")] = "",
    lines: Annotated[int, typer.Option(min=0, help="Test lines to translate; 0: all.")] = 0,
    sentence: Annotated[str, typer.Option(help="Whose attention is drawn.")] = "I like the green cat.",
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Draw with ASCII only.")] = False,
    overrides: Overrides = None,
    force: Force = False,
) -> None:
    """Train an RNN, attention, convolutions and Transformers under one budget, and compare them.

    nmt demo && nmt prepare demo && nmt ladder demo

    Interrupted, the same command goes on; a rung that is finished is not trained again, unless with --force.
    """
    from nmt_cli.errors import NmtError
    from nmt_cli.ladder import RUNGS, measure, rung_recipe, show
    from nmt_cli.recipe.load import find_recipe, parse_overrides
    from nmt_cli.terminal.console import messages, output, stages
    from nmt_cli.terminal.heatmap import ink_of
    from nmt_cli.text.lines import is_blank
    from nmt_cli.training.screen import TrainingScreen
    from nmt_cli.training.trainer import train

    if bool(minutes) == bool(flops):
        raise NmtError("give --minutes or --flops, one of them", "for example --minutes 0 --flops 1e14")
    if is_blank(sentence):
        raise NmtError("--sentence is empty", "give one whose attention is worth a look")
    wanted = [name.strip() for name in rungs.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in {rung.name for rung in RUNGS}]
    if unknown:
        raise NmtError(f"there is no rung {unknown[0]}", f"there are {', '.join(rung.name for rung in RUNGS)}")
    chosen = [rung for rung in RUNGS if not wanted or rung.name in wanted]
    budget = {"train.minutes": minutes, "train.flops": flops, "train.steps": 0, "train.patience": 0}
    changes = parse_overrides(overrides or [])
    recipes = [rung_recipe(rung, find_recipe(recipe), changes, out, budget) for rung in chosen]

    for number, (rung, prepared) in enumerate(zip(chosen, recipes, strict=True), 1):
        messages().print(f"\nrung {number} of {len(chosen)}, {rung.name}: {rung.what}", soft_wrap=True)
        with TrainingScreen(prepared, summarise=False) as screen:
            train(prepared, None, force, screen.watch)
        if screen.signal:
            raise typer.Exit(128 + screen.signal)
    with stages() as progress:
        measured = []
        for number, (rung, prepared) in enumerate(zip(chosen, recipes, strict=True)):
            progress("translating", number, len(chosen))
            measured.append(measure(rung, prepared, lines))
    climbed, test = [one for one, _ in measured], measured[0][1]
    console = output()
    console.print(show(climbed, test, sentence, console.width, ink_of(console, ascii_only)))
    messages().print(f"\nnmt inspect {out}/NAME and nmt translate {out}/NAME go on from here", soft_wrap=True)
