"""The ladder: several recipes, one corpus, one budget, one table that compares them (docs/ladder.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.text import Text

from nmt_cli.errors import NmtError
from nmt_cli.inspect.attention import attention
from nmt_cli.model.base import parameters_by_part
from nmt_cli.model.device import Compute
from nmt_cli.recipe.load import find_recipe, load_recipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.scoring.draw import draw_lengths
from nmt_cli.scoring.metrics import score
from nmt_cli.scoring.tokenizers import tokenizer_for
from nmt_cli.store.checkpoint import Trained, load_model
from nmt_cli.store.log import Train, flops_by_time, read_log
from nmt_cli.terminal.heatmap import Ink, heatmap
from nmt_cli.terminal.plot import duration
from nmt_cli.terminal.tables import new_table
from nmt_cli.training.validation import Validation

# The shipped rungs, lowest first. The first line of each recipe says what the rung adds to the one below.
SHIPPED = ("demo-rnn", "demo-rnn-attention", "demo-rnn-multi-head", "demo-conv", "demo-decoder", "demo")


@dataclass(frozen=True)
class Rung:
    """A trained rung, its last log entry, its FLOPs by time, and its translations of the test lines."""

    name: str
    trained: Trained
    last: Train
    flops_by_time: float
    test: Validation
    translations: list[str]


def rung_recipe(rung: str, corpus: Recipe, changes: Mapping[str, Any], out: Path) -> Recipe:
    """The recipe `rung` with some keys changed, on the prepared data of `corpus`, in the folder OUT/NAME."""
    folders = {"data.prepared": str(corpus.prepared_folder), "train.out": str(out / Path(rung).stem)}
    recipe = replace(load_recipe(find_recipe(rung), {**changes, **folders}), data=corpus.data, vocab=corpus.vocab)
    for key, problem in recipe.problems():  # load_recipe has checked the rung with its own data only
        raise NmtError(f"the rung {rung} does not fit the data {corpus.prepared_folder}: {key} {problem}", "use --set")
    return recipe


def measure(recipe: Recipe, lines: int) -> Rung:
    """Translate the test set with a trained rung, or the validation set if there is no test set."""
    trained = load_model(recipe.run_folder)
    log = read_log(recipe.run_folder)
    last = [entry for entry in log if isinstance(entry, Train)][-1]
    searching = replace(recipe, train=replace(recipe.train, valid_beam=recipe.translate.beam, valid_lines=lines))
    test = Validation.load(searching, trained.vocab, "test") or Validation.load(searching, trained.vocab, "valid")
    if test is None:
        problem = f"{recipe.prepared_folder} has neither test nor validation lines"
        raise NmtError(problem, "prepare the data with test files")
    translations = test.translations(trained.model, searching, Compute(torch.device("cpu"), "fp32", ""))
    return Rung(recipe.run_folder.name, trained, last, flops_by_time(log), test, translations)


def show(rungs: Sequence[Rung], sentence: str, width: int, ink: Ink) -> RenderableType:
    """The table of all rungs, BLEU by sentence length, and the attention of one sentence for each rung."""
    test = rungs[0].test
    report = score(
        {rung.name: rung.translations for rung in rungs},
        {"reference": test.references},
        source=[test.vocab.source.decode(ids) for ids in test.sources],
        metrics="bleu",
        tokenize=tokenizer_for(test.vocab.target_lang),
        by_length=True,
    )
    bleu = {result.system: result.score for result in report.scores}
    table = new_table("rung", "parameters", "BLEU", "FLOPs\nby weight", "FLOPs\nby time", "time", "tokens/s")
    if width < 80:  # columns of the terminal
        table.padding = (0, 1, 0, 0)
    for rung in rungs:
        table.add_row(
            Text(rung.name),
            f"{parameters_by_part(rung.trained.model).total():,}",
            f"{bleu[rung.name]:.2f}",
            f"{rung.last.flops:.1e}",
            f"{rung.flops_by_time:.1e}" if rung.flops_by_time else "",
            duration(60 * rung.last.minutes),
            f"{rung.last.tokens / (60 * rung.last.minutes):,.0f}",
        )
    if width < 70:
        table.columns.pop()
    counts = Text("by weight: 6 for each weight and token; by time: time x matrix rate of the processors", style="dim")
    assert report.by_length is not None
    signature = Text(report.scores[0].signature, style="dim")
    parts: list[RenderableType] = [table, counts, signature, "", draw_lengths(report.by_length), ""]
    for rung in rungs:
        weights = attention(rung.trained, sentence)
        parts.append(Text.assemble((f"{rung.name}: ", "bold"), weights.target or "(empty)"))
        if "cross" not in weights.weights:
            parts.append(Text("no attention over the source to draw", style="dim"))
        elif weights.rows["cross"]:
            parts.append(heatmap(weights.mean("cross"), weights.rows["cross"], weights.columns["cross"], width, ink))
        parts.append("")
    return Group(*parts)
