"""Describe a trained model: its parts, its vocabulary, its training, its scores. `nmt inspect MODEL` leads here."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nmt_cli.model.base import parameters_by_part
from nmt_cli.model.flops import training_flops
from nmt_cli.store.checkpoint import load_model
from nmt_cli.store.log import End, from_table, read_log, to_table
from nmt_cli.store.model_folder import find_model
from nmt_cli.terminal.plot import bar
from nmt_cli.training.screen import duration, summary

_BAR = 14


def description(path: Path) -> dict[str, Any]:
    """Everything about the model in `path`, ready for JSON."""
    trained = load_model(path)
    parts = parameters_by_part(trained.model)
    vocab = trained.vocab
    source, target = vocab.sizes
    return {
        "model": asdict(trained.recipe.model),
        "parameters": parts.total(),
        "parts": dict(parts),
        # Training counts three passes' worth of FLOPs, one forward and two for the backward pass.
        "flops_per_source_piece": training_flops(trained.model, 1, 0) / 3,
        "flops_per_target_piece": training_flops(trained.model, 0, 1) / 3,
        "vocabulary": {
            "type": vocab.type,
            "joint": vocab.joint,
            "source": source,
            "target": target,
            "source_lang": vocab.source_lang,
            "target_lang": vocab.target_lang,
            "normalization": vocab.normalization,
            "symbols": list(vocab.symbols),
        },
        "trained": trained.about,
        "history": _history(path),
    }


def _history(path: Path) -> list[dict[str, Any]]:
    """The log of the run that the model lies in. A copy of the model elsewhere has none."""
    folder = find_model(path)
    return [to_table(entry) for entry in read_log(folder.parent)] if folder.name == "model" else []


def show_description(about: dict[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [_figures(about), "", _parameters(about)]
    log = [from_table(entry) for entry in about["history"]]
    if log:
        ends = [entry.reason for entry in log if isinstance(entry, End)]
        reason = ends[-1] if ends else "not finished (running or killed)"
        parts += ["", Text("Training", style="bold"), summary(log, reason)]
    else:
        parts += ["", _training(about["trained"])]
    return Group(*parts)


def _grid(title: str = "") -> Table:
    table = Table.grid(padding=(0, 2))
    table.title, table.title_justify, table.title_style = title or None, "left", "bold"
    table.add_column(style="dim")
    table.add_column()
    return table


def _figures(about: dict[str, Any]) -> Table:
    model, vocab = dict(about["model"]), about["vocabulary"]
    table = _grid()
    languages = " to ".join(filter(None, (vocab["source_lang"], vocab["target_lang"])))
    table.add_row("model", Text(", ".join(filter(None, (model.pop("family"), languages)))))
    table.add_row("", Text(", ".join(f"{key} {value}" for key, value in model.items()), style="dim"))
    sizes = f"{vocab['source']:,} joint" if vocab["joint"] else f"{vocab['source']:,} and {vocab['target']:,}"
    symbols = f", symbols {' '.join(vocab['symbols'])}" if vocab["symbols"] else ""
    table.add_row("vocabulary", Text(f"{sizes} {vocab['type']} pieces, {vocab['normalization']}{symbols}"))
    source, target = (f"{about[f'flops_per_{side}_piece'] / 1e6:,.2f}" for side in ("source", "target"))
    table.add_row("translating", f"{source} MFLOPs per source piece, {target} per target piece of each hypothesis")
    return table


def _parameters(about: dict[str, Any]) -> Table:
    total = about["parameters"]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.title, table.title_justify, table.title_style = "Parameters", "left", "bold"
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify)
    for name, count in about["parts"].items():
        table.add_row(name, f"{count:,}", f"{count / total:.0%}", bar(count, total, _BAR))
    table.add_row("all", f"{total:,}", "", f"{total * 4 / 1e6:,.1f} MB in fp32", style="bold")
    return table


def _training(trained: dict[str, Any]) -> Table:
    """The facts about training that the model folder itself holds."""
    table = _grid("Training")
    table.add_row("recipe", Text(str(trained.get("recipe", ""))))
    if "step" in trained:
        table.add_row("trained", f"{trained['step']:,} steps, {trained['tokens']:,} target tokens")
        table.add_row("time", duration(60 * trained["minutes"]))
        table.add_row("compute", f"{trained['flops']:.2e} FLOPs")
    valid = trained.get("valid", {})
    if "bleu" in valid:
        table.add_row("best", f"BLEU {valid['bleu']:.2f}, chrF {valid['chrf']:.2f}, loss {valid['loss']:.3f}")
        table.add_row("", Text(f"{valid['signature']}, {valid['lines']:,} validation lines", style="dim"))
    return table
