"""The ladder: one corpus, one budget, and the field's architectures one after the other. `nmt ladder` leads here.

Each rung is a run like any other, OUT/NAME, trained by trainer.py: interrupted, it goes on; finished, it is not trained
again; `nmt translate` and `nmt inspect` know it. docs/ladder.md tells what each rung is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.text import Text

from nmt_cli.errors import NmtError
from nmt_cli.inspect.attention import inspect
from nmt_cli.model.base import count_parameters
from nmt_cli.model.device import Compute
from nmt_cli.recipe.load import load_recipe, parse_overrides
from nmt_cli.recipe.schema import Recipe, Transformer
from nmt_cli.scoring.draw import draw_lengths
from nmt_cli.scoring.metrics import ScoreOptions, score, tokenizer_for
from nmt_cli.scoring.texts import Texts
from nmt_cli.store.checkpoint import Trained, load_model
from nmt_cli.store.run_folder import read_log
from nmt_cli.terminal.heatmap import Ink, heatmap
from nmt_cli.terminal.tables import new_table
from nmt_cli.training.screen import duration
from nmt_cli.training.validation import Validation


@dataclass(frozen=True)
class Rung:
    """A name, what it adds to the rung below, and how its recipe differs from the base's.

    Widths and rates are multiples of the base's: a recurrent layer has fewer matrices than a Transformer's, so it may
    be wider, and what was found on the demo corpus (recipes/demo-*.toml) is that attention to states and convolutions
    bear a higher rate.
    """

    name: str
    what: str
    settings: tuple[str, ...] = ()
    width: int = 1
    rate: float = 1.0


_LSTM = ("model.family=rnn", "model.cell=lstm", "train.clip=1.0")  # recurrent gradients can explode
RUNGS = (
    Rung("rnn", "LSTM, one vector for the source", (*_LSTM, "model.attention=none", "model.context=every"), width=2),
    Rung("attention", "... and additive attention", (*_LSTM, "model.attention=additive"), width=2, rate=2),
    Rung(
        "multi-head",
        "... of four heads, scaled dot",
        (*_LSTM, "model.attention=scaled_dot", "model.projections=true", "model.heads=4"),
        width=2,
        rate=2,
    ),
    Rung("conv", "gated convolutions", ("model.family=conv",), rate=2),
    Rung("decoder", "one causal Transformer", ("model.family=decoder", "model.layers=4")),
    Rung("transformer", "the base recipe itself"),
)


_WIDE = 100  # columns of a terminal that has room for words too


@dataclass(frozen=True)
class Climbed:
    """A rung, trained and measured."""

    rung: Rung
    trained: Trained
    parameters: int
    flops: float
    minutes: float
    tokens_per_second: float
    translations: list[str]


def rung_recipe(
    rung: Rung, base: Path | None, overrides: Mapping[str, Any], out: Path, budget: Mapping[str, Any]
) -> Recipe:
    """The base recipe with this rung's model, in a folder of its own, on the base's prepared data."""
    plain = load_recipe(base, overrides)
    own: dict[str, Any] = {}
    if not isinstance(plain.model, Transformer):
        raise NmtError(
            f'the ladder ends with the Transformer, and this recipe is of family "{plain.model.family}"',
            "name a recipe with family = transformer, as demo",
        )
    if rung.settings:
        model = plain.model
        own = {**parse_overrides(rung.settings), "model.dim": rung.width * model.dim, "model.dropout": model.dropout}
        own["train.lr"] = rung.rate * plain.train.lr
        if own["model.family"] == "decoder":
            own |= {"model.ff": model.ff, "model.heads": model.heads}
        overrides = {key: value for key, value in overrides.items() if not key.startswith("model.")}  # the base's own
    places = {"train.out": str(out / rung.name), "data.prepared": str(plain.prepared_folder.resolve())}
    recipe = load_recipe(base, {**overrides, **own, **budget, **places})
    return replace(recipe, name=rung.name)


def measure(rung: Rung, recipe: Recipe, lines: int) -> tuple[Climbed, Validation]:
    """A trained rung's figures, and its translations of the test set, or of the validation set where there is none."""
    trained = load_model(recipe.run_folder)
    log = [entry for entry in read_log(recipe.run_folder) if entry["kind"] == "train"]
    wide = replace(recipe, train=replace(recipe.train, valid_beam=recipe.translate.beam, valid_lines=lines))
    test = next((found for split in ("test", "valid") if (found := Validation.load(wide, trained.vocab, split))), None)
    if test is None:
        raise NmtError(f"{recipe.prepared_folder} has neither test nor validation lines", "prepare it with one of them")
    climbed = Climbed(
        rung=rung,
        trained=trained,
        parameters=count_parameters(trained.model),
        flops=log[-1]["flops"],
        minutes=log[-1]["minutes"],
        tokens_per_second=log[-1]["tokens"] / (60 * log[-1]["minutes"]),
        translations=test.translations(trained.model, wide, Compute(torch.device("cpu"), "fp32", "")),
    )
    return climbed, test


# ---------------------------------------------------------------------------------------------------------------------
# What a person sees


def show(climbed: Sequence[Climbed], test: Validation, sentence: str, width: int, ink: Ink) -> RenderableType:
    sources = [test.vocab.source.decode(ids) for ids in test.sources]
    texts = Texts(
        systems={one.rung.name: one.translations for one in climbed},
        references={"reference": test.references},
        source=sources,
    )
    options = ScoreOptions(("bleu",), tokenizer_for(test.vocab.target_lang), by_length=True)
    report = score(texts, options, lambda *_: None)
    bleu = {found.system: found.score for found in report.scores}
    wide = width >= _WIDE
    table = new_table("model", "parameters", "BLEU", "training FLOPs" if wide else "FLOPs", "time", "tokens/s")
    if wide:
        table.add_column("")
    for one in climbed:
        table.add_row(
            one.rung.name,
            f"{one.parameters:,}",
            f"{bleu[one.rung.name]:.2f}",
            f"{one.flops:.1e}",
            duration(60 * one.minutes),
            f"{one.tokens_per_second:,.0f}",
            *([Text(one.rung.what, style="dim")] if wide else []),
        )
    assert report.lengths is not None
    parts: list[RenderableType] = [table, Text(report.scores[0].signature, style="dim"), ""]
    parts += [draw_lengths(report.lengths), ""]
    for one in climbed:
        found = inspect(one.trained, sentence)
        parts.append(Text.assemble((f"{one.rung.name}: ", "bold"), found.target or "(empty)"))
        attention = found.attention.get("cross")
        if attention is None:
            parts.append(Text("no attention over the source to draw", style="dim"))
        elif attention.rows:
            parts.append(heatmap(attention.chosen(None, None), attention.rows, attention.columns, width, ink))
        parts.append("")
    return Group(*parts)
