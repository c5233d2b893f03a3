"""What a trained model is, for `nmt inspect MODEL`: its parts, its pieces, how it was trained, how good it is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nmt_cli.model.base import parameters_by_part
from nmt_cli.store.checkpoint import load_model
from nmt_cli.store.model_folder import find_model
from nmt_cli.store.run_folder import Entry, read_log
from nmt_cli.terminal.plot import bar
from nmt_cli.training.screen import duration, summary
from nmt_cli.training.trainer import training_flops

_BAR = 14


def description(path: Path) -> dict[str, Any]:
    """As JSON has it."""
    trained = load_model(path)
    parts = parameters_by_part(trained.model)
    vocab = trained.vocab
    source, target = vocab.sizes
    return {
        "model": asdict(trained.recipe.model),
        "parameters": parts.total(),
        "parts": dict(parts),
        # A forward pass is a third of training's.
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
        "history": _log(path),
    }


def _log(path: Path) -> list[Entry]:
    """Of the run that the model lies in; a copy elsewhere has none."""
    folder = find_model(path)
    return read_log(folder.parent) if folder.name == "model" else []


def show_description(about: dict[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [_figures(about), "", _parameters(about)]
    log = about["history"]
    if log:
        reason = next(
            (entry["reason"] for entry in reversed(log) if entry["kind"] == "end"), "still training, or killed"
        )
        parts += ["", Text("Training", style="bold"), summary(log, reason)]
    else:
        parts += ["", _memory(about["trained"])]
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
    table.add_row("translating", f"{source} MFLOPs for a source piece, {target} for a target piece and hypothesis")
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


def _memory(trained: dict[str, Any]) -> Table:
    """What the model itself knows of its training."""
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
