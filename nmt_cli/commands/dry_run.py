"""`--dry-run` of prepare and train: print sizes, the learning-rate curve and the resolved recipe, as valid TOML."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from nmt_cli.recipe.load import recipe_tables, tables_toml
from nmt_cli.recipe.schema import Recipe
from nmt_cli.terminal.console import output
from nmt_cli.terminal.plot import framed
from nmt_cli.text.lines import STDIN
from nmt_cli.training.schedule import learning_rate

if TYPE_CHECKING:
    from nmt_cli.training.plan import Plan


def show_plan(recipe: Recipe, plan: Plan | None = None) -> None:
    """Print the recipe, and the plan of a training, to stdout. Lines that are not the recipe are TOML comments."""
    parts, updates = [_inputs(recipe)], 0
    if plan is not None:
        recipe, updates = plan.recipe, plan.updates
        parts.append("\n".join(plan.lines))
    if recipe.train.auto:
        parts.append("nmt train chooses the model and the training when the data are prepared (docs/automatic.md)")
    else:
        parts += [_model(recipe), rate_curve(recipe, updates, min(72, output().width - 2))]
    for part in filter(None, parts):
        typer.echo("".join(f"# {line}".rstrip() + "\n" for line in part.splitlines()))
    typer.echo(tables_toml(recipe_tables(recipe)), nl=False)


def _inputs(recipe: Recipe) -> str:
    lines = []
    for split, corpora in recipe.data.corpora().items():
        for corpus in corpora:
            missing = [str(path) for path in corpus.paths if path != STDIN and not path.is_file()]
            size = sum(path.stat().st_size for path in corpus.paths if path.is_file())
            note = f"MISSING: {', '.join(missing)}" if missing else f"{size / 1e6:,.1f} MB"
            lines.append(f"{split:<6} {corpus}   {note}")
    lines.append(f"data   {recipe.prepared_folder}   {'prepared' if recipe.is_prepared else 'not prepared yet'}")
    lines.append(f"run    {recipe.run_folder}   {'exists' if recipe.run_folder.exists() else 'new'}")
    return "\n".join(lines)


def _model(recipe: Recipe) -> str:
    import torch

    from nmt_cli.model.base import parameters_by_part
    from nmt_cli.model.build import build_model
    from nmt_cli.text.vocab import load_vocab

    sizes = (recipe.vocab.size, recipe.vocab.size)
    if recipe.is_prepared:
        sizes = load_vocab(recipe.prepared_folder / "vocab").sizes
    if not any(sizes):
        return "model  its size depends on vocab.size, which nmt prepare chooses"
    with torch.device("meta"):  # the meta device allocates no memory
        model = build_model(recipe.model, *sizes)
    parts = parameters_by_part(model)
    total = parts.total()
    listed = ", ".join(f"{name} {count:,}" for name, count in parts.items())
    train = recipe.train
    update = train.batch_tokens * train.accumulate
    return (
        f"model  {recipe.model.family}, {total:,} parameters ({total * 4 / 1e6:,.0f} MB in fp32): {listed}\n"
        f"update {update:,} tokens at most: {train.accumulate} x {train.batch_tokens:,}"
    )


def rate_curve(recipe: Recipe, updates: int = 0, width: int = 72) -> str:
    """The learning rate over the steps, as a plot, also for `nmt inspect RECIPE --show schedule`.

    `updates` is the expected length of the training; 0: unknown.
    """
    train = recipe.train
    last = updates or train.steps or 10 * max(1, train.warmup)
    steps = [max(1, round(last * x / 59)) for x in range(60)]
    values = [learning_rate(step, step / last, train, recipe.model.dim) for step in steps]
    title = f"learning rate, {train.schedule}, warm-up {train.warmup:,}"
    if not updates and (train.minutes or train.epochs or train.tokens or train.flops):
        title += ", if training stops by steps"
    return f"{title}\n" + framed(values, width, 6, "step 1", f"{last:,}", "{:.2e}")
