"""`--dry-run` of prepare and train: print sizes, the learning-rate curve and the resolved recipe, as valid TOML."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import typer

from nmt_cli.errors import NmtError
from nmt_cli.recipe.load import recipe_tables, tables_toml
from nmt_cli.recipe.schema import Recipe
from nmt_cli.terminal.console import output
from nmt_cli.terminal.plot import framed
from nmt_cli.text.lines import STDIN
from nmt_cli.training.schedule import learning_rate

if TYPE_CHECKING:
    from nmt_cli.training.plan import Plan

_LENGTH = 50  # pieces of each side of a pair in the prediction of memory


def show_plan(recipe: Recipe, plan: Plan | None = None, card: float | None = None) -> None:
    """Print the recipe, and the plan of a training, to stdout. Lines that are not the recipe are TOML comments.

    `card` None: print nothing about memory. 0: print the memory that training needs on this machine. Above 0: the bytes
    of a GPU; print the memory that training needs there, and propose train.batch_tokens.
    """
    parts, updates = [_inputs(recipe)], 0
    if plan is not None:
        recipe, updates = plan.recipe, plan.updates
        parts.append("\n".join(plan.lines))
    if recipe.train.auto:
        parts.append("nmt train chooses the model and the training when the data are prepared (docs/automatic.md)")
    else:
        parts += [
            _model(recipe),
            "" if card is None else _memory(recipe, card),
            rate_curve(recipe, updates, min(72, output().width - 2)),
        ]
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

    sizes = _vocab_sizes(recipe)
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


def _vocab_sizes(recipe: Recipe) -> tuple[int, int]:
    """The sizes of both vocabularies. 0: `nmt prepare` has not chosen them yet."""
    from nmt_cli.text.vocab import load_vocab

    if recipe.is_prepared:
        return load_vocab(recipe.prepared_folder / "vocab").sizes
    return recipe.vocab.size, recipe.vocab.size


def _memory(recipe: Recipe, card: float) -> str:
    """The predicted memory of a training on this machine, or on a card with this many bytes."""
    from nmt_cli.model.device import choose_device
    from nmt_cli.training.memory import predict_memory, propose_batch_tokens

    sizes, train = _vocab_sizes(recipe), recipe.train
    if not any(sizes):
        return ""
    accelerated = card > 0 or choose_device(train.device).type != "cpu"
    precision = train.precision if train.precision != "auto" else "bf16" if accelerated else "fp32"
    memory = predict_memory(recipe, sizes, _LENGTH, accelerated, precision)
    parts = ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in vars(memory).items())
    where = f"{'accelerator' if accelerated else 'cpu'}, {precision}, pairs of {_LENGTH} pieces"
    lines = [f"memory {memory.total / 1e6:,.0f} MB at the peak of an update, predicted ({where}): {parts}"]
    if card:
        tokens = propose_batch_tokens(recipe, sizes, _LENGTH, precision, card)
        fits = f"train.batch_tokens={tokens} fits" if tokens else "not even a small batch fits"
        lines.append(f"       {fits} into {card / 1e9:g} GB, of which a tenth stays free")
    return "\n".join(lines)


def parse_size(text: str) -> float:
    """The bytes of a size such as "24GB" or "800 MB". A number without a unit counts gigabytes."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *(GB?|MB?|)", text.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise NmtError(f"--memory {text} is no size", "give the memory of the card, such as 24GB")
    return float(match[1]) * (1e6 if match[2].upper().startswith("M") else 1e9)


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
